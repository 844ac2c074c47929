// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/error.h"
#include "stretto/base/id.h"
#include "stretto/base/inline_bytes.h"
#include "stretto/base/operation.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/communicator/memory.h"
#include "stretto/communicator/operation_observer.h"
#include "stretto/communicator/options.h"
#include "stretto/communicator/work.h"
#include "stretto/group/explanation.h"

namespace stretto {

namespace communicator {
class Backend;
struct CollectiveCall;
}  // namespace communicator

// A group of ranks that move and reduce data together.
//
// Every operation is immediate: the call returns a Work and waits for no other rank; `.wait()`
// right behind it makes it blocking, and then it runs on the calling thread without a hand-over.
// The call itself runs an operation on buffers of up to kInlineBytes (1 MiB) as far as the other
// ranks have come, which takes a few hundred microseconds at most. A larger one is only begun in
// it: with a progress thread (has_progress_thread()) that takes some tens of microseconds, most of
// them to wake that thread up; without one, up to kInlineBytes are worked on. A thread that is just
// making progress is waited for, for some tenths of a millisecond. The first operation of its kind
// and size is planned in its call, which takes longer, the more so where no test has proved its
// schedule (STRETTO_VERIFY). What is left is done by threads that wait, by the progress thread,
// and, a little at a time, by poll(), Work::done() and twice a second by the heartbeat. So without
// a progress thread, a program that neither waits nor polls keeps the others waiting.
//
// All ranks of the group must call the same collectives in the same order; ranks that disagree get
// a Mismatch error that shows both calls. Any thread may submit; the order of a group is the order
// of submission. Wrong arguments throw InvalidArgument before anything is sent. Once an operation
// has failed because of a peer, the communicator has failed: every later call repeats the first
// failure. Failures name ranks by their numbers in the job, in Status::rank() too, whatever the
// group; wrong arguments and differing lists of new_group() are told in the group's own numbers.
//
// Buffers: a View, or a vector, array, span or registered Buffer of a type that has a dtype
// (base/dtype.h). Input and output have the same dtype. An input is not changed unless it is the
// output too ("in place"); then it must be exactly its place in the output, or (where it is the
// longer one) the output exactly its place in the input. Other overlaps are refused. What a
// collective does not give to a rank, it does not touch there: that rank may pass an empty view.
//
// After a failure the content of outputs is undefined, and a peer that was stalled in the operation
// may still write into registered outputs when it goes on: free them, do not use them again.
//
// Destroying a communicator ends it for this rank only, without waiting for the others; operations
// in flight fail with Aborted. Communicators of one job may be destroyed in any order. If an
// exception that unwinds the stack destroys it, the others are told so: at once, by Aborted, where
// operations are in flight (see Work), else when they wait for this rank.
class Communicator final {
 public:
  // For those who make communicators; programs get theirs by join() and the like.
  explicit Communicator(std::unique_ptr<communicator::Backend> backend);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  // Not 0, and never that of another one of this process, not even of one that is gone.
  std::uint64_t serial() const { return serial_; }

  // Reduces `data` over all ranks; every rank gets the result, the same bits.
  template <OutputBuffer D>
  Work all_reduce(D&& data, const AllReduceOptions& options = {}) {
    const View view = as_output(data);
    return all_reduce_views(view, view, options);
  }
  template <InputBuffer I, OutputBuffer O>
  Work all_reduce(I&& input, O&& output, const AllReduceOptions& options = {}) {
    return all_reduce_views(as_input(input), as_output(output), options);
  }
  // The root gets the reduction. Elsewhere `output` is not used.
  template <OutputBuffer D>
  Work reduce(D&& data, const ReduceOptions& options = {}) {
    const View view = as_output(data);
    return reduce_views(view, rank() == options.root ? view : View(), options);
  }
  template <InputBuffer I, OutputBuffer O>
  Work reduce(I&& input, O&& output, const ReduceOptions& options = {}) {
    return reduce_views(as_input(input), as_output(output), options);
  }
  // Rank r gets the reduction of everybody's share r.
  template <InputBuffer I, OutputBuffer O>
  Work reduce_scatter(I&& input, O&& output, const ReduceScatterOptions& options = {}) {
    return reduce_scatter_views(as_input(input), as_output(output), options);
  }
  // Rank r's input becomes share r of everybody's output.
  template <InputBuffer I, OutputBuffer O>
  Work all_gather(I&& input, O&& output, const AllGatherOptions& options = {}) {
    return all_gather_views(as_input(input), as_output(output), options);
  }
  // Rank r's input becomes share r of the root's output. Elsewhere `output` is not used.
  template <InputBuffer I, OutputBuffer O>
  Work gather(I&& input, O&& output, const GatherOptions& options = {}) {
    return gather_views(as_input(input), as_output(output), options);
  }
  // Share r of the root's input becomes rank r's output. Elsewhere `input` is not used.
  template <InputBuffer I, OutputBuffer O>
  Work scatter(I&& input, O&& output, const ScatterOptions& options = {}) {
    return scatter_views(as_input(input), as_output(output), options);
  }
  // Share d of rank s's input becomes share s of rank d's output. In place costs a copy.
  template <InputBuffer I, OutputBuffer O>
  Work all_to_all(I&& input, O&& output, const AllToAllOptions& options = {}) {
    return all_to_all_views(as_input(input), as_output(output), options);
  }
  // The root's elements become everyone's.
  template <OutputBuffer D>
  Work broadcast(D&& data, const BroadcastOptions& options = {}) {
    return broadcast_view(as_output(data), options);
  }
  // Ends when every rank has entered, and behind this rank's collectives that came before.
  Work barrier(const BarrierOptions& options = {});
  // The same, but slower: Timeout names all ranks that have not come, if rank 0 is alive. Blocks.
  void monitored_barrier(const BarrierOptions& options = {});

