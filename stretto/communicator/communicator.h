// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/error.h"
#include "stretto/base/id.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/communicator/memory.h"
#include "stretto/communicator/work.h"

namespace stretto {

// Options shared by all operations. Every field has a default; name only what you change.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  // The name of an algorithm (docs/algorithms.md) instead of the cheapest one. Must be equal on all
  // ranks. Algorithms without canonical order ("ring") are used only if named here.
  std::string algorithm = {};
  // The operation fails if it has not ended by then. Default: the communicator's timeout.
  std::optional<Duration> timeout = std::nullopt;
};
struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::sum;
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct AllGatherOptions {
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct BroadcastOptions {
  Rank root = 0;
  std::string algorithm = {};
  std::optional<Duration> timeout = std::nullopt;
};
struct BarrierOptions {
  std::optional<Duration> timeout = std::nullopt;
};
struct SendOptions {
  Rank to = 0;
  int tag = 0;  // Messages of one tag between two ranks arrive in the order they were sent.
  std::optional<Duration> timeout = std::nullopt;
};
struct RecvOptions {
  Rank from = 0;
  int tag = 0;
  std::optional<Duration> timeout = std::nullopt;
};

// A group of ranks that move and reduce data together.
//
// Every operation is immediate: it returns a Work at once and goes on in the background; `.wait()`
// right behind it makes it blocking, and then it runs on the calling thread without a hand-over.
// All ranks of the group must call the same collectives in the same order; ranks that disagree get
// a Mismatch error that shows both calls. Any thread may submit; the order of a group is the order
// of submission. Wrong arguments throw InvalidArgument before anything is sent. Once an operation
// has failed because of a peer, the communicator has failed: every later call repeats the first
// failure.
//
// After a failure the content of outputs is undefined, and a peer that was stalled in the operation
// may still write into registered outputs when it goes on: free them, do not use them again.
//
// Destroying a communicator ends it for this rank only, without waiting for the others; operations
// in flight fail with Aborted.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  // Reduces `data` over all ranks; every rank gets the result, the same bits. In place.
  Work all_reduce(View data, const AllReduceOptions& options = {}) {
    return all_reduce_views(data, data, options);
  }
  // Out of place: `input` is not changed. Same dtype and count on both sides.
  Work all_reduce(ConstView input, View output, const AllReduceOptions& options = {}) {
    return all_reduce_views(input, output, options);
  }
  // Rank r gets the reduction of elements [r * k, (r + 1) * k) with k = output.count;
  // input.count = k * size().
  Work reduce_scatter(ConstView input, View output, const ReduceScatterOptions& options = {}) {
    return reduce_scatter_views(input, output, options);
  }
  // Rank r's input becomes elements [r * k, (r + 1) * k) of every rank's output, k = input.count;
  // output.count = k * size(). The input may be exactly its place in the output.
  Work all_gather(ConstView input, View output, const AllGatherOptions& options = {}) {
    return all_gather_views(input, output, options);
  }
  // The root's bytes become everyone's.
  Work broadcast(View data, const BroadcastOptions& options = {}) {
    return broadcast_view(data, options);
  }
  // Ends when every rank has entered.
  virtual Work barrier(const BarrierOptions& options = {}) = 0;

  // Point to point. The receiver's count and dtype must equal the sender's, else both get Mismatch.
  // A send is done when its buffer may be used again, not when the receiver has the data.
  Work send(ConstView data, const SendOptions& options) { return send_view(data, options); }
  Work recv(View data, const RecvOptions& options) { return recv_view(data, options); }

  // The same on typed spans, vectors and registered buffers.
  template <class T>
  Work all_reduce(std::span<T> data, const AllReduceOptions& options = {}) {
    return all_reduce(view_of(data), options);
  }
  template <class T>
  Work all_reduce(Buffer<T>& data, const AllReduceOptions& options = {}) {
    return all_reduce(data.span(), options);
  }
  template <class T>
  Work all_reduce(std::span<const T> input, std::span<T> output,
                  const AllReduceOptions& options = {}) {
    return all_reduce(const_view_of(input), view_of(output), options);
  }
  template <class T>
  Work reduce_scatter(std::span<const T> input, std::span<T> output,
                      const ReduceScatterOptions& options = {}) {
    return reduce_scatter(const_view_of(input), view_of(output), options);
  }
  template <class T>
  Work all_gather(std::span<const T> input, std::span<T> output,
                  const AllGatherOptions& options = {}) {
    return all_gather(const_view_of(input), view_of(output), options);
  }
  template <class T>
  Work broadcast(std::span<T> data, const BroadcastOptions& options = {}) {
    return broadcast(view_of(data), options);
  }
  template <class T>
  Work broadcast(Buffer<T>& data, const BroadcastOptions& options = {}) {
    return broadcast(data.span(), options);
  }
  template <class T>
  Work send(std::span<const T> data, const SendOptions& options) {
    return send(const_view_of(data), options);
  }
  template <class T>
  Work recv(std::span<T> data, const RecvOptions& options) {
    return recv(view_of(data), options);
  }

  // A communicator of some of this one's ranks; `ranks[i]` becomes rank i of it. All ranks of this
  // communicator call it, in the same order, with the same list; those not in the list get null.
  // Blocks until all members have agreed.
  virtual std::unique_ptr<Communicator> new_group(std::vector<Rank> ranks) = 0;

  // Memory that the other ranks of this host can reach: collectives on it copy nothing. Zeroed. Not
  // collective, does not wait for others. Lives as long as the returned object, which may outlive
  // the communicator. Where no other rank can reach it, it is ordinary memory.
  virtual Memory allocate_bytes(std::size_t bytes) = 0;
  template <class T>
  Buffer<T> allocate(std::size_t count) {
    return Buffer<T>(allocate_bytes(count * sizeof(T)), count);
  }

  // Lets operations in flight advance on the calling thread, without blocking. Worth calling from
  // long computations when no core is free for a progress thread (see has_progress_thread()); the
  // reducer does so for each gradient.
  virtual void poll() = 0;
  virtual bool has_progress_thread() const = 0;

  // Ends the communicator on all ranks that can be reached: their operations fail with Aborted and
  // `reason`. Local and immediate; waits for nobody. Any thread.
  virtual void abort(const std::string& reason) = 0;

  // "shm to ranks 1-3; tcp to ranks 4-7": how data reaches the others.
  virtual std::string describe_links() const = 0;

 protected:
  Communicator() = default;

  // A view whose data and output share `data` is in place.
  virtual Work all_reduce_views(ConstView input, View output, const AllReduceOptions& options) = 0;
  virtual Work reduce_scatter_views(ConstView input, View output,
                                    const ReduceScatterOptions& options) = 0;
  virtual Work all_gather_views(ConstView input, View output, const AllGatherOptions& options) = 0;
  virtual Work broadcast_view(View data, const BroadcastOptions& options) = 0;
  virtual Work send_view(ConstView data, const SendOptions& options) = 0;
  virtual Work recv_view(View data, const RecvOptions& options) = 0;
};

}  // namespace stretto
