// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/operation.h"

#include <fmt/format.h>

#include "stretto/base/name_in.h"

namespace stretto {

std::string_view name(Collective collective) {
  return name_in({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "send/recv",
                  "reduce", "gather", "scatter", "all_to_all"},
                 collective, "unknown collective");
}

std::string describe(const OperationDescriptor& operation) {
  if (operation.collective == Collective::barrier) {
    return operation.layout == kMonitoredLayout ? "monitored_barrier()" : "barrier()";
  }
  std::string text = fmt::format("{}(", name(operation.collective));
  if (reduces(operation.collective)) text += fmt::format("{} ", name(operation.op));
  text += fmt::format("{} ", name(operation.dtype));
  // If each rank has its own counts, no count stands for all.
  const bool counted = operation.collective != Collective::all_to_all || operation.layout == 0 ||
                       operation.count > 0;
  text += counted ? fmt::format("[{}]", operation.count) : "[counts of its own]";
  if (operation.root >= 0) text += fmt::format(" root {}", operation.root);
  if (operation.layout == kSetUpLayout) text += " for a new group";
  return text + ")";
}

std::string algorithm_name(std::uint8_t algorithm) {
  constexpr std::string_view kOnDevices[] = {
      "what is for memory of devices that allocate() has made, in a CUDA graph",
      "what is for memory of devices, in a CUDA graph",
      "what is for memory of devices that allocate() has made", "what is for memory of devices"};
  if (is_on_device(algorithm)) {
    return std::string(kOnDevices[algorithm - kCapturedRegisteredDeviceAlgorithm]);
  }
  const std::string_view known =
      name_in({"the chosen algorithm", "ring", "direct", "recursive_doubling", "binomial_tree",
               "direct_mapped", "staged_mapped", "pairwise", "bruck", "knomial",
               "recursive_halving", "double_binary_tree", "two_level", "", "eager_mapped",
               "two_level_mapped", "two_level_eager"},
              algorithm, "");
  return known.empty() ? fmt::format("algorithm {}", algorithm) : std::string(known);
}

std::string describe_against(const OperationDescriptor& operation,
                             const OperationDescriptor& other) {
  std::string text = describe(operation);
  if (operation.algorithm != other.algorithm) text += " by " + algorithm_name(operation.algorithm);
  const auto in_text = [](std::uint64_t layout) {
    return layout == kSetUpLayout || layout == kMonitoredLayout;
  };
  const bool shown = in_text(operation.layout) || in_text(other.layout);
  if (operation.layout == other.layout || shown) return text;
  // If ranks have shares of the whole, the layout describes the shares; otherwise, a list.
  if (has_shares(operation.collective)) {
    text += operation.layout == 0 ? " with equal shares" : " with counts per rank";
  } else {
    text += operation.layout == 0 ? " on one buffer" : " on a list of buffers";
  }
  return text;
}

std::string_view first_difference(const OperationDescriptor& a, const OperationDescriptor& b) {
  const bool monitors = a.layout == kMonitoredLayout;
  if (a.collective != b.collective || monitors != (b.layout == kMonitoredLayout)) {
    return "collective";
  }
  if (a.op != b.op) return "reduce operation";
  if (a.dtype != b.dtype) return "dtype";
  if (a.count != b.count) return "count";
  if (a.root != b.root) return "root";
  if (a.layout == kSetUpLayout || b.layout == kSetUpLayout) {
    if (a.layout != b.layout) return "purpose (making a group)";
  }
  if (a.layout != b.layout) {
    return has_shares(a.collective) ? "layout (counts per rank)" : "layout (shapes of the list)";
  }
  if (a.algorithm != b.algorithm) return "algorithm";
  return {};
}

}  // namespace stretto