  // Lists of buffers of any dtypes and sizes with one Work; all ranks pass lists of the same shape.
  // What one entry writes must not overlap another entry, which nobody checks. Small buffers of one
  // dtype travel together: the latency of one operation for all, for the price of two copies.
  Work all_reduce_coalesced(std::span<const View> list, const AllReduceOptions& options = {});
  Work broadcast_coalesced(std::span<const View> list, const BroadcastOptions& options = {});
  // Entry i of `inputs` and of `outputs` are those of one reduce_scatter (all_gather). Nothing is
  // packed: each entry is an operation of its own, with a number of its own, all in flight at once.
  Work reduce_scatter_coalesced(std::span<const ConstView> inputs, std::span<const View> outputs,
                                const ReduceScatterOptions& options = {});
  Work all_gather_coalesced(std::span<const ConstView> inputs, std::span<const View> outputs,
                            const AllGatherOptions& options = {});

  // The same collectives with a buffer for each rank's share, instead of one that holds all shares
  // one behind the other; the shares are as long as the buffers. What passes through a list is
  // copied once more. Where only the root has the list, the others need `counts` unless all shares
  // are as long as their own; elsewhere `counts` is not used.
  Work all_gather_list(ConstView input, std::span<const View> outputs,
                       const AllGatherOptions& options = {});
  Work reduce_scatter_list(std::span<const ConstView> inputs, View output,
                           const ReduceScatterOptions& options = {});
  Work all_to_all_list(std::span<const ConstView> inputs, std::span<const View> outputs,
                       const AllToAllOptions& options = {});
  Work gather_list(ConstView input, std::span<const View> outputs,
                   const GatherOptions& options = {});
  Work scatter_list(std::span<const ConstView> inputs, View output,
                    const ScatterOptions& options = {});

  // Point to point. The receiver's count and dtype must equal the sender's, else both get Mismatch.
  // A send is done when its buffer may be used again, not when the receiver has the data. Receives
  // of one tag take messages in the order in which they were posted, those from any rank included;
  // what comes from different ranks has no order.
  template <InputBuffer B>
  Work send(B&& data, const SendOptions& options) {
    return send_view(as_input(data), options);
  }
  template <OutputBuffer B>
  Work recv(B&& data, const RecvOptions& options) {
    return recv_view(as_output(data), options);
  }
  // Sends and receives that may wait for each other in any order, with one Work.
  Work batch_send_recv(std::span<const Transfer> transfers, const BatchOptions& options = {});

  // A communicator of some of this one's ranks; `ranks[i]` becomes rank i of it. All ranks of this
  // communicator call it, in the same order, with the same list; those not in the list get null.
  // Blocks until all have agreed; fails if this communicator fails meanwhile.
  std::unique_ptr<Communicator> new_group(std::vector<Rank> ranks,
                                          const GroupOptions& options = {});
  // A communicator of the ranks that name the same colour; null for those that name none. All ranks
  // of this communicator call it. Blocks and fails as new_group() does.
  std::unique_ptr<Communicator> split(const SplitOptions& options);

  // A communicator of the ranks that are left, in their order: so those who survive go on without
  // those who do not. It is the one thing that a communicator still does after it has failed. All
  // that are left call it; they agree on who is lost, whatever each of them knows and whoever dies
  // meanwhile, and all get the same group. Out are the dead, those that have destroyed this
  // communicator, and those that any rank names in `excluded`, as errors name them: by their ranks
  // in the job. Where nobody is, it makes a communicator of the same ranks.
  //
  // Ends this communicator on all ranks: operations in flight here fail with Aborted, elsewhere
  // those that still need this rank; another shrink is possible, without those who are out. Blocks
  // until all have called it that are not out, the group stands everywhere, and all know so. Throws
  // Timeout, naming who has not come (called again, it goes on where it stopped); Aborted at once
  // on a rank that is out, naming who has named it; and on all ranks why the group could not be set
  // up, if it was not because of another death. One thread at a time.
  std::unique_ptr<Communicator> shrink(std::vector<Rank> excluded = {});

