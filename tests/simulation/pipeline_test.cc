// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Pipelines run on streams that take a random time. No two stages may race for a slot; and the
// check for races must find the stages that wait for too little.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "stretto/execution/pipeline.h"
#include "tests/support/simulated_streams.h"

namespace stretto::simulation {
namespace {

using execution::BoundStep;
using execution::Pipeline;
using execution::PipelineDesign;
using testing::SimulatedDevice;

constexpr int kSeeds = 1000;

struct Setting {
  int slots = 2;
  int slots_told = 2;  // The pipeline is told: more than there are is a mistake.
  bool records_too_early = false;
};

// Slices of a gradient go through a pipeline; each stage adds one on the way from where the slice
// lies to where the next stage looks for it.
class Run {
 public:
  Run(const PipelineDesign& design, std::uint64_t seed, const Setting& setting)
      : design_(&design), setting_(setting), random_(seed), device_(random_.next()) {
    if (setting.records_too_early) device_.record_too_early();
    slices_ = 1 + random_.below(8);
    gradient_.resize(slices_ * kElements, 1.0f);
    staging_.resize(design.staging.size() * static_cast<std::size_t>(setting.slots) * kElements);
    std::vector<execution::Stream*> streams;
    for (std::size_t i = 0; i < design.streams.size(); ++i) {
      queues_.push_back(device_.make_queue().or_throw());
      streams.push_back(queues_.back().get());
    }
    pipeline_ = Pipeline::create(design, streams, setting.slots_told, [this](const auto& task) {
                  return begin(task);
                }).or_throw();
  }

  // Returns what is wrong; empty if nothing is.
  std::string go() {
    for (std::uint64_t steps = 0; pipeline_->ended() < slices_; ++steps) {
      if (steps == 100'000) return "stands still";
      if (pipeline_->pushed() < slices_ && random_.below(4) == 0) pipeline_->push();
      pipeline_->advance();
      for (auto n = random_.below(4); n > 0; --n) device_.work();
    }
    if (!device_.race().empty()) return device_.race();
    const float expected = 1.0f + static_cast<float>(design_->stages.size());
    const bool is_right = std::ranges::all_of(gradient_, [&](float e) { return e == expected; });
    return is_right ? "" : "the result is wrong";
  }

 private:
  static constexpr std::size_t kElements = 8;

  // Where a slice lies after a stage: in staging, if the next stage uses that, too; otherwise in
  // place.
  float* place_behind(const Pipeline::Task& task, int stage) {
    const auto& stages = design_->stages;
    const auto at = static_cast<std::size_t>(stage);
    if (stage >= 0 && at + 1 < stages.size()) {
      for (const int buffer : stages[at].uses) {
        const auto& next = stages[at + 1].uses;
        if (std::ranges::find(next, buffer) == next.end()) continue;
        const int slot = buffer * setting_.slots + task.slot % setting_.slots;
        return staging_.data() + static_cast<std::size_t>(slot) * kElements;
      }
    }
    return gradient_.data() + task.slice * kElements;
  }

  Status begin(const Pipeline::Task& task) {
    void* const to = place_behind(task, task.stage);
    BoundStep step;
    step.inputs = {{.data = place_behind(task, task.stage - 1), .dtype = DType::f32},
                   {.data = ones_.data(), .dtype = DType::f32}};
    step.outputs = {to};
    step.output_element_bytes = sizeof(float);
    step.whole_count = kElements;
    step.reduction = kernel::PreparedReduction::create({.dtype = DType::f32,
                                                        .output_dtype = DType::f32,
                                                        .inputs = step.inputs,
                                                        .outputs = step.outputs})
                         .or_throw();
    const int stream = design_->stages[static_cast<std::size_t>(task.stage)].stream;
    return queues_[static_cast<std::size_t>(stream)]->run(step, kElements);
  }

  const PipelineDesign* design_;
  Setting setting_;
  Random random_;
  SimulatedDevice device_;
  std::uint64_t slices_ = 0;
  std::vector<float> ones_ = std::vector<float>(kElements, 1.0f);
  std::vector<float> gradient_;
  std::vector<float> staging_;
  std::vector<std::unique_ptr<execution::KernelQueue>> queues_;
  std::unique_ptr<Pipeline> pipeline_;
};

// The first seed that goes wrong, and how; empty if none does.
std::string first_failure(const PipelineDesign& design, const Setting& setting) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::string failure = Run(design, seed, setting).go();
    if (!failure.empty()) return fmt::format("{}, seed {}: {}", design.name, seed, failure);
  }
  return {};
}

TEST(Pipelines, DoNotRace) {
  for (const PipelineDesign& design : execution::pipelines()) {
    for (const int slots : {1, 2, 3}) {
      EXPECT_EQ(first_failure(design, {.slots = slots, .slots_told = slots}), "") << slots;
    }
  }
}

TEST(Pipelines, LackingAnyWaitRace) {
  for (const PipelineDesign& design : execution::pipelines()) {
    int waits = 0;
    for (std::size_t stage = 0; stage < design.stages.size(); ++stage) {
      for (std::size_t i = 0; i < design.stages[stage].waits.size(); ++i, ++waits) {
        PipelineDesign mutant = design;
        auto& list = mutant.stages[stage].waits;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(first_failure(mutant, {}), "") << design.name << ", wait " << waits;
      }
    }
    EXPECT_GE(waits, static_cast<int>(design.stages.size())) << design.name;
  }
}

TEST(Pipelines, ThatReuseASlotTooEarlyRace) {
  for (const PipelineDesign& design : execution::pipelines()) {
    EXPECT_NE(first_failure(design, {.slots = 2, .slots_told = 3}), "") << design.name;
  }
}

TEST(Pipelines, WhoseEventsAreRecordedTooEarlyRace) {
  for (const PipelineDesign& design : execution::pipelines()) {
    EXPECT_NE(first_failure(design, {.records_too_early = true}), "") << design.name;
  }
}

// Stages of one stream need no events between them.
TEST(Pipelines, OnOneStreamWaitForNothing) {
  PipelineDesign design = execution::pipelines().front();
  for (auto& stage : design.stages) {
    stage.stream = 0;
    stage.waits.clear();
  }
  design.streams.resize(1);
  design = connect(design);
  for (const auto& stage : design.stages) EXPECT_TRUE(stage.waits.empty());
  EXPECT_EQ(first_failure(design, {}), "");
}

}  // namespace
}  // namespace stretto::simulation
