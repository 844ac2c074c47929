// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/operation.h"

#include <fmt/format.h>

namespace stretto {

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::barrier:
      return "barrier";
    case Collective::point_to_point:
      return "send/recv";
    case Collective::reduce:
      return "reduce";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
  }
  return "unknown collective";
}

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

std::string describe(const OperationDescriptor& operation) {
  if (operation.collective == Collective::barrier) return "barrier()";
  std::string text = fmt::format("{}(", name(operation.collective));
  if (reduces(operation.collective)) text += fmt::format("{} ", name(operation.op));
  text += fmt::format("{} [{}]", name(operation.dtype), operation.count);
  if (operation.root >= 0) text += fmt::format(" root {}", operation.root);
  if (operation.layout == kSetUpLayout) text += " for a new group";
  return text + ")";
}

std::string_view first_difference(const OperationDescriptor& a, const OperationDescriptor& b) {
  if (a.collective != b.collective) return "collective";
  if (a.op != b.op) return "reduce operation";
  if (a.dtype != b.dtype) return "dtype";
  if (a.count != b.count) return "count";
  if (a.root != b.root) return "root";
  if (a.layout != b.layout) return "layout (shares of the ranks, or shapes of a list)";
  if (a.algorithm != b.algorithm) return "algorithm";
  return {};
}

}  // namespace stretto
