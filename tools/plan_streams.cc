// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/plan_streams.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "stretto/execution/pipeline.h"

namespace stretto::tools {
namespace {

using execution::PipelineDesign;

std::string waits_text(const PipelineDesign& design, const PipelineDesign::Stage& stage,
                       int slots) {
  std::vector<std::string> texts;
  for (const auto& wait : stage.waits) {
    const auto& name = design.stages[static_cast<std::size_t>(wait.stage)].name;
    texts.push_back(wait.of_last_lap ? fmt::format("{} of slice -{}", name, slots)
                                     : std::string(name));
  }
  return texts.empty() ? "-" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string staging_text(const PipelineDesign& design, const PipelineDesign::Stage& stage) {
  std::vector<std::string_view> names;
  for (const int buffer : stage.uses) {
    names.push_back(design.staging[static_cast<std::size_t>(buffer)]);
  }
  return names.empty() ? "-" : fmt::format("{}", fmt::join(names, ", "));
}

// When which slice is on each stream, in units of a stage.
std::vector<std::string> timeline(const PipelineDesign& design, int slots, int slices) {
  std::vector<std::string> streams(design.streams.size());
  std::vector<std::vector<std::size_t>> ends(static_cast<std::size_t>(slices));
  for (int slice = 0; slice < slices; ++slice) {
    auto& own = ends[static_cast<std::size_t>(slice)];
    for (const auto& stage : design.stages) {
      std::string& stream = streams[static_cast<std::size_t>(stage.stream)];
      std::size_t begin = stream.size() / 2;
      for (const auto& wait : stage.waits) {
        if (wait.of_last_lap && slice < slots) continue;
        const auto& lap = wait.of_last_lap ? ends[static_cast<std::size_t>(slice - slots)] : own;
        begin = std::max(begin, lap[static_cast<std::size_t>(wait.stage)]);
      }
      while (stream.size() < begin * 2) stream += " .";
      stream += fmt::format(" {}", slice % 10);
      own.push_back(begin + 1);
    }
  }
  return streams;
}

}  // namespace

std::string describe_pipeline(const std::string& name, int slots, int slices) {
  const auto all = execution::pipelines();
  const auto design = std::ranges::find(all, name, &PipelineDesign::name);
  if (design == all.end()) return {};
  std::string text = fmt::format(
      "pipeline {}: {} stages on {} streams, {} slots in each of: {}\n\n", design->name,
      design->stages.size(), design->streams.size(), slots, fmt::join(design->staging, ", "));
  constexpr const char* kRow = "{:<15} {:<15} {:<14} {:<34} {}\n";
  text += fmt::format(kRow, "stage", "stream", "staging", "waits for", "does");
  for (const auto& stage : design->stages) {
    text +=
        fmt::format(kRow, stage.name, design->streams[static_cast<std::size_t>(stage.stream)],
                    staging_text(*design, stage), waits_text(*design, stage, slots), stage.does);
  }
  text += fmt::format("\n{} slices, if every stage takes as long:\n", slices);
  const auto lines = timeline(*design, slots, slices);
  for (std::size_t stream = 0; stream < lines.size(); ++stream) {
    text += fmt::format("{:<15}{}\n", design->streams[stream], lines[stream]);
  }
  return text;
}

std::string pipeline_names() {
  std::vector<std::string_view> names;
  for (const auto& design : execution::pipelines()) names.push_back(design.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace stretto::tools
