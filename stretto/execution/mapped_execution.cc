// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/mapped_execution.h"

#include <sched.h>

#include <cstring>
#include <type_traits>

#include "stretto/base/fetch_to_write.h"
#include "stretto/base/log.h"
#include "stretto/execution/told_shares.h"

namespace stretto::execution {
namespace {

// A rank that copies from another's memory is done in a fraction of a millisecond, or two if pages
// have to be found, unless it is stopped.
constexpr std::chrono::seconds kLastCopyTime(1);
// A device ends the work of an operation soon after the work that the program had begun before,
// which may wait for something that never comes.
constexpr std::chrono::seconds kLastKernelTime(10);
// Within this time, other ranks hear that a rank abandons an operation or dies: by the heartbeat,
// at the latest.
constexpr std::chrono::seconds kReasonTime(3);

// Compares whole words, as both have been stored: this takes a third of the time of field by field.
bool are_same(const OperationDescriptor& a, const OperationDescriptor& b) {
  static_assert(std::has_unique_object_representations_v<OperationDescriptor>);
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

Status needs_registered_buffers() {
  return {StatusCode::invalid_argument,
          "algorithm direct_mapped needs registered buffers on all ranks: Communicator::allocate "
          "makes them, in memory of a device if it is told which"};
}

}  // namespace

MappedExecution::MappedExecution(Plans plans, const Membership& membership, Windows& windows,
                                 transport::Endpoint& transport, KernelQueue& queue)
    : membership_(&membership), windows_(&windows), transport_(&transport), mapped_queue_(&queue) {
  if (plans.direct != nullptr) direct_ = std::make_unique<Runner>(std::move(plans.direct));
  if (plans.staged != nullptr) staged_ = std::make_unique<Runner>(std::move(plans.staged));
  if (direct_ == nullptr && mapped_queue_ == at_once_) {
    staged_->in_posts = InlineSteps::create(*staged_->plan, windows);
  }
  transport::SharedMemory& memory = transport.memory();
  if (direct_ != nullptr) buffers_.emplace(*direct_->plan, membership, plans.single_copy, memory);
  if (plans.single_copy != SingleCopy::off) process_.emplace(membership, windows, memory);
  tells_shares_ = staged_ == nullptr && counts_by_message(direct_->plan->operation());
  for (const Rank other : membership.others()) others_.push_back(membership.job_rank(other));
}

Status MappedExecution::check_buffers(const std::byte* input, const std::byte* output) const {
  const bool suits = staged_ != nullptr || buffers_->could_reach(input, output);
  return suits ? Status() : needs_registered_buffers();
}

void MappedExecution::start(const Call& call, Turn& turn) {
  call_ = call;
  if (buffers_ && !buffers_->is_own_known(call.input.data, call.output.data)) {
    buffers_->find_own(call.input.data, call.output.data);
  }
  if (call.mark >= 0) mapped_queue_->begin_behind(call.mark);
  enter(turn);
  if (call.parts != nullptr) status_ = pack_parts();
}

Status MappedExecution::pack_parts() {
  has_unpacked_ = false;
  const BufferParts& parts = *call_.parts;
  if (!parts.has_sources()) return {};
  std::byte* to = call_.input.data;
  STRETTO_RETURN_IF_ERROR(copy(*mapped_queue_, parts.source, to, parts.factor));
  to += parts.source.bytes();
  for (const ConstView& part : parts.more) {
    STRETTO_RETURN_IF_ERROR(copy(*mapped_queue_, part, to, parts.factor));
    to += part.bytes();
  }
  return {};
}

Status MappedExecution::unpack_parts() {
  has_unpacked_ = true;
  const std::byte* from = call_.output.data;
  for (const View& target : call_.parts->targets) {
    const ConstView part(from, target.count, target.dtype);
    STRETTO_RETURN_IF_ERROR(copy(*mapped_queue_, part, target.data));
    from += target.bytes();
  }
  return {};
}

bool MappedExecution::try_start(const OperationDescriptor& operation, const std::byte* input,
                                std::byte* output, std::uint32_t sequence, Turn& turn) {
  if (buffers_ && !buffers_->is_own_known(input, output)) return false;
  call_.operation = operation;
  call_.input.data = const_cast<std::byte*>(input);
  call_.output.data = output;
  call_.sequence = sequence;
  enter(turn);
  return true;
}

// The functions that are inline from here on are on the path of an operation on a few bytes: calls
// would take a tenth of its time.
inline void MappedExecution::enter(Turn& turn) {
  status_ = Status();
  runner_ = nullptr;
  queue_ = mapped_queue_;
  arrived_ = 0;
  reachable_ = 0;
  segment_ = 0;
  cursor_ = {};
  if (!abandoned_.ok()) abandoned_ = Status();
  ++windows_->entered;
  if (direct_ != nullptr && (staged_ == nullptr || buffers_->is_own_reachable())) {
    if (call_.mark < 0) return post(turn);
    phase_ = Phase::staging;
    return;
  }
  runner_ = staged_.get();
  phase_ = Phase::staging;
  if (!runner_->in_posts) return;
  runner_->in_posts->run_before_sync(call_);
  post(turn);
}

// What a rank does before the first sync touches only its own input and slots that nobody uses any
// more: it has ended the operation before, so all have entered that one, hence ended those that
// used these slots (see staged_mapped.cc, Note [one sync fewer]).
bool MappedExecution::run_staging(Turn& turn) {
  const Stop stop = runner_ == nullptr ? stop_when_done(Stop::at_sync) : run_steps(turn);
  if (stop == Stop::at_sync) post(turn);
  return stop != Stop::queue_works;
}

inline void MappedExecution::post(Turn& turn) {
  phase_ = Phase::entering;
  Post& post = own().posts[(windows_->entered - 1) % 2];
  post.operation = call_.operation;
  post.sequence = call_.sequence;
  if (buffers_) post.buffers = buffers_->own();
  if (tells_shares_) tell_shares(*direct_->plan, own().half(windows_->staging_turn));
  // Release: whoever sees the count sees the post, the input that was written before this call, and
  // what has been staged.
  post.entered.store(windows_->entered, std::memory_order_release);
  turn.notify(others_);
}

bool MappedExecution::advance(Turn& turn) {
  bool moved = false;
  while (status_.ok()) {
    const bool works = phase_ == Phase::staging || phase_ == Phase::running;
    if (works && turn.is_over()) return moved;
    if (phase_ == Phase::staging) {
      if (!run_staging(turn)) return moved;
    } else if (phase_ == Phase::entering) {
      if (!read_posts() || !choose(turn)) return moved;
    } else if (phase_ == Phase::running) {
      if (!run_to_sync(turn)) return moved;
    } else if (phase_ == Phase::syncing) {
      if (!sync_complete()) return moved;
      phase_ = Phase::running;
    } else {
      break;
    }
    moved = true;
  }
  if (status_.ok() || phase_ == Phase::ended) return moved;
  release_buffers(turn.has_lock());
  return true;
}

void MappedExecution::disagree(Rank other, const Post& post) {
  status_ = transport::mismatch_status(
      {other, post.operation, post.sequence},
      {membership_->job_rank(membership_->rank), call_.operation, call_.sequence});
}

// Whether all members have entered; takes in their posts as they come.
inline bool MappedExecution::read_posts() {
  for (; arrived_ < windows_->of.size(); ++arrived_) {
    const Post& post = *posted_by(arrived_);
    // Acquire: pairs with the release in post(). A count beyond ours would be a peer's bug; it
    // cannot be ahead by two, so the post is that of this operation.
    if (post.entered.load(std::memory_order_acquire) < windows_->entered) return false;
    if (!are_same(post.operation, call_.operation) || post.sequence != call_.sequence) {
      disagree(membership_->members[arrived_], post);
      return true;
    }
    if (!buffers_) continue;
    // Copied once: what is checked here is what is used, whatever a peer does to its post.
    const Post::Buffers buffers = post.buffers;
    if (buffers_->take(arrived_, buffers)) ++reachable_;
  }
  // All have now read this rank's other post, which it writes next. So its line is fetched while
  // this operation ends, and not only when the next one is posted.
  fetch_to_write(&own().posts[windows_->entered % 2]);
  if (tells_shares_) hear_shares();
  return true;
}

// Plans by the counts of all ranks. Before, only the counts of this rank's buffers were known.
void MappedExecution::hear_shares() {
  Result<Shares> all = read_shares(*windows_, *membership_);
  status_ = all.status();
  if (!all.ok()) return;
  if (all->counts != parcels_) {
    parcels_ = all->counts;
    const Plan& own_only = *direct_->plan;
    auto planned = std::make_unique<Runner>(std::make_shared<const Plan>(
        own_only.schedule(), Plan::Options{.operation = call_.operation,
                                           .shares = std::move(*all),
                                           .segment_bytes_max = own_only.segment_bytes()}));
    buffers_.emplace(*planned->plan, *membership_, SingleCopy::off, transport_->memory());
    buffers_->find_own(call_.input.data, call_.output.data);
    direct_ = std::move(planned);
  }
  reachable_ = 0;
  for (std::size_t member = 0; member < windows_->of.size(); ++member) {
    if (buffers_->take(member, posted_by(member)->buffers)) ++reachable_;
  }
}

// Picks direct or staged, as every other rank does from the same posts; or ends a run whose data is
// all in the posts, which are its only sync. False: call again later.
inline bool MappedExecution::choose(const Turn& turn) {
  if (!status_.ok()) return true;
  if (runner_ != nullptr && runner_->in_posts) {
    runner_->in_posts->run_after_sync(call_);
    phase_ = Phase::ended;
    return true;
  }
  if (reachable_ == windows_->of.size()) {
    const bool is_known = buffers_->are_resolved();
    if (!is_known && !(turn.has_lock() && buffers_->resolve(status_))) return !status_.ok();
    runner_ = direct_.get();
    if (buffers_->lie_in_processes()) queue_ = &*process_;
    cursor_.step = 1;  // Posting was the first sync.
  } else if (staged_ == nullptr) {
    status_ = needs_registered_buffers();
  } else {
    // Ranks whose buffers can be reached did not know that those of others cannot, and have not
    // staged: all meet once more.
    runner_ = staged_.get();
    if (reachable_ == 0) ++cursor_.step;
  }
  phase_ = Phase::running;
  return true;
}

bool MappedExecution::release_mappings() {
  if (phase_ != Phase::ended) return false;
  if (buffers_) buffers_->release();
  return true;
}

// Abandons the run, and ends it when the device has ended its part, and nobody copies from or to
// this rank's private memory any more: its owner gets it back then. See window.h, Note [private
// memory of an abandoned operation].
void MappedExecution::release_buffers(bool has_lock) {
  if (phase_ != Phase::releasing) {
    const bool has_begun = call_.parts != nullptr && call_.parts->has_sources();
    // The queue would only wait for the program.
    if (phase_ == Phase::staging && !has_begun) queue_ = &host_queue();
    phase_ = Phase::releasing;
    own().abandoned.store(windows_->entered, std::memory_order_seq_cst);
    arrived_ = 0;
    abandoned_at_ = Clock::now();
  }
  if (!queue_->is_done()) {
    if (Clock::now() - abandoned_at_ < kLastKernelTime) return;
    log(LogLevel::warning,
        "{} has failed, and its device has not ended its part in {} s: keep the buffers until it "
        "has",
        describe(call_.operation), kLastKernelTime.count());
    queue_ = &host_queue();  // The device is not asked again.
  }
  const auto self = static_cast<std::uint32_t>(membership_->rank.value()) + 1;
  for (; process_ && arrived_ < windows_->of.size(); ++arrived_) {
    if (windows_->of[arrived_]->reaches_into.load(std::memory_order_seq_cst) != self) continue;
    // A rank that has died leaves its claim behind, but copies no more.
    const Rank job_rank = membership_->members[arrived_];
    const bool is_lost = status_.code() == StatusCode::peer_lost && status_.rank() == job_rank;
    if (is_lost || (has_lock && !transport_->peer_status(job_rank).status.ok())) continue;
    if (Clock::now() - abandoned_at_ < kLastCopyTime) {
      ::sched_yield();  // To that rank, which may need this core.
      return;
    }
    log(LogLevel::warning,
        "rank {} stands still while it copies from or to a buffer of {}, which has failed: it "
        "may go on later. Keep the buffer until that rank has ended",
        job_rank.value(), describe(call_.operation));
  }
  phase_ = Phase::ended;
}

// If another rank has abandoned the run or is lost, the run cannot end, and this rank must not tell
// the others that it has done its part. It waits for the reason that the transport reports: who,
// where and why. True: none has come, and the run fails by what this rank knows.
bool MappedExecution::is_reason_overdue() {
  if (Clock::now() - abandoned_at_ <= kReasonTime) return false;
  status_ = abandoned_;
  return true;
}

BufferRef MappedExecution::locate(const schedule::Place& place) const {
  const bool own_place = place.rank == membership_->rank;
  switch (place.slot.buffer) {
    case schedule::Buffer::input:
      if (own_place) return call_.input;
      return buffers_->input(place.rank);
    case schedule::Buffer::output:
      if (own_place) return call_.output;
      return buffers_->output(place.rank);
    default:
      return {.data = windows_->of[place.rank]->half(windows_->staging_turn)};
  }
}

// Returns `stop` if the queue is done. Else others must not be told: it still works, or has failed.
MappedExecution::Stop MappedExecution::stop_when_done(Stop stop) {
  if (queue_ == at_once_) return stop;
  if (!queue_->is_done()) return Stop::queue_works;
  Status status = queue_->status();
  if (status.ok()) return stop;
  status_ = std::move(status);
  return Stop::failed;
}

// Runs steps up to the next sync, where it leaves the cursor, to the end of the segment, or to the
// end of the turn.
MappedExecution::Stop MappedExecution::run_steps(Turn& turn) {
  const auto locate_place = [&](const schedule::Place& place) { return locate(place); };
  const auto& steps = runner_->plan->schedule().steps;
  // Other queues read no slots, or may still be reading them when run() has returned.
  const bool takes = queue_ == at_once_ && windows_->takes_lines;
  while (cursor_.step < steps.size()) {
    const schedule::Step& step = steps[cursor_.step];
    if (step.kind == schedule::StepKind::sync) return stop_when_done(Stop::at_sync);
    if (turn.is_over()) return Stop::turn_is_over;
    if (!abandoned_.ok()) {
      cursor_ = {.step = cursor_.step + 1};
      continue;
    }
    const Status status =
        runner_->local.run(step, segment_, locate_place, cursor_, turn, *queue_, takes);
    if (status.ok()) continue;
    const bool is_over =
        status.code() == StatusCode::aborted || status.code() == StatusCode::peer_lost;
    (is_over ? abandoned_ : status_) = status;
    if (!is_over) return Stop::failed;
    abandoned_at_ = Clock::now();
  }
  if (call_.parts != nullptr && !has_unpacked_) {
    status_ = unpack_parts();
    if (!status_.ok()) return Stop::failed;
  }
  return stop_when_done(Stop::at_end);
}

// False: the queue has to be done first.
bool MappedExecution::run_to_sync(Turn& turn) {
  Stop stop = run_steps(turn);
  for (; stop == Stop::at_end; stop = run_steps(turn)) {
    cursor_ = {};
    ++windows_->staging_turn;
    if (++segment_ == runner_->plan->segment_count()) {
      phase_ = Phase::ended;
      return true;
    }
  }
  if (stop == Stop::at_sync) {
    ++cursor_.step;
    reach_sync(turn);
  }
  return stop != Stop::queue_works;
}

void MappedExecution::reach_sync(Turn& turn) {
  phase_ = Phase::syncing;
  arrived_ = 0;
  if (!abandoned_.ok()) return;
  ++windows_->syncs;
  // Release: what this rank has written and read before is over for whoever sees the count.
  own().syncs.store(windows_->syncs, std::memory_order_release);
  turn.notify(others_);
}

bool MappedExecution::sync_complete() {
  if (!abandoned_.ok()) return is_reason_overdue();
  for (; arrived_ < windows_->of.size(); ++arrived_) {
    // Acquire: pairs with the release above; this rank may now read what that one wrote.
    if (windows_->of[arrived_]->syncs.load(std::memory_order_acquire) < windows_->syncs) {
      return false;
    }
  }
  return true;
}

void MappedExecution::fail(const Status& status) {
  if (status_.ok()) status_ = status;
  if (phase_ != Phase::ended) release_buffers(true);
}

// Works on any number of bytes, in one go: a group that fails hands its buffers back at once.
bool MappedExecution::end_without_transport() {
  Turn turn(*transport_, kUnlimited);
  advance(turn);
  return ended() && status_.ok();
}

bool MappedExecution::must_be_asked() const {
  const bool may_work =
      phase_ == Phase::staging || phase_ == Phase::running || phase_ == Phase::releasing;
  return may_work && !queue_->is_done();
}

std::vector<Rank> MappedExecution::waiting_for() const {
  std::vector<Rank> ranks;
  const bool is_resolving = phase_ == Phase::entering && reachable_ == windows_->of.size();
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    const std::uint64_t entered = posted_by(i)->entered.load(std::memory_order_relaxed);
    const std::uint64_t syncs = windows_->of[i]->syncs.load(std::memory_order_relaxed);
    const bool gone = abandoned_.rank() == membership_->members[i];
    const bool late = gone || (phase_ == Phase::syncing && syncs < windows_->syncs) ||
                      (phase_ == Phase::entering && entered < windows_->entered) ||
                      (is_resolving && !buffers_->is_resolved(i));
    if (late) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

}  // namespace stretto::execution
