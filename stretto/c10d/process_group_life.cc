// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group comes into being and ends.

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/util/ScopeExit.h>

#include "stretto/base/printable.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/store.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/process_group.h"
#include "stretto/c10d/stores.h"
#include "stretto/c10d/without_gil.h"
#include "stretto/job/join.h"

namespace stretto::c10d_backend {
namespace {

thread_local int hooks_of_thread = 0;  // In which it is at the moment.

// The groups that live.
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

size_t next_number_in_process() {
  static std::atomic<size_t> next = 0;
  return next++;
}

Groups& groups() {
  static auto* const all = new Groups;  // Outlives what other static objects do at the end.
  return *all;
}

template <class... Args>
c10::intrusive_ptr<ProcessGroupStretto> make_group(Args&&... args) {
  auto group = c10::make_intrusive<ProcessGroupStretto>(std::forward<Args>(args)...);
  groups().add(group);
  return group;
}

// Where operations work on copies of tensors on a device; null: on the tensors themselves.
std::shared_ptr<DeviceBlocks> blocks_for(const std::shared_ptr<Communicator>& communicator,
                                         const std::shared_ptr<DeviceBlocks>& on_host) {
  if (!communicator->device()) return on_host;
  if (!communicator->maps_devices()) return nullptr;
  return std::make_shared<DeviceBlocks>(communicator, DeviceBlocks::Place::device);
}

// For the groups that come of this one: in each, this process may be another rank.
OptionsStretto with_device_of(const Communicator& communicator, OptionsStretto options) {
  if (communicator.device()) options.join.device = communicator.device();
  return options;
}

template <class Number>
std::vector<Number> numbers_to(int size) {
  std::vector<Number> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), Number(0));
  return numbers;
}

// The numbers in PyTorch's job of the ranks of a group, if `options` has those of this group.
std::vector<uint64_t> global_ranks_of(const ::c10d::Backend::Options& options, int size) {
  const std::vector<uint64_t>& ranks = options.global_ranks_in_group;
  return ranks.size() == static_cast<std::size_t>(size) ? ranks : numbers_to<uint64_t>(size);
}

// What else must be known of the numbers by which failures name the ranks of a group.
std::string note_of(const std::vector<int>& named, const std::vector<uint64_t>& global) {
  const auto size = static_cast<int>(named.size());
  if (named != numbers_to<int>(size)) {
    return fmt::format(
        "(Ranks have the numbers that they had before shrink_group(): what were {} are ranks 0 to "
        "{} of this group.)",
        fmt::join(named, ", "), size - 1);
  }
  if (global == numbers_to<uint64_t>(size)) return {};
  return fmt::format("(The ranks of this group are, in the job: {}.)", fmt::join(global, ", "));
}

// Before that: which group it is, if the program has described it.
std::string note_of(const std::string& description, const std::string& note) {
  constexpr std::size_t kMost = 64;
  const bool is_given = description != "undefined" && description != "default_pg";
  if (description.empty() || !is_given) return note;
  return fmt::format("(This is the group \"{}\".){}{}", printable(description.substr(0, kMost)),
                     note.empty() ? "" : " ", note);
}

}  // namespace

c10::intrusive_ptr<ProcessGroupStretto> ProcessGroupStretto::create(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
    const OptionsStretto& options) {
  if (auto communicator = take_communicator(*store)) {  // Of those that have met already.
    return make_group(std::move(communicator), numbers_to<int>(size), options);
  }
  JoinOptions ours = options.join;
  ours.timeout = ours.join_timeout = duration_of(options.timeout);
  auto communicator = for_torch([&] {
    const std::shared_ptr<bootstrap::Store> whole = store_of(store);
    // Who destroys a group and makes it again comes to the same store with the same names. All
    // ranks of groups of one size have done so equally often; PyTorch may give the same name to
    // groups of several sizes.
    const std::string rounds = fmt::format("stretto/rounds/{}/{}", size, rank);
    const std::int64_t round = whole->add(rounds, 1, Deadline::after(ours.join_timeout)).or_throw();
    const std::string prefix = fmt::format("stretto/{}/{}/", size, round);
    auto part = std::make_shared<bootstrap::PrefixStore>(prefix, whole);
    return make_communicator(std::move(part), rank, size, ours);
  });
  return make_group(std::move(communicator), numbers_to<int>(size), options);
}

ProcessGroupStretto::ProcessGroupStretto(std::unique_ptr<Communicator> communicator,
                                         std::vector<int> named_ranks,
                                         const OptionsStretto& options)
    : Backend(communicator->rank().value(), communicator->size()),
      named_ranks_(std::move(named_ranks)),
      global_ranks_(global_ranks_of(options, getSize())),
      number_in_process_(next_number_in_process()),
      options_(with_device_of(*communicator, options)),
      timeout_(options.timeout),
      shared_(std::make_shared<Shared>()),
      communicator_(std::move(communicator)),
      host_blocks_(std::make_shared<DeviceBlocks>(communicator_, DeviceBlocks::Place::host)),
      blocks_(blocks_for(communicator_, host_blocks_)) {
  shared_->communicator = communicator_;
  const auto own = static_cast<std::size_t>(getRank());
  shared_->job_rank = static_cast<int>(global_ranks_[own]);
  shared_->named_rank = named_ranks_[own];
  shared_->rank_note = note_of(named_ranks_, global_ranks_);
  init();
}

