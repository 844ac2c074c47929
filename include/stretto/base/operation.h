// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"

namespace stretto {

// What ranks do together. The numbers travel between ranks: append, never reorder.
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

// The layout of the collectives by which a group is made, so that a caller's own are no answer to
// them.
inline constexpr std::uint64_t kSetUpLayout = 0x75706f7267776e65;
// That of a barrier which names who is missing.
inline constexpr std::uint64_t kMonitoredLayout = 0x6f74696e6f6d;

// The algorithm of operations on memory of devices, so that a rank whose buffers lie elsewhere is
// found out.
inline constexpr std::uint8_t kDeviceAlgorithm = 255;
// Of those on memory of devices that a library has registered.
inline constexpr std::uint8_t kRegisteredDeviceAlgorithm = 254;
// And of both while a graph captures them.
inline constexpr std::uint8_t kCapturedDeviceAlgorithm = 253;
inline constexpr std::uint8_t kCapturedRegisteredDeviceAlgorithm = 252;
inline constexpr bool is_on_device(std::uint8_t algorithm) {
  return algorithm >= kCapturedRegisteredDeviceAlgorithm;
}

// What a rank believes it is doing. Travels with the data, so that ranks which disagree find out at
// once and can say how (see docs/internals/wire_format.md). Equal on all ranks of one operation.
struct OperationDescriptor {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::u8;
  std::uint8_t algorithm = 0;  // So that a rank with another override is found out, too.
  std::int32_t root = -1;      // -1: the collective has none.
  std::uint64_t count = 0;     // Elements of the whole buffer, all ranks' shares together.
  // What else must be equal: a hash of the shares where ranks have different ones, or of the list
  // of a coalesced operation. 0: nothing else.
  std::uint64_t layout = 0;

  friend bool operator==(const OperationDescriptor&, const OperationDescriptor&) = default;
};
static_assert(sizeof(OperationDescriptor) == 24, "travels as it lies in memory");

// The algorithm with that number, as schedule/algorithms.h has them: "ring". Here too, because the
// number travels to layers that do not know schedules. "algorithm 77" of a number that is none.
std::string algorithm_name(std::uint8_t algorithm);

// "all_reduce(sum f32 [1048576])", "broadcast(f16 [33554432] root 0)".
std::string describe(const OperationDescriptor& operation);

// The same, and what does not show in it but differs from `other`, in words: "all_reduce(sum f32
// [4]) by ring".
std::string describe_against(const OperationDescriptor& operation,
                             const OperationDescriptor& other);

// The first field in which two descriptors differ: "count". Empty if they are equal.
std::string_view first_difference(const OperationDescriptor& a, const OperationDescriptor& b);

}  // namespace stretto
