// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The members of a group, and how it gets others.

#include <algorithm>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "stretto/bootstrap/prefix_store.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/process_group.h"
#include "stretto/c10d/reconfigure_handle.h"
#include "stretto/c10d/stores.h"
#include "stretto/c10d/without_gil.h"
#include "stretto/job/job.h"
#include "stretto/job/join_job.h"

namespace stretto::c10d_backend {
namespace {

[[noreturn]] void throw_shut_down(int rank) {
  throw_for_torch(status_of(StatusCode::aborted,
                            "rank {}: this process group has been shut down; make another by "
                            "init_process_group() or new_group()",
                            rank));
}

// The members meet in the whole store, under keys that nobody else uses. The part of the store that
// PyTorch gives to a group would not do: it has the same name on all ranks only if they have made
// equally many groups. A launcher knows none of the members by the ranks that they have here.
std::unique_ptr<Communicator> meet(const c10::intrusive_ptr<::c10d::Store>& store,
                                   const MeetingPlace& place, JoinOptions options) {
  const Deadline deadline = Deadline::after(options.join_timeout);
  auto shared = place.tcp_server.empty()
                    ? store_of(whole_of(store))
                    : connect_tcp_store(place.tcp_server, options.join_timeout);
  options.join_timeout = deadline.remaining();
  const Environment& environment = job::environment_of(options);
  Result<job::Job> job =
      job::given_job(std::make_shared<bootstrap::PrefixStore>(place.prefix, std::move(shared)),
                     place.rank, place.size, options, environment);
  if (job.ok()) job->launcher_ranks.assign(static_cast<std::size_t>(place.size), -1);
  return job::join_job(job, options).or_throw();
}

}  // namespace

std::shared_ptr<Membership> ProcessGroupStretto::members() const {
  const MutexLock guard(mutex_);
  if (members_ != nullptr) return members_;
  if (is_shut_down_) throw_shut_down(getRank());
  throw_for_torch(status_of(StatusCode::aborted,
                            "rank {}: this process group has no members: call reconfigure() on all "
                            "that are to be, with a fresh uuid and their handles",
                            getRank()));
}

std::shared_ptr<Shared> ProcessGroupStretto::shared() const {
  const MutexLock guard(mutex_);
  return shared_;
}

bool ProcessGroupStretto::isInitialized() {
  const MutexLock guard(mutex_);
  return members_ != nullptr;
}

MemberTensors ProcessGroupStretto::tensors_of_operation(Use use) const {
  const std::shared_ptr<Membership> now = members();
  return {now, now->blocks, use};
}

MemberTensors ProcessGroupStretto::tensors_of_message() const {
  const std::shared_ptr<Membership> now = members();
  return {now, now->host_blocks, Use::moved};
}

uint64_t ProcessGroupStretto::getSequenceNumberForGroup() {
  const MutexLock guard(mutex_);
  return members_ == nullptr ? 0 : members_->collectives();
}

void ProcessGroupStretto::set_members(std::unique_ptr<Communicator> communicator,
                                      std::vector<int> named_ranks,
                                      std::vector<uint64_t> global_ranks) {
  auto members = std::make_shared<Membership>(std::move(communicator), std::move(named_ranks),
                                              std::move(global_ranks), abort_hooks_);
  std::shared_ptr<Shared> shared = members->shared;  // The old one is freed without the lock.
  const MutexLock guard(mutex_);
  if (is_shut_down_) throw_shut_down(getRank());
  set_rank_and_size(members->rank(), members->size());
  // Keeps the device for later members, and for groups that are made from this one: this process
  // may be another rank there.
  if (const auto device = members->communicator->device()) options_->join.device = device;
  if (!job_rank_) job_rank_ = shared->job_rank;
  shared->job_rank = *job_rank_;
  shared_.swap(shared);
  members_ = std::move(members);
}

WorkPtr ProcessGroupStretto::reconfigure(const ReconfigureOptions& options) {
  const WithoutGil without_gil;
  const MeetingPlace place = meeting_place(handle_, options);
  const auto given = options.timeout.value_or(::c10d::kUnsetTimeout);
  const Duration limit = given == ::c10d::kUnsetTimeout ? timeout() : duration_of(given);
  TORCH_CHECK_VALUE(limit >= Duration::zero(), "reconfigure: a timeout of ", seconds(limit),
                    " s is negative");
  std::shared_ptr<Membership> old = take_members(options.uuid);
  const auto done = c10::make_scope_exit([this] {
    const MutexLock guard(mutex_);
    is_reconfiguring_ = false;
  });
  if (old != nullptr) end_reconfigured(std::move(old));
  JoinOptions ours = options_of_part(nullptr, {}).join;
  ours.timeout = timeout();
  ours.join_timeout = limit;
  PendingWorks::drive_all_but(nullptr);
  auto communicator = for_torch([&] {
    try {
      return meet(store_, place, ours);
    } catch (const Timeout& late) {
      throw Timeout(status_of(
          StatusCode::timeout,
          "reconfigure with the uuid {}: {}. All members must call it, with the same uuid and the "
          "same handles, in the same order if they are a list",
          options.uuid, late.status().message()));
    }
  });
  set_members(std::move(communicator), numbers_to<int>(place.size),
              numbers_to<uint64_t>(place.size));
  return c10::make_intrusive<CoalescedWork>(place.rank);  // Without parts: it has ended.
}

std::shared_ptr<Membership> ProcessGroupStretto::take_members(int64_t uuid) {
  TORCH_CHECK_VALUE(owner_process_.is_here(),
                    "reconfigure: this process was forked from the one that has made this group; "
                    "make another by init_process_group()");
  const MutexLock guard(mutex_);
  if (is_shut_down_) throw_shut_down(getRank());
  TORCH_CHECK_VALUE(!is_reconfiguring_,
                    "reconfigure: another thread is reconfiguring this group; wait for its end");
  TORCH_CHECK_VALUE(used_uuids_.insert(uuid).second, "reconfigure: the uuid ", uuid,
                    " was already used by this group; pass a fresh one on all members");
  is_reconfiguring_ = true;
  return std::move(members_);
}

// Tells other ranks of the end only if they may wait for this one: if an operation is in flight
// here, or if a call in progress keeps the members or the communicator. Other ranks can end
// operations that have ended here without it.
void ProcessGroupStretto::end_reconfigured(std::shared_ptr<Membership> members) {
  const bool is_in_flight =
      std::ranges::any_of(members->shared->pending.take(/*only_collectives=*/false),
                          [](const auto& operation) { return !operation->try_end(); });
  members->shared->are_hooks_due = false;
  if (is_in_flight || members.use_count() > 1 || members->communicator.use_count() > 1) {
    members->shared->abort("has called reconfigure() with operations in flight");
  }
  Membership::end(std::move(members));
}

void ProcessGroupStretto::registerAbortHook(int64_t hook_id, AbortHook hook) {
  abort_hooks_->set(hook_id, std::move(hook));
}

void ProcessGroupStretto::unregisterAbortHook(int64_t hook_id) { abort_hooks_->remove(hook_id); }

}  // namespace stretto::c10d_backend