  // Memory that the other ranks of this host can reach: collectives on it copy nothing. Zeroed. Not
  // collective, does not wait for others. Lives as long as the returned object, which may outlive
  // the communicator. Where no other rank can reach it, it is ordinary memory. Throws OutOfMemory
  // if even a second later it does not fit into what machine and container have left.
  //
  // With a device, which must be device(): memory there, which the host cannot touch. With the
  // backend "cuda" the devices of this host's other ranks have mapped it; with "nccl" this
  // communicator's NCCL knows it, and takes in one operation only such memory or none, on all
  // ranks. Freed when what this process has begun there has ended, for which the host waits, or
  // behind a capture. Throws InvalidArgument with another backend, or while a CUDA graph captures
  // this thread's stream (StreamGuard) or what the default stream waits for; else Error.
  Memory allocate_bytes(std::size_t bytes, std::optional<int> device = std::nullopt);
  template <class T>
  Buffer<T> allocate(std::size_t count, std::optional<int> device = std::nullopt) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
      throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                      "rank {}: allocate: too many elements: {} of {} bytes",
                                      rank().value(), count, sizeof(T)));
    }
    return Buffer<T>(allocate_bytes(count * sizeof(T), device), count);
  }

  // What this rank does between operations ("loading data"), for the messages of others that wait
  // for it. Empty: nothing special. Concerns all communicators of the job. Any thread.
  void note(std::string_view activity);

  // Lets operations in flight advance on the calling thread, without blocking. Worth calling from
  // long computations when no core is free for a progress thread (see has_progress_thread()).
  void poll();
  bool has_progress_thread() const;

  // The device in whose memory buffers may lie, too, by its number in this process; none if they
  // must lie in memory of the host. See JoinOptions::backend. Any thread.
  std::optional<int> device() const;
  // The device whose memory that is; none if it is of the host, or device() is none. Any thread.
  std::optional<int> device_of(const void* data) const;
  // Whether operations take what lies there, in memory of a device: of any, as far as the driver of
  // device() knows, or with the backend "cuda" what allocate() has made. Any thread.
  bool is_device_memory(const void* data) const;
  bool maps_devices() const;  // Whether it has to be what allocate() has made, as with "cuda".

  // Ends the communicator, and the groups made of it by new_group() and split(), and of those, and
  // so on, on all ranks that can be reached: their operations fail with Aborted and `reason`; also
  // where it has failed before. What shrink() has made stands in the place of the communicator that
  // was shrunk, and does not end with that one. A rank that has destroyed this one is reached by
  // the groups that it shares with others. Local and immediate; waits for nobody. Any thread.
  void abort(const std::string& reason);
  bool has_failed() const;  // What is submitted then fails with the same reason. Any thread.

  // Tells `observer`, which must not be null, of the operations that are submitted from now on, and
  // of those of groups that are made from now on; beside other observers. Not while other threads
  // use the communicator.
  void observe(std::shared_ptr<OperationObserver> observer);

  // Of each rank the number of its host, as hosts first appear: 0, 0, 1, 1. Any thread.
  std::vector<std::int32_t> hosts() const;
  // How data reaches the others: "shm to rank 1; tcp to rank 2"; and one of them: "shm".
  std::string describe_links() const;
  std::string describe_link(Rank rank) const;
  // How a collective on a buffer of `count` elements runs here, and why.
  Explanation explain(Collective collective, DType dtype, std::size_t count) const;

 private:
  friend class SymmetricMemory;

  Work all_reduce_views(const ConstView& input, const View& output,
                        const AllReduceOptions& options);
  Work reduce_views(const ConstView& input, const View& output, const ReduceOptions& options);
  Work reduce_scatter_views(const ConstView& input, const View& output,
                            const ReduceScatterOptions& options);
  Work all_gather_views(const ConstView& input, const View& output,
                        const AllGatherOptions& options);
  Work gather_views(const ConstView& input, const View& output, const GatherOptions& options);
  Work scatter_views(const ConstView& input, const View& output, const ScatterOptions& options);
  Work all_to_all_views(const ConstView& input, const View& output, const AllToAllOptions& options);
  Work broadcast_view(const View& data, const BroadcastOptions& options);
  Work send_view(const ConstView& data, const SendOptions& options);
  Work recv_view(const View& data, const RecvOptions& options);

  Work submit(std::vector<communicator::CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  Work submit(communicator::CollectiveCall&& call, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  void check_timeout(const std::optional<Duration>& timeout) const;
  // Collective; of what making groups needs. No caller's collective fits it.
  void set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all);
  [[noreturn]] void refuse_lists(const std::vector<Rank>& own);

  std::unique_ptr<communicator::Backend> backend_;
  const Rank rank_;
  const int size_;
  const std::uint64_t serial_;
  std::uint64_t groups_made_ = 0;
};

}  // namespace stretto
