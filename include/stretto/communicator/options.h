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

// The options of the operations of a Communicator. Every field has a default; name only what you
// change. What means the same everywhere:
//
//   root       A rank of the communicator, the same on all of them.
//   factor     Multiplies this rank's input before it is combined: a weighted sum. Ranks may have
//              different ones. Other than 1 for floating point only. The product is rounded to the
//              dtype.
//   counts     Elements of each rank's share, where not all have the same; the same list on all
//              ranks. Shares lie one behind the other, in the order of ranks; they may be empty.
//   algorithm  The name of one (docs/internals/algorithms.md), in place of a choice; on all ranks
//              the same. Reductions by "ring" and "double_binary_tree", which have no canonical
//              order, are used only if named.
//   timeout    The operation fails if it has not ended by then, after its submission. Default: the
//              communicator's.
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
  // Elements that this rank sends to (receives from) each rank, where not all are the same. Both
  // or none; and none or all ranks give them. What one rank sends is what the other must expect.
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

// Of one other rank, a rank may wait for at most 65,536 messages of more than 64 KiB that have not
// been sent, and for the receives of at most 262,144 messages; beyond that the job fails with
// ProtocolError.
struct SendOptions {
  Rank to = 0;
  int tag = 0;  // Messages of one tag between two ranks arrive in the order they were sent.
  std::optional<Duration> timeout = std::nullopt;
};
struct RecvOptions {
  Rank from = 0;  // Or kAnyRank; then Work::source() says whose it was.
  int tag = 0;
  std::optional<Duration> timeout = std::nullopt;
};

// One message of a batch.
struct Transfer {
  bool sends = false;
  ConstView outgoing = {};  // Of a send.
  View incoming = {};       // Of a receive.
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

// Of a group that is made of a communicator's ranks. Each rank's own.
struct GroupOptions {
  // The default of the group's operations, and of groups that are made of it. Default: that of the
  // communicator of which it is made, within whose time the ranks have to make it in any case.
  std::optional<Duration> timeout = std::nullopt;
  // Failures and warnings of the group say it on this rank: all_reduce(...) #2 of group "dp". Of a
  // longer one they say the first 64 characters, and '?' for what is not printable ASCII. Empty:
  // there is none; groups made of this one have none of it.
  std::string name = {};
  // Nobody gives memory of a device to the group, nor to those made of it, which would read it as
  // the host's. They make nothing on devices, such as a communicator of NCCL. Unlike the rest, the
  // same on all ranks: else making the group fails when its time is up.
  bool is_for_host_memory = false;
};
struct SplitOptions {
  // Ranks of one colour become one group. Empty: this rank will be in none.
  std::optional<int> color = std::nullopt;
  // The order within the group: by key, then by rank.
  int key = 0;
  // See GroupOptions.
  std::optional<Duration> timeout = std::nullopt;
  std::string name = {};
  bool is_for_host_memory = false;
};

}  // namespace stretto
