// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/view.h"

namespace stretto {

// The options of the operations of a Communicator. Every field has a default; name only those that
// you change. These fields mean the same everywhere:
//
//   root       A rank of the communicator, the same on all ranks.
//   factor     Multiplies this rank's input before it is combined, for weighted sums. Ranks may
//              have different factors. Other than 1 for floating point only. The product is rounded
//              to the dtype.
//   counts     The number of elements of each rank's share, if not all are equal; the same list on
//              all ranks. Shares lie one behind the other, in rank order; they may be empty.
//   algorithm  The name of an algorithm (docs/internals/algorithms.md) to use, instead of a choice
//              by the library; the same on all ranks. Reductions by "ring" have no canonical order,
//              so they run only if "ring" is named.
//   timeout    The operation fails if it has not ended this long after its submission. Default:
//              the communicator's.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  Rank root = 0;
  double factor = 1;
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  std::vector<std::size_t> counts = {};
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct AllGatherOptions {
  std::vector<std::size_t> counts = {};
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct GatherOptions {
  Rank root = 0;
  std::vector<std::size_t> counts = {};
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct ScatterOptions {
  Rank root = 0;
  std::vector<std::size_t> counts = {};
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct AllToAllOptions {
  // How many elements this rank sends to (receives from) each rank, if not all are equal. Give both
  // lists or none, on all ranks or on none. Sender and receiver must give the same number.
  std::vector<std::size_t> send_counts = {};
  std::vector<std::size_t> recv_counts = {};
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct BroadcastOptions {
  Rank root = 0;
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct BarrierOptions {
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};

// Limits between two ranks: one may have at most 262,144 receives of more than 64 KiB that wait for
// the other to send, and at most 262,144 messages that wait for the other to receive. Beyond that
// the job fails with ProtocolError.
struct SendOptions {
  Rank to = 0;
  int tag = 0;  // Not negative. Messages of one tag between two ranks keep their order.
  std::optional<Duration> timeout = std::nullopt;
};
struct RecvOptions {
  Rank from = 0;  // Or kAnyRank; Work::source() then names the sender.
  int tag = 0;
  std::optional<Duration> timeout = std::nullopt;
};

// One message of a batch.
struct Transfer {
  bool sends = false;
  ConstView outgoing = {};  // For a send.
  View incoming = {};       // For a receive.
  Rank peer = 0;
  int tag = 0;

  template <InputBuffer B>
  static Transfer send(B&& data, Rank to, int tag = 0) {
    return {.sends = true, .outgoing = as_input(data), .incoming = {}, .peer = to, .tag = tag};
  }
  template <OutputBuffer B>
  static Transfer recv(B&& data, Rank from, int tag = 0) {
    return {.sends = false, .outgoing = {}, .incoming = as_output(data), .peer = from, .tag = tag};
  }
};
struct BatchOptions {
  std::optional<Duration> timeout = std::nullopt;
};

// Options of a new group. Each rank has its own, with one exception below.
struct GroupOptions {
  // The default timeout of the group's operations, and of groups made of this one. Default: the
  // parent's, which always bounds how long it takes to make the group.
  std::optional<Duration> timeout = std::nullopt;
  // Errors and warnings of the group contain the name on this rank: all_reduce(...) #2 of group
  // "dp". They show its first 64 characters, and '?' for what is not printable ASCII. Empty: no
  // name. Groups made of this one do not inherit it.
  std::string name = {};
  // Promises that no device memory is passed to this group or to groups made of it, which would
  // access it as host memory. Such groups set up nothing on devices, such as an NCCL communicator.
  // Must be the same on all ranks; otherwise making the group fails when its time is up.
  bool is_for_host_memory = false;
};
struct SplitOptions {
  // Ranks with the same color become one group. Empty: this rank joins no group.
  std::optional<int> color = std::nullopt;
  // Ranks of the group are ordered by `key`, then by their rank in this communicator.
  int key = 0;
  // See GroupOptions.
  std::optional<Duration> timeout = std::nullopt;
  std::string name = {};
  bool is_for_host_memory = false;
};

}  // namespace stretto
