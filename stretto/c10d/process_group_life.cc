// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group comes into being and ends.

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <c10/util/ScopeExit.h>

#include "stretto/c10d/errors.h"
#include "stretto/c10d/process_group.h"
#include "stretto/c10d/reconfigure_handle.h"
#include "stretto/c10d/stores.h"
#include "stretto/c10d/without_gil.h"
#include "stretto/job/join_job.h"

namespace stretto::c10d_backend {
namespace {

thread_local int hooks_of_thread = 0;  // Completion hooks that this thread is in.

// The living groups of this process.
class Groups {
 public:
  void add(const c10::intrusive_ptr<ProcessGroupStretto>& group) {
    const MutexLock guard(mutex_);
    std::erase_if(groups_, [](const auto& each) { return each.expired(); });
    groups_.emplace_back(group);
  }
  std::vector<c10::weak_intrusive_ptr<ProcessGroupStretto>> take() {
    const MutexLock guard(mutex_);
    return std::exchange(groups_, {});
  }

 private:
  Mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<ProcessGroupStretto>> groups_ STRETTO_GUARDED_BY(mutex_);
};

Groups& groups() {
  static auto* const all = new Groups;  // Never destroyed: static objects use it at exit.
  return *all;
}

c10::intrusive_ptr<ProcessGroupStretto> make_without_members(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
    const OptionsStretto& options) {
  auto group = c10::make_intrusive<ProcessGroupStretto>(store, rank, size, options);
  groups().add(group);
  return group;
}

// The numbers of a group's ranks in PyTorch's job if `options` has them for this group, else 0 to
// `size` - 1.
std::vector<uint64_t> global_ranks_of(const ::c10d::Backend::Options& options, int size) {
  const std::vector<uint64_t>& ranks = options.global_ranks_in_group;
  return ranks.size() == static_cast<std::size_t>(size) ? ranks : numbers_to<uint64_t>(size);
}

}  // namespace

c10::intrusive_ptr<ProcessGroupStretto> ProcessGroupStretto::create(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
    const OptionsStretto& options, bool enable_reconfigure) {
  if (enable_reconfigure) {
    (void)take_communicator(*store);  // No other group is to get it.
    return make_without_members(store, rank, size, options);
  }
  if (auto communicator = take_communicator(*store)) {  // Its members have met already.
    return make(store, std::move(communicator), numbers_to<int>(size), options);
  }
  JoinOptions ours = options.join;
  ours.timeout = ours.join_timeout = duration_of(options.timeout);
  PendingWorks::drive_all_but(nullptr);
  auto communicator = for_torch([&] {
    // A program that destroys a group and makes it again comes to the same store with the same
    // names.
    return job::join_in_rounds(store_of(store), rank, size, ours);
  });
  return make(store, std::move(communicator), numbers_to<int>(size), options);
}

c10::intrusive_ptr<ProcessGroupStretto> ProcessGroupStretto::make(
    const c10::intrusive_ptr<::c10d::Store>& store, std::unique_ptr<Communicator> communicator,
    std::vector<int> named_ranks, const OptionsStretto& options) {
  const int size = communicator->size();
  auto group = make_without_members(store, communicator->rank().value(), size, options);
  group->set_members(std::move(communicator), std::move(named_ranks),
                     global_ranks_of(options, size));
  return group;
}

ProcessGroupStretto::ProcessGroupStretto(c10::intrusive_ptr<::c10d::Store> store, int rank,
                                         int size, const OptionsStretto& options)
    : NewestBackend(rank, size),
      store_(std::move(store)),
      timeout_(options.timeout),
      options_(c10::make_intrusive<OptionsStretto>(options)),
      handle_(new_handle(store_)) {
  init();
}

ProcessGroupStretto::~ProcessGroupStretto() { shutdown(); }

c10::intrusive_ptr<::c10d::Backend::Options> ProcessGroupStretto::getBackendOptions() {
  const MutexLock guard(mutex_);
  auto options = c10::make_intrusive<OptionsStretto>(*options_);
  options->timeout = timeout_;
  return options;
}

void ProcessGroupStretto::shut_down_all(const std::string& reason) {
  for (const auto& each : groups().take()) {
    const auto alive = each.lock();
    if (alive == nullptr) continue;
    if (!reason.empty() && alive->owner_process_.is_here()) alive->abort_because(reason);
    alive->close();
  }
}

void ProcessGroupStretto::shutdown() {
  const WithoutGil without_gil;
  // In a forked child nobody moves operations along, and a lock may be held by a thread of its
  // parent.
  if (owner_process_.is_here()) end_pending(true);
  close();
}

void ProcessGroupStretto::close() {
  const WithoutGil without_gil;
  std::shared_ptr<Membership> last;
  decltype(batches_) batches;  // Their works end without the lock.
  {
    const MutexLock guard(mutex_);
    is_shut_down_ = true;
    last = std::move(members_);
    batches.swap(batches_);
  }
  batches.clear();
  if (last != nullptr) Membership::end(std::move(last));
}

void ProcessGroupStretto::abort() { abort_because("has called abort() of the process group"); }

void ProcessGroupStretto::abort_because(const std::string& reason) {
  if (const std::shared_ptr<Shared> alive = shared()) alive->abort(reason);
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupStretto::split(
    const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  std::shared_ptr<Membership> whole = members();
  const auto own = std::find(ranks.begin(), ranks.end(), whole->rank());
  if (own == ranks.end()) return nullptr;
  const OptionsStretto of_part = options_of_part(options, whole->global_ranks_of(ranks));
  whole.reset();  // Else it could not end during the wait for others.
  return create(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                of_part);
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupStretto::merge(
    const c10::intrusive_ptr<::c10d::Store>& store, const c10::intrusive_ptr<Options>& options,
    const int& rank, const int& size) {
  return create(store, rank, size, options_of_part(options, {}));
}

OptionsStretto ProcessGroupStretto::options_of_part(const c10::intrusive_ptr<Options>& given,
                                                    std::vector<uint64_t> global_ranks) {
  const auto inherited = getBackendOptions();
  const auto& general = given != nullptr ? given : inherited;
  const JoinOptions& join = dynamic_cast<const OptionsStretto&>(*inherited).join;
  const auto* const ours = dynamic_cast<const OptionsStretto*>(general.get());
  OptionsStretto options(ours != nullptr ? ours->join : join, *general);
  options.join.device = join.device;
  options.global_ranks_in_group = std::move(global_ranks);
  return options;
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupStretto::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int /*flags*/,
    const c10::intrusive_ptr<Options>& options) {
  const std::shared_ptr<Membership> whole = members();
  std::vector<Rank> excluded;
  std::vector<int> left;
  std::vector<int> left_named;
  for (int rank = 0; rank < whole->size(); ++rank) {
    const int named = whole->named_ranks[rank];
    const bool out =
        std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) != ranks_to_exclude.end();
    if (out) {
      excluded.push_back(named);
    } else {
      left.push_back(rank);
      left_named.push_back(named);
    }
  }
  std::unique_ptr<Communicator> smaller;
  whole->run([&](Communicator& all) { smaller = all.shrink(excluded); });
  if (static_cast<std::size_t>(smaller->size()) != left.size()) {
    throw_for_torch(status_of(
        StatusCode::peer_lost,
        "rank {}: shrink: {} ranks should be left, and {} are: some that were not to be excluded "
        "are lost too; name them as well and call shrink_group() again",
        whole->rank(), left.size(), smaller->size()));
  }
  OptionsStretto of_part = options_of_part(options, whole->global_ranks_of(left));
  of_part.timeout = timeout_;  // stretto.Options has no timeout, and PyTorch sets none here.
  return make(store_, std::move(smaller), std::move(left_named), of_part);
}

void ProcessGroupStretto::monitoredBarrier(const ::c10d::BarrierOptions& options,
                                           bool /*wait_all_ranks*/) {
  // monitored_barrier() names all missing ranks anyway.
  const WithoutGil without_gil;
  MemberTensors held = tensors_of_operation();
  const Start what{.type = ::c10d::OpType::BARRIER,
                   .title = "stretto:barrier",
                   .timeout = options.timeout,
                   .tensors = held,
                   .blocks = true};
  start(what, [&](Communicator& communicator, Duration timeout) {
    try {
      communicator.monitored_barrier({.timeout = timeout});
    } catch (const Timeout& late) {  // In Gloo's words, which programs may look for.
      throw Timeout(late.status().with_context(
          fmt::format("Rank {} timed out in monitoredBarrier", held.rank())));
    }
    return stretto::Work();
  });
}

communicator::FlightEntry ProcessGroupStretto::make_entry(const Start& what) {
  communicator::FlightEntry entry;
  entry.operation = what.title + std::string_view("stretto:").size();
  if (::c10d::isP2POp(what.type)) {
    (what.type == ::c10d::OpType::SEND ? entry.message_to : entry.message_from) = what.peer;
  }
  entry.inputs = flight_tensors(what.inputs);
  entry.outputs = flight_tensors(what.results);
  entry.timeout = what.timeout == ::c10d::kUnsetTimeout ? timeout_.load() : what.timeout;
  entry.group = what.tensors.members->flight_group(getGroupUid(), getGroupDesc());
  return entry;
}

void ProcessGroupStretto::startCoalescing() {
  auto batch = c10::make_intrusive<CoalescedWork>(getRank());
  const MutexLock guard(mutex_);
  batches_[std::this_thread::get_id()].swap(batch);  // The old batch ends without the lock.
  batch_count_ = batches_.size();
}

c10::intrusive_ptr<CoalescedWork> ProcessGroupStretto::batch_of_thread() {
  if (batch_count_ == 0) return nullptr;
  const MutexLock guard(mutex_);
  const auto found = batches_.find(std::this_thread::get_id());
  return found == batches_.end() ? nullptr : found->second;
}

WorkPtr ProcessGroupStretto::endCoalescing() {
  const MutexLock guard(mutex_);
  auto batch = batches_.extract(std::this_thread::get_id());
  TORCH_CHECK_VALUE(!batch.empty(), "endCoalescing() without startCoalescing() on this thread");
  batch_count_ = batches_.size();
  return batch.mapped();
}

::c10d::ErrorType ProcessGroupStretto::getError() {
  const std::shared_ptr<Shared> of_last = shared();
  if (of_last == nullptr) return ::c10d::ErrorType::SUCCESS;
  const MutexLock guard(of_last->mutex);
  const Status failure = of_last->failure;
  if (failure.ok()) return ::c10d::ErrorType::SUCCESS;
  if (failure.code() == StatusCode::timeout) return ::c10d::ErrorType::TIMEOUT;
  return failure.rank() ? ::c10d::ErrorType::REMOTE_ERROR : ::c10d::ErrorType::COMM_ERROR;
}

void ProcessGroupStretto::registerOnCompletionHook(
    std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK_VALUE(onCompletionHook_ == nullptr,
                    "this process group has a completion hook already");
  // It may hold a function of Python's, which may be copied only by a thread that holds the GIL.
  auto held = std::make_shared<decltype(onCompletionHook_)>(std::move(hook));
  onCompletionHook_ = [held](std::shared_ptr<::c10d::WorkInfo> work) { (*held)(std::move(work)); };
}

void ProcessGroupStretto::tell_hook(const std::shared_ptr<InFlight>& operation, ::c10d::OpType type,
                                    TimePoint started) {
  ++*due_hooks_;
  std::shared_ptr<void> due(nullptr, [count = due_hooks_](void*) {
    --*count;
    count->notify_all();
  });
  operation->then([due = std::move(due), hook = onCompletionHook_, type, number = operation->number,
                   started](const Status&) {
    const auto ended = std::chrono::steady_clock::now();
    const auto leave = c10::make_scope_exit([] { --hooks_of_thread; });
    ++hooks_of_thread;
    hook(std::make_shared<::c10d::WorkInfo>(type, number, started, ended, ended - started));
  });
}

void ProcessGroupStretto::end_pending(bool only_collectives) {
  const std::shared_ptr<Shared> of_group = shared();
  if (of_group == nullptr) return;
  PendingWorks::drive_all_but(&of_group->pending);
  for (const auto& operation : of_group->pending.take(only_collectives))
    operation->end_by(Deadline());
}

void ProcessGroupStretto::waitForPendingWorks() {
  const WithoutGil without_gil;
  end_pending(false);
  if (hooks_of_thread > 0) return;  // A hook does not wait for itself.
  while (const int due = *due_hooks_) due_hooks_->wait(due);
}

}  // namespace stretto::c10d_backend