ProcessGroupStretto::~ProcessGroupStretto() { shutdown(); }

void ProcessGroupStretto::shut_down_all(const std::string& reason) {
  for (const auto& each : groups().take()) {
    const auto alive = each.lock();
    if (alive == nullptr) continue;
    if (!reason.empty() && alive->owner_process_.is_here()) alive->shared_->abort(reason);
    alive->close();
  }
}

std::shared_ptr<Communicator> ProcessGroupStretto::communicator() const {
  const MutexLock guard(mutex_);
  if (communicator_ == nullptr) {
    throw_for_torch(status_of(StatusCode::aborted,
                              "rank {}: this process group has been shut down; make another by "
                              "init_process_group() or new_group()",
                              getRank()));
  }
  return communicator_;
}

void ProcessGroupStretto::shutdown() {
  const WithoutGil without_gil;
  // In a forked child nobody moves them along, and a lock may be that of a thread it does not have.
  if (owner_process_.is_here()) end_pending(true);
  close();
}

void ProcessGroupStretto::close() {
  const WithoutGil without_gil;
  std::shared_ptr<Communicator> last;
  decltype(batches_) batches;  // Their works end without the lock.
  {
    const MutexLock guard(mutex_);
    last = std::move(communicator_);
    batches.swap(batches_);
  }
  batches.clear();
  last.reset();  // Operations in flight end with it.
  host_blocks_->close();
  if (blocks_ != nullptr) blocks_->close();
  shared_->driver.stop();
}

void ProcessGroupStretto::abort() { shared_->abort("has called abort() of the process group"); }

c10::intrusive_ptr<::c10d::Backend> ProcessGroupStretto::split(
    const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  return create(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                options_of_part(options, ranks));
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupStretto::merge(
    const c10::intrusive_ptr<::c10d::Store>& store, const c10::intrusive_ptr<Options>& options,
    const int& rank, const int& size) {
  return create(store, rank, size, options_of_part(options, {}));
}

OptionsStretto ProcessGroupStretto::options_of_part(const c10::intrusive_ptr<Options>& given,
                                                    const std::vector<int>& ranks) {
  const auto general = given != nullptr ? given : getBackendOptions();
  const auto* const ours = dynamic_cast<const OptionsStretto*>(general.get());
  OptionsStretto options(ours != nullptr ? ours->join : options_.join, *general);
  options.join.device = options_.join.device;
  options.global_ranks_in_group.clear();
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "stretto: rank ", rank, " is not one of the ",
                      getSize(), " ranks of this group");
    options.global_ranks_in_group.push_back(global_ranks_[rank]);
  }
  return options;
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupStretto::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int /*flags*/,
    const c10::intrusive_ptr<Options>& options) {
  std::vector<Rank> excluded;
  std::vector<int> left;
  std::vector<int> left_named;
  for (int rank = 0; rank < getSize(); ++rank) {
    const int named = named_ranks_[rank];
    const bool out =
        std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) != ranks_to_exclude.end();
    if (out) {
      excluded.push_back(named);
    } else {
      left.push_back(rank);
      left_named.push_back(named);
    }
  }
  auto smaller = for_torch([&] { return communicator()->shrink(excluded); });
  if (static_cast<std::size_t>(smaller->size()) != left.size()) {
    throw_for_torch(status_of(
        StatusCode::peer_lost,
        "rank {}: shrink: {} ranks should be left, and {} are: some that were not to be excluded "
        "are lost too; name them as well and call shrink_group() again",
        getRank(), left.size(), smaller->size()));
  }
  return make_group(std::move(smaller), std::move(left_named), options_of_part(options, left));
}

void ProcessGroupStretto::monitoredBarrier(const ::c10d::BarrierOptions& options,
                                           bool /*wait_all_ranks*/) {
  // All ranks that are missing are named anyway.
  const WithoutGil without_gil;
  OperationTensors held = tensors_of_operation();
  const Start what{.type = ::c10d::OpType::BARRIER,
                   .title = "stretto:monitored_barrier",
                   .timeout = options.timeout,
                   .tensors = held,
                   .blocks = true};
  start(what, [&](Communicator& communicator, Duration timeout) {
    try {
      communicator.monitored_barrier({.timeout = timeout});
    } catch (const Timeout& late) {  // With Gloo's words, which programs may look for.
      throw Timeout(late.status().with_context(
          fmt::format("Rank {} timed out in monitoredBarrier", getRank())));
    }
    return stretto::Work();
  });
}

