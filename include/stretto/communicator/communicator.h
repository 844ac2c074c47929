// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
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
class Observation;
class ScheduledBackend;
struct CollectiveCall;
}  // namespace communicator

// One rank's handle to a group of ranks that move and reduce data together.
//
// Every operation is asynchronous: the call returns a Work and waits for no other rank. With
// `.wait()` right behind it, an operation blocks and runs on the calling thread. On buffers of up
// to kInlineBytes (1 MiB), the call itself runs the operation as far as the other ranks have come,
// which takes a few hundred microseconds at most. A call only begins a larger operation. With a
// progress thread (has_progress_thread()) that takes some tens of microseconds, most of them to
// wake that thread; without one, the call works on up to kInlineBytes. If another thread is making
// progress, the call waits some tenths of a millisecond for it. The first operation of its kind and
// size takes longer: the call plans it, and may prove its schedule (STRETTO_VERIFY). The rest of an
// operation is done by waiting threads, by the progress thread and, a little at a time, by poll(),
// Work::done() and, twice a second, the heartbeat. So without a progress thread, a program that
// neither waits nor polls delays the other ranks.
//
// All ranks of the group must call the same collectives in the same order; ranks that disagree get
// a Mismatch error that shows both calls. Any thread may submit operations; their order in the
// group is the order of submission. Wrong arguments throw InvalidArgument before anything is sent.
// If an operation fails because of a peer, the communicator has failed: every later call repeats
// this first failure. Errors, and Status::rank(), name ranks by their numbers in the job; only
// errors about wrong arguments or differing lists of new_group() use the group's own numbers.
//
// A buffer is a View, or a vector, array, span or registered Buffer of a type that has a dtype
// (base/dtype.h). Input and output have the same dtype. An input is not changed unless it is also
// the output ("in place"). If one of the two is longer, the shorter one must then be exactly this
// rank's share of the longer one. Other overlaps throw InvalidArgument. A collective does not touch
// the output of a rank to which it gives nothing; that rank may pass an empty view.
//
// After a failure the content of outputs is undefined, and a peer that was stalled in the operation
// may still write into registered outputs when it goes on: free them, do not use them again.
//
// Destroying a communicator ends it for this rank only, without waiting for the others; operations
// in flight fail with Aborted. Communicators of one job may be destroyed in any order. If an
// exception that unwinds the stack destroys a communicator, the other ranks are told: at once, by
// Aborted, if operations are in flight (see Work), otherwise when they wait for this rank.
class Communicator final {
 public:
  // For the library; programs get communicators from join() and the like.
  explicit Communicator(std::unique_ptr<communicator::ScheduledBackend> backend);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  // The number in the job of a rank of this communicator, by which errors name it. Throws
  // InvalidArgument if there is no such rank. Any thread.
  Rank job_rank(Rank rank) const;
  // Never 0; no other communicator that this process has ever made has the same.
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
  // Ends when all have called it and this rank's earlier collectives have ended (NCCL's: begun).
  Work barrier(const BarrierOptions& options = {});
  // Slower, and may end before earlier collectives. Blocks. If rank 0 is alive, Timeout names all
  // ranks that have not come.
  void monitored_barrier(const BarrierOptions& options = {});

  // Lists of buffers of any dtypes and sizes, with one Work; all ranks pass lists of the same
  // shape. An entry must not write to memory of another entry; this is not checked. Small buffers
  // of one dtype travel together: one latency instead of many, at the cost of two copies.
  Work all_reduce_coalesced(std::span<const View> list, const AllReduceOptions& options = {});
  Work broadcast_coalesced(std::span<const View> list, const BroadcastOptions& options = {});
  // One reduce_scatter (all_gather) for each entry, from `inputs[i]` to `outputs[i]`. Nothing is
  // packed: each entry is an operation with its own number, and all are in flight at once.
  Work reduce_scatter_coalesced(std::span<const ConstView> inputs, std::span<const View> outputs,
                                const ReduceScatterOptions& options = {});
  Work all_gather_coalesced(std::span<const ConstView> inputs, std::span<const View> outputs,
                            const AllGatherOptions& options = {});

  // The same collectives with a separate buffer for each rank's share, instead of one buffer that
  // holds all shares. Each share is as long as its buffer. The data of a list is copied once more.
  // Where only the root has a list, the other ranks must give `counts` unless all shares are as
  // long as their own. Ranks that have a list do not use `counts`.
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
  // of one tag, also those from any rank, take messages in the order in which the receives were
  // posted. Messages from different ranks have no order.
  template <InputBuffer B>
  Work send(B&& data, const SendOptions& options) {
    return exchange("send", Transfer::send(data, options.to, options.tag), options.timeout);
  }
  template <OutputBuffer B>
  Work recv(B&& data, const RecvOptions& options) {
    return exchange("recv", Transfer::recv(data, options.from, options.tag), options.timeout);
  }
  // Starts sends and receives, listed in any order, and returns one Work for all of them.
  Work batch_send_recv(std::span<const Transfer> transfers, const BatchOptions& options = {});

