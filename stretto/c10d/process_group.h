// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"
#include "stretto/c10d/abort_hooks.h"
#include "stretto/c10d/membership.h"
#include "stretto/c10d/torch_version.h"
#include "stretto/c10d/work.h"
#include "stretto/communicator/communicator.h"
#include "stretto/job/join_options.h"

namespace stretto::c10d_backend {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

// The options of a group; in Python stretto.Options. PyTorch passes them on when it splits a group.
struct OptionsStretto final : ::c10d::Backend::Options {
  explicit OptionsStretto(JoinOptions how, const Options& general = Options("stretto"))
      : Options(general), join(std::move(how)) {}

  JoinOptions join;
};

// The backend "stretto" of torch.distributed: runs collectives of tensors on the CPU and on devices
// by a Communicator of its own. Tensors on devices go by way of the host, unless the group was made
// with the backend "nccl" or "cuda". All functions throw ValueError or DistBackendError. Any
// thread; operations of the group run in the order of the calls.
//
// `override` is missing where not every version of PyTorch from 2.11 on has the function.
class ProcessGroupStretto final : public NewestBackend {
 public:
  // Blocks until ranks 0 to `size` - 1 have met in `store`, at most for the timeout of `options`,
  // which is then that of operations. With `enable_reconfigure`, does not block and makes a group
  // without members, which reconfigure() gives it.
  static c10::intrusive_ptr<ProcessGroupStretto> create(
      const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
      const OptionsStretto& options, bool enable_reconfigure = false);
  // Ends all groups of this process before it exits: no thread of ours may outlive Python. Other
  // ranks are told `reason`, unless it is empty.
  static void shut_down_all(const std::string& reason);
  // Makes a group without members.
  ProcessGroupStretto(c10::intrusive_ptr<::c10d::Store> store, int rank, int size,
                      const OptionsStretto& options);
  ~ProcessGroupStretto() override;