communicator::FlightEntry ProcessGroupStretto::make_entry(const Start& what) {
  communicator::FlightEntry entry;
  entry.operation = flight_name(what.type);
  if (::c10d::isP2POp(what.type)) {
    (what.type == ::c10d::OpType::SEND ? entry.message_to : entry.message_from) = what.peer;
  }
  entry.inputs = flight_tensors(what.inputs);
  entry.outputs = flight_tensors(what.results);
  entry.timeout = what.timeout == ::c10d::kUnsetTimeout ? timeout_.load() : what.timeout;
  const MutexLock guard(mutex_);
  // PyTorch names a group after it has made its backend, and before it hands it out.
  if (flight_group_ == nullptr) {
    shared_->rank_note = note_of(getGroupDesc(), shared_->rank_note);
  }
  if (flight_group_ == nullptr || flight_group_->id != getGroupUid() ||
      flight_group_->name != getGroupDesc()) {
    ObservedGroup group{number_in_process_, getGroupUid(), getGroupDesc(), {}, getRank()};
    for (const uint64_t rank : global_ranks_) group.ranks.emplace_back(static_cast<int>(rank));
    flight_group_ = std::make_shared<const ObservedGroup>(std::move(group));
  }
  entry.group = flight_group_;
  return entry;
}

uint64_t ProcessGroupStretto::record(communicator::FlightEntry entry) {
  // Read once: other threads count as well.
  const bool is_transfer = entry.message_to || entry.message_from;
  const uint64_t number = ++(is_transfer ? transfers_ : collectives_);
  entry.collective_number = is_transfer ? collectives_.load() : number;
  entry.message_number = is_transfer ? number : transfers_.load();
  return flight_entries().record(std::move(entry));
}

void ProcessGroupStretto::startCoalescing() {
  auto batch = c10::make_intrusive<CoalescedWork>(getRank());
  const MutexLock guard(mutex_);
  batches_[std::this_thread::get_id()].swap(batch);  // What was there ends without the lock.
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
  TORCH_CHECK(!batch.empty(), "endCoalescing() without startCoalescing() on this thread");
  batch_count_ = batches_.size();
  return batch.mapped();
}

::c10d::ErrorType ProcessGroupStretto::getError() {
  const MutexLock guard(shared_->mutex);
  if (shared_->failure.ok()) return ::c10d::ErrorType::SUCCESS;
  if (shared_->failure.code() == StatusCode::timeout) return ::c10d::ErrorType::TIMEOUT;
  return shared_->failure.rank() ? ::c10d::ErrorType::REMOTE_ERROR : ::c10d::ErrorType::COMM_ERROR;
}

void ProcessGroupStretto::registerOnCompletionHook(
    std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(onCompletionHook_ == nullptr, "this process group has a completion hook already");
  // It may hold a function of Python's, which only who holds Python's lock may copy.
  auto held = std::make_shared<decltype(onCompletionHook_)>(std::move(hook));
  onCompletionHook_ = [held](std::shared_ptr<::c10d::WorkInfo> work) { (*held)(std::move(work)); };
}

void ProcessGroupStretto::tell_hook(const std::shared_ptr<InFlight>& operation,
                                    ::c10d::OpType type) {
  const auto started = std::chrono::steady_clock::now();
  operation->then([due = due_hooks_->add(), hook = onCompletionHook_, type,
                   number = operation->number, started](const Status&) {
    const auto ended = std::chrono::steady_clock::now();
    const auto leave = c10::make_scope_exit([] { --hooks_of_thread; });
    ++hooks_of_thread;
    hook(std::make_shared<::c10d::WorkInfo>(type, number, started, ended, ended - started));
  });
}

std::shared_ptr<void> ProcessGroupStretto::DueHooks::add() {
  const MutexLock lock(mutex_);
  ++count_;
  return {nullptr, [self = shared_from_this()](void*) {
            const MutexLock guard(self->mutex_);
            --self->count_;
            self->changed_.notify_all();
          }};
}

void ProcessGroupStretto::DueHooks::wait() {
  MutexLock lock(mutex_);
  while (count_ > 0) changed_.wait(lock.native());
}

void ProcessGroupStretto::note_pending(const std::shared_ptr<InFlight>& operation,
                                       ::c10d::OpType type) {
  constexpr std::size_t kLeast = 32;  // So that looking through them costs each little.
  std::vector<std::shared_ptr<InFlight>> looked_at;  // Tensors may go with it: without the lock.
  const MutexLock guard(mutex_);
  if (pending_.size() >= pending_limit_) {
    std::erase_if(pending_, [&](const Pending& each) {
      const auto& alive = looked_at.emplace_back(each.operation.lock());
      return alive == nullptr || alive->has_ended();
    });
    pending_limit_ = std::max(kLeast, 2 * pending_.size());
  }
  pending_.push_back({operation, !::c10d::isP2POp(type)});
}

void ProcessGroupStretto::end_pending(bool only_collectives) {
  std::vector<Pending> pending;
  {
    const MutexLock guard(mutex_);
    pending.swap(pending_);
  }
  for (const Pending& each : pending) {
    if (only_collectives && !each.is_collective) continue;
    if (const auto alive = each.operation.lock()) alive->end();
  }
}

void ProcessGroupStretto::waitForPendingWorks() {
  const WithoutGil without_gil;
  end_pending(false);
  if (hooks_of_thread == 0) due_hooks_->wait();  // A hook does not wait for itself.
}

}  // namespace stretto::c10d_backend
