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
  }
  return "unknown collective";
}

std::string describe(const OperationDescriptor& operation) {
  if (operation.collective == Collective::barrier) return "barrier()";
  const bool reduces = operation.collective == Collective::all_reduce ||
                       operation.collective == Collective::reduce_scatter;
  std::string text = fmt::format("{}(", name(operation.collective));
  if (reduces) text += fmt::format("{} ", name(operation.op));
  text += fmt::format("{} [{}]", name(operation.dtype), operation.count);
  if (operation.root >= 0) text += fmt::format(" root {}", operation.root);
  return text + ")";
}

std::string_view first_difference(const OperationDescriptor& a, const OperationDescriptor& b) {
  if (a.collective != b.collective) return "collective";
  if (a.op != b.op) return "reduce operation";
  if (a.dtype != b.dtype) return "dtype";
  if (a.count != b.count) return "count";
  if (a.root != b.root) return "root";
  if (a.algorithm != b.algorithm) return "algorithm";
  return {};
}

}  // namespace stretto