  const std::string getBackendName() const override { return "stretto"; }  // NOLINT: as declared.
  // A copy: ProcessGroup::splitGroup() writes the new group's timeout and name into what it gets.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  Duration timeout() const { return duration_of(timeout_); }
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const { return true; }
  bool supportsReconfigure() const override { return true; }
  bool supportsAbortHooks() const override { return true; }

  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& options) override;
  // `output` is used on the destination only.
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const ::c10d::GatherOptions& options);
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const ::c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& options) override;
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Operations that a thread submits between these two calls begin at once; endCoalescing() returns
  // one Work for all of them.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  // The failure of the members, or, while there are none, of the last ones.
  ::c10d::ErrorType getError() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {}  // Every Work knows its duration anyway.

  // Make new groups of the same kind. The members of split() and merge() meet in `store`. split()
  // returns null on ranks that are not in `ranks`.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<::c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<::c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size);
  // Works after a failure, too: see Communicator::shrink(). Throws if a rank is lost that is not in
  // `ranks_to_exclude`.
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                     const c10::intrusive_ptr<Options>& options);
  // Names this member to the others, as long as the group lives.
  ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  // Gives the group the members whose handles are listed, all of which must call it. Blocks until
  // all have come. Operations in flight fail; on old members that do not call it, those that need
  // this rank do. Works after a failure, too. If it fails itself, the group has no members, and it
  // may be called again. Wrong arguments throw ValueError and change nothing.
  WorkPtr reconfigure(const ReconfigureOptions& options) override;
  // Whether the group has members.
  bool isInitialized() override;
  // A hook is called once for each failure that ends the members' communicator: before abort() ends
  // it, or when the first thread learns of the failure, which other threads may learn of meanwhile.
  // It runs on any thread, and must wait for no operation.
  void registerAbortHook(int64_t hook_id, AbortHook hook) override;
  void unregisterAbortHook(int64_t hook_id) override;
  void abort() override;
  // Collectives in flight end first, as they do with PyTorch's own backends: a program may wait for
  // the last ones by this call. Sends and receives, to which nobody may ever answer, are ended.
  void shutdown() override;

  // Memory that the other ranks of this host have mapped.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT: as declared.
  std::unordered_map<std::string, uint64_t> getMemoryStats();

  // For operations that PyTorch does not have: the communicator, and the tensors of its operations.
  // They throw if the group has no members.
  std::shared_ptr<Communicator> communicator() const { return members()->communicator; }
  void run(c10::function_ref<void(Communicator&)> call) const { members()->run(call); }
  using Use = OperationTensors::Use;
  MemberTensors tensors_of_operation(Use use = Use::moved) const;
  // For messages, which go by way of the host whatever the communicator does on devices.
  MemberTensors tensors_of_message() const;

 private:
  struct Start {
    ::c10d::OpType type;
    const char* title;  // "stretto:", and what PyTorch's tool for flight records calls it.
    std::chrono::milliseconds timeout;  // kUnsetTimeout: the group's.
    MemberTensors& tensors;             // Moved from if the operation goes on.
    at::TensorList inputs = {};         // For the profiler and the flight recorder.
    at::TensorList results = {};
    int peer = -1;        // Of a send or receive; -1: any.
    bool blocks = false;  // It has ended when `submit` returns.
  };
  // Submits by `submit`, and makes a Work of what it returns.
  using Submit = c10::function_ref<stretto::Work(Communicator&, Duration timeout)>;
  WorkPtr start(const Start& what, Submit submit);
  // Sets `record_number` to the entry of the flight recorder, if any, that is to be told of the
  // end.
  stretto::Work submit_recorded(const Start& what, uint64_t& record_number, Submit submit);
  communicator::FlightEntry make_entry(const Start& what);
  // A group whose members are the ranks of `communicator`.
  static c10::intrusive_ptr<ProcessGroupStretto> make(
      const c10::intrusive_ptr<::c10d::Store>& store, std::unique_ptr<Communicator> communicator,
      std::vector<int> named_ranks, const OptionsStretto& options);
  // Throws if the group has been shut down.
  void set_members(std::unique_ptr<Communicator> communicator, std::vector<int> named_ranks,
                   std::vector<uint64_t> global_ranks);
  // Throws if there are none.
  std::shared_ptr<Membership> members() const;
  // What operations of the members share, or of the last members; null if there were none yet.
  std::shared_ptr<Shared> shared() const;
  // The options of a group that is made from this one: `given`, or those of this group.
  OptionsStretto options_of_part(const c10::intrusive_ptr<Options>& given,
                                 std::vector<uint64_t> global_ranks);
  // Takes the members out for reconfigure(), if there are any. Throws if it must not begin.
  std::shared_ptr<Membership> take_members(int64_t uuid);
  void end_reconfigured(std::shared_ptr<Membership> members);
  // The batch of the calling thread, which alone uses it; null if there is none.
  c10::intrusive_ptr<CoalescedWork> batch_of_thread();
  void tell_hook(const std::shared_ptr<InFlight>& operation, ::c10d::OpType type,
                 TimePoint started);
  void end_pending(bool only_collectives);
  // Ends all operations. The other ranks are told `reason`, as "has called abort()".
  void abort_because(const std::string& reason);
  // Ends what is in flight, and waits for nobody.
  void close();
  WorkPtr receive(Tensors& tensors, int source, int tag, ::c10d::OpType type);

  const c10::intrusive_ptr<::c10d::Store> store_;
  std::atomic<std::chrono::milliseconds> timeout_;
  // All options but the timeout. This member has to lie where Gloo's backend has its options,
  // behind 16 bytes of other members: PyTorch takes the backend of a group that shrink_group() has
  // made for Gloo's, and DDP reads its options.
  c10::intrusive_ptr<OptionsStretto> options_ STRETTO_GUARDED_BY(mutex_);
  const ReconfigureHandle handle_;
  const OwnerProcess owner_process_;
  const std::shared_ptr<AbortHooks> abort_hooks_ = std::make_shared<AbortHooks>();

  mutable Mutex mutex_;
  // Null before the first reconfigure(), during one, after one has failed, and after shutdown().
  std::shared_ptr<Membership> members_ STRETTO_GUARDED_BY(mutex_);
  std::shared_ptr<Shared> shared_ STRETTO_GUARDED_BY(mutex_);  // See shared().
  // The number of this process in PyTorch's job, as of its first members; names its flight records.
  std::optional<int> job_rank_ STRETTO_GUARDED_BY(mutex_);
  bool is_shut_down_ STRETTO_GUARDED_BY(mutex_) = false;
  bool is_reconfiguring_ STRETTO_GUARDED_BY(mutex_) = false;  // A call is in progress.
  std::set<int64_t> used_uuids_ STRETTO_GUARDED_BY(mutex_);
  // The batches of threads that are between startCoalescing() and endCoalescing().
  std::unordered_map<std::thread::id, c10::intrusive_ptr<CoalescedWork>> batches_
      STRETTO_GUARDED_BY(mutex_);
  std::atomic<std::size_t> batch_count_ = 0;  // Without the lock: how many there are.
  // Calls of the completion hook that have not returned.
  const std::shared_ptr<std::atomic<int>> due_hooks_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace stretto::c10d_backend