  // Makes a communicator of some of this one's ranks; `ranks[i]` becomes its rank i. All ranks of
  // this communicator call it, in the same order, with the same list; ranks not in the list get
  // null. Blocks until all have agreed; fails if this communicator fails meanwhile.
  std::unique_ptr<Communicator> new_group(std::vector<Rank> ranks,
                                          const GroupOptions& options = {});
  // Makes a communicator of the ranks that name the same color; null for ranks that name none. All
  // ranks of this communicator call it. Blocks and fails as new_group() does.
  std::unique_ptr<Communicator> split(const SplitOptions& options);

  // Makes a communicator of the ranks that are left, in their order, so that these can go on after
  // a failure. No other operation works after the communicator has failed. All ranks that are left
  // must call it. They agree on which ranks are lost, whatever each rank knows and whichever die
  // meanwhile, and all get the same group. Left out are dead ranks, ranks that have destroyed this
  // communicator, and those that any rank names in `excluded` by their numbers in the job, as
  // errors do. If no rank is left out, the new group has the same ranks.
  //
  // Ends this communicator on all ranks: operations in flight fail with Aborted on this rank, and
  // on others if they still need this rank. It can be shrunk again, without the ranks that are left
  // out. Blocks until all others have called shrink(), the group is set up everywhere, and all know
  // that. Throws Timeout, naming the missing ranks; the next call goes on where this one stopped. A
  // rank that is left out gets Aborted at once, naming the rank that has excluded it. If the group
  // cannot be set up, and not because of another death, all ranks get the reason. One thread at a
  // time.
  std::unique_ptr<Communicator> shrink(std::vector<Rank> excluded = {});

  // Zeroed memory that the other ranks of this host can reach, so that collectives on it copy
  // nothing. If no other rank can reach it, it is ordinary memory. Not collective; does not wait
  // for others. It lives as long as the returned object, which may outlive the communicator. Throws
  // OutOfMemory if even a second later it does not fit into what machine and container have left.
  //
  // With `device`, which must be device(): memory there, which the host cannot access. With the
  // backend "cuda" the devices of this host's other ranks map it. With "nccl" it is registered with
  // this communicator's NCCL; in one operation, all buffers of all ranks must lie in such memory,
  // or none. Freeing it blocks until this process's work there has ended; during a capture, it is
  // freed later. Throws InvalidArgument with another backend, or while a CUDA graph captures this
  // thread's stream (StreamGuard) or one that the default stream waits for; else Error.
  Memory allocate_bytes(std::size_t bytes, std::optional<int> device = std::nullopt);
  template <class T>
  Buffer<T> allocate(std::size_t count, std::optional<int> device = std::nullopt) {
    return Buffer<T>(allocate_elements(count, sizeof(T), device), count);
  }

  // What this rank does between operations ("loading data"), for the messages of ranks that wait
  // for it. Empty: nothing special. Holds for all communicators of the job. Any thread.
  void note(std::string_view activity);

  // Lets operations in flight advance on the calling thread, without blocking. Worth calling from
  // long computations when no core is free for a progress thread (see has_progress_thread()).
  void poll();
  bool has_progress_thread() const;

  // The number, in this process, of the device whose memory may hold buffers, too; nothing if
  // buffers must lie in host memory. See JoinOptions::backend. Any thread.
  std::optional<int> device() const;
  // The device that `data` lies on; nothing for host memory, or if device() is nothing. Any thread.
  std::optional<int> device_of(const void* data) const;
  // Whether operations accept the device memory at `data`: that of any device known to the driver
  // of device(), or with the backend "cuda" only memory from allocate(). Any thread.
  bool is_device_memory(const void* data) const;
  bool maps_devices() const;  // Whether device memory must come from allocate(), as with "cuda".

  // Ends the communicator, and all groups made of it, directly or indirectly, by new_group() and
  // split(), on all ranks that can be reached, even if it has failed before. Their operations fail
  // with Aborted and `reason`. A communicator made by shrink() replaces the one that was shrunk,
  // and does not end with it. A rank that has destroyed this communicator is reached through the
  // groups that it shares with other ranks. Local and immediate; waits for nobody. Any thread.
  void abort(const std::string& reason);
  bool has_failed() const;  // New operations then fail with the same reason. Any thread.

  // Tells `observer`, which must not be null, of all operations submitted from now on, also of
  // groups made from now on. Earlier observers stay. Not while other threads use the communicator.
  void observe(std::shared_ptr<OperationObserver> observer);

  // Each rank's host, numbered in the order of first appearance: 0, 0, 1, 1. Any thread.
  std::vector<std::int32_t> hosts() const;
  // How data reaches the other ranks: "shm to rank 1; tcp to rank 2"; or one of them: "shm".
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
  Memory allocate_elements(std::size_t count, std::size_t element_bytes, std::optional<int> device);
  Work exchange(const char* name, const Transfer& one, const std::optional<Duration>& timeout);

  Work submit(std::vector<communicator::CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  Work submit(communicator::CollectiveCall&& call, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  void check_timeout(const std::optional<Duration>& timeout) const;
  void set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all);
  [[noreturn]] void refuse_lists(const std::vector<Rank>& own);

  std::unique_ptr<communicator::ScheduledBackend> backend_;
  const Rank rank_;
  const int size_;
  const std::uint64_t serial_;
  std::uint64_t groups_made_ = 0;
  std::unique_ptr<communicator::Observation> observation_;  // Null: nobody observes.
};

}  // namespace stretto
