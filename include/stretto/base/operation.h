// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"

namespace stretto {

// The operations that ranks run together. The numbers travel between ranks: append, never reorder.
enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  barrier,
  point_to_point,
  reduce,
  gather,
  scatter,
  all_to_all,
};

inline constexpr int kCollectiveCount = 10;

std::string_view name(Collective collective);
// Whether ranks' values are combined.
constexpr bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}
// Whether one rank is the source or the target.
constexpr bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}
// Whether ranks have shares of the whole.
constexpr bool has_shares(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::reduce_scatter ||
         collective == Collective::gather || collective == Collective::scatter ||
         collective == Collective::all_to_all;
}

// The layout of the collectives that set up a group, so that no collective of a caller matches
// them.
inline constexpr std::uint64_t kSetUpLayout = 0x75706f7267776e65;
// The layout of a barrier that names the missing ranks.
inline constexpr std::uint64_t kMonitoredLayout = 0x6f74696e6f6d;

// The algorithm of operations on device memory, so that a rank whose buffers are elsewhere is
// detected.
inline constexpr std::uint8_t kDeviceAlgorithm = 255;
// The same, on device memory that a library has registered.
inline constexpr std::uint8_t kRegisteredDeviceAlgorithm = 254;
// Both, while a CUDA graph captures them.
inline constexpr std::uint8_t kCapturedDeviceAlgorithm = 253;
inline constexpr std::uint8_t kCapturedRegisteredDeviceAlgorithm = 252;
inline constexpr bool is_on_device(std::uint8_t algorithm) {
  return algorithm >= kCapturedRegisteredDeviceAlgorithm;
}

// Describes an operation as one rank sees it. Travels with the data, so that ranks that disagree
// find out at once and can say how (docs/internals/wire_format.md). Equal on all ranks of an
// operation.
struct OperationDescriptor {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::u8;
  std::uint8_t algorithm = 0;  // So that a rank that names another one is detected.
  std::int32_t root = -1;      // -1: the collective has none.
  std::uint64_t count = 0;     // Elements of the whole buffer: all ranks' shares.
  // A hash of what else must be equal: unequal shares, or the shapes of the list of a coalesced
  // operation. 0: nothing else.
  std::uint64_t layout = 0;

  friend bool operator==(const OperationDescriptor&, const OperationDescriptor&) = default;
};
static_assert(sizeof(OperationDescriptor) == 24, "travels as it lies in memory");

// The name of an algorithm by its number in schedule/algorithms.h: "ring". It is here because the
// number travels to layers that do not know schedules. "algorithm 77" for an unknown number.
std::string algorithm_name(std::uint8_t algorithm);

// "all_reduce(sum f32 [1048576])", "broadcast(f16 [33554432] root 0)".
std::string describe(const OperationDescriptor& operation);

// The same, followed by differences from `other` that it does not show, in words: "all_reduce(sum
// f32 [4]) by ring".
std::string describe_against(const OperationDescriptor& operation,
                             const OperationDescriptor& other);

// The first field in which two descriptors differ: "count". Empty if they are equal.
std::string_view first_difference(const OperationDescriptor& a, const OperationDescriptor& b);

}  // namespace stretto
