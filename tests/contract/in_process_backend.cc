// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/contract/in_process_backend.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "stretto/base/error.h"
#include "stretto/communicator/backend.h"
#include "stretto/kernel/reduce.h"

namespace stretto::testing {
namespace {

using communicator::Backend;
using communicator::CollectiveCall;

// What a Work waits for.
struct Event {
  bool over = false;
  Status status;
  std::optional<Rank> source;  // Of a receive.
  OperationInfo info;
  std::vector<Continuation> continuations;
};
// Of events that are over: to be called without the lock.
using Due = std::vector<std::pair<Continuation, Status>>;

// One collective: the calls of all ranks, until the last has come.
struct CollectiveCalls : Event {
  explicit CollectiveCalls(std::size_t size) : calls(size), shares(size) {}

  std::vector<std::optional<CollectiveCall>> calls;
  std::vector<execution::Shares> shares;  // Copies: the callers' lists may be gone by the end.
  std::size_t come = 0;
};

// A send whose receive has not come yet, or the other way round.
struct Message {
  Transfer transfer;
  Rank self = 0;
  std::shared_ptr<Event> event = std::make_shared<Event>();

  // Whether this one sends what the other receives.
  bool goes_to(const Message& other) const {
    const Transfer& receive = other.transfer;
    return transfer.sends && !receive.sends && transfer.tag == receive.tag &&
           transfer.peer == other.self && (receive.peer == self || receive.peer == kAnyRank);
  }
};

struct Room;
// One shrink(), until all who are left have come.
struct Shrinking {
  std::set<Rank> come;
  std::set<Rank> left_out;
  std::shared_ptr<Room> room;
};

// Where the ranks of one group meet.
struct Room {
  explicit Room(std::vector<Rank> job_ranks)
      : members(std::move(job_ranks)), size(members.size()), numbers(size) {}

  static inline std::atomic<std::uint64_t> made = 0;
  const std::uint64_t id = ++made;
  const std::vector<Rank> members;
  const std::size_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::size_t> numbers;  // Of each rank's next collective.
  std::deque<std::shared_ptr<CollectiveCalls>> collectives;
  std::list<Message> messages;
  std::map<std::uint64_t, std::shared_ptr<Room>> groups;
  std::set<Rank> gone;
  std::shared_ptr<Shrinking> shrinking = std::make_shared<Shrinking>();
  Status failure;
};

void end(Room& room, Event& event, const Status& status, Due& due) {
  event.over = true;
  event.status = status;
  for (Continuation& continuation : event.continuations) {
    due.emplace_back(std::move(continuation), status);
  }
  room.changed.notify_all();
}

void run_continuations(const Due& due) {
  for (const auto& [continuation, status] : due) continuation(status);
}

void fail(Room& room, const Status& why) {
  Due due;
  {
    const std::lock_guard guard(room.mutex);
    if (!room.failure.ok()) return;
    room.failure = why;
    for (const auto& collective : room.collectives) {
      if (!collective->over) end(room, *collective, why, due);
    }
    for (const Message& message : room.messages) end(room, *message.event, why, due);
    room.messages.clear();
  }
  run_continuations(due);
}

// With the rooms of the groups that were made of it.
void abort(Room& room, const Status& why) {
  std::vector<std::shared_ptr<Room>> groups;
  {
    const std::lock_guard guard(room.mutex);
    for (const auto& [number, group] : room.groups) groups.push_back(group);
  }
  for (const auto& group : groups) abort(*group, why);
  fail(room, why);
}

class Visit : public group::Operation {
 public:
  Visit(std::shared_ptr<Room> room, std::shared_ptr<Event> event)
      : room_(std::move(room)), event_(std::move(event)) {}

  bool poll() override {
    const std::lock_guard guard(room_->mutex);
    return event_->over;
  }
  Status wait(Deadline deadline) override {
    std::unique_lock held(room_->mutex);
    const auto over = [this] { return event_->over; };
    if (deadline.time() == TimePoint::max()) room_->changed.wait(held, over);
    if (room_->changed.wait_until(held, deadline.time(), over)) return event_->status;
    return {StatusCode::timeout, "the others have not come"};
  }
  void then(Continuation continuation) override {
    {
      const std::lock_guard guard(room_->mutex);
      if (!event_->over) return event_->continuations.push_back(std::move(continuation));
    }
    continuation(event_->status);
  }
  void abandon() override { fail(*room_, {StatusCode::aborted, "a rank has gone"}); }
  std::optional<Rank> source() const override { return event_->source; }
  OperationInfo info() const override { return event_->info; }

 private:
  std::shared_ptr<Room> room_;
  std::shared_ptr<Event> event_;
};

// What a collective does, with everybody's calls at hand. Results are made apart from the buffers,
// which may be inputs and outputs at once.
class Computation {
 public:
  explicit Computation(CollectiveCalls& collective)
      : calls_(collective.calls),
        what_(calls_.front()->operation),
        element_bytes_(size_bytes(what_.dtype)) {}

  Status run() {
    for (auto& call : calls_) {
      if (!(call->operation == what_)) return {StatusCode::mismatch, "the ranks' calls differ"};
      STRETTO_RETURN_IF_ERROR(pack(*call));
    }
    std::vector<std::byte> whole;
    if (reduces(what_.collective)) {
      Result<std::vector<std::byte>> reduced = reduced_inputs();
      if (!reduced.ok()) return reduced.status();
      whole = std::move(*reduced);
    } else if (what_.root >= 0 && what_.collective != Collective::gather) {
      const ConstByteSpan input = calls_[static_cast<std::size_t>(what_.root)]->input;
      whole.assign(input.begin(), input.end());
    } else if (what_.collective != Collective::all_to_all) {
      for (auto& call : calls_) whole.insert(whole.end(), call->input.begin(), call->input.end());
    }
    std::vector<std::vector<std::byte>> results;
    for (std::size_t r = 0; r < calls_.size(); ++r) results.push_back(result_of(whole, r));
    for (std::size_t r = 0; r < calls_.size(); ++r) {
      if (!calls_[r]->output.empty()) {
        std::memcpy(calls_[r]->output.data(), results[r].data(), calls_[r]->output.size());
      }
      execution::Turn turn(execution::kUnlimited);
      if (calls_[r]->packing) calls_[r]->packing->unpack(turn);
    }
    return {};
  }

 private:
  Status pack(CollectiveCall& call) {
    if (!call.packing) return {};
    group::Packing& packing = *call.packing;
    auto scratch = std::make_shared<std::vector<std::byte>>(packing.bytes());
    packing.scratch.bytes = *scratch;
    packing.scratch.owner = std::move(scratch);
    if (packing.destination == nullptr && packing.parts.has_sources()) call.input = packing.input();
    if (!packing.parts.targets.empty()) call.output = packing.output();
    execution::Turn turn(execution::kUnlimited);
    return packing.pack(turn);
  }

  Result<std::vector<std::byte>> reduced_inputs() const {
    std::vector<kernel::Input> inputs;
    for (const auto& call : calls_) inputs.push_back({call->input.data(), what_.dtype});
    std::vector<std::byte> whole(what_.count * element_bytes_);
    void* const output = whole.data();
    STRETTO_RETURN_IF_ERROR(
        kernel::reduce({.dtype = what_.dtype,
                        .output_dtype = what_.dtype,
                        .op = what_.op,
                        .divisor = what_.op == ReduceOp::mean ? static_cast<int>(calls_.size()) : 1,
                        .count = what_.count,
                        .inputs = inputs,
                        .outputs = {&output, 1}}));
    return whole;
  }

  // Bytes of rank `share`'s share, in the lists of rank `of`.
  std::size_t share_bytes(std::size_t of, std::size_t share) const {
    const auto& shares = calls_[of]->shares;
    return (shares ? shares->counts[share] : what_.count / calls_.size()) * element_bytes_;
  }
  ConstByteSpan share_in(ConstByteSpan whole, std::size_t of, std::size_t share) const {
    std::size_t begin = 0;
    for (std::size_t r = 0; r < share; ++r) begin += share_bytes(of, r);
    return whole.subspan(begin, share_bytes(of, share));
  }

  std::vector<std::byte> result_of(ConstByteSpan whole, std::size_t rank) const {
    std::vector<std::byte> result;
    if (what_.collective == Collective::all_to_all) {
      for (std::size_t from = 0; from < calls_.size(); ++from) {
        const ConstByteSpan part = share_in(calls_[from]->input, from, rank);
        result.insert(result.end(), part.begin(), part.end());
      }
      return result;
    }
    const bool shared =
        what_.collective == Collective::reduce_scatter || what_.collective == Collective::scatter;
    if (shared) whole = share_in(whole, rank, rank);
    return {whole.begin(), whole.end()};
  }

  std::vector<std::optional<CollectiveCall>>& calls_;
  const OperationDescriptor what_;
  const std::size_t element_bytes_;
};

class InProcessBackend final : public Backend {
 public:
  InProcessBackend(std::shared_ptr<Room> room, Rank rank, std::string name = {})
      : room_(std::move(room)), rank_(rank), name_(std::move(name)) {}
  ~InProcessBackend() override {
    {
      const std::lock_guard guard(room_->mutex);
      room_->gone.insert(rank_);
      room_->changed.notify_all();  // To those who shrink.
    }
    fail(*room_, status_of(StatusCode::peer_lost, "rank {} has left", rank_.value()));
  }

  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(room_->size); }
  std::uint64_t group_id() const override { return room_->id; }
  std::string group_name() const override { return name_; }
  Rank job_rank(Rank rank) const override { return room_->members[static_cast<std::size_t>(rank)]; }

  Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>&) override {
    if (!algorithm.empty() && algorithm != "direct") {
      throw InvalidArgument({StatusCode::invalid_argument, "there are no algorithms here"});
    }
    std::vector<Work> works;
    for (CollectiveCall& call : calls) works.emplace_back(visit(call));
    return Work::all(std::move(works));
  }
  Work exchange(std::span<const Transfer> transfers, const std::optional<Duration>&) override {
    std::vector<Work> works;
    Due due;
    {
      const std::lock_guard guard(room_->mutex);
      room_->failure.or_throw();
      for (const Transfer& transfer : transfers) {
        Message message{.transfer = transfer, .self = rank_};
        const auto event = message.event;
        event->info.collective = Collective::point_to_point;
        meet(std::move(message), due);
        works.emplace_back(std::make_shared<Visit>(room_, event));
      }
    }
    run_continuations(due);
    return works.size() == 1 ? std::move(works.front()) : Work::all(std::move(works));
  }
  Memory allocate(std::size_t bytes, std::optional<int>) override {
    auto owned = std::make_shared<std::vector<std::byte>>(bytes);
    const std::span<std::byte> span = *owned;
    return {std::move(owned), span};
  }
  std::unique_ptr<Backend> make_group(std::uint64_t number, const std::vector<Rank>& ranks,
                                      const GroupOptions& options) override {
    const auto own = std::ranges::find(ranks, rank_);
    if (own == ranks.end()) return nullptr;
    std::vector<Rank> job_ranks;
    for (const Rank rank : ranks) job_ranks.push_back(job_rank(rank));
    const std::lock_guard guard(room_->mutex);
    auto& room = room_->groups[number];
    if (room == nullptr) room = std::make_shared<Room>(std::move(job_ranks));
    return std::make_unique<InProcessBackend>(room, static_cast<int>(own - ranks.begin()),
                                              options.name);
  }
  std::unique_ptr<Backend> shrink(const std::vector<Rank>& excluded) override {
    fail(*room_, status_of(StatusCode::aborted, "rank {} has called shrink", rank_.value()));
    std::unique_lock held(room_->mutex);
    const auto shrinking = room_->shrinking;
    shrinking->come.insert(rank_);
    shrinking->left_out.insert(excluded.begin(), excluded.end());
    room_->changed.notify_all();
    room_->changed.wait(held, [&] { return have_all_come(*shrinking); });
    const std::vector<Rank>& left = shrinking->room->members;
    const auto own = std::ranges::find(left, job_rank(rank_));
    if (own == left.end()) throw Aborted({StatusCode::aborted, "another rank has named this one"});
    return std::make_unique<InProcessBackend>(shrinking->room,
                                              static_cast<int>(own - left.begin()));
  }
  void abort(const std::string& reason) override {
    testing::abort(*room_,
                   status_of(StatusCode::aborted, "rank {} aborted: {}", rank_.value(), reason));
  }
  bool has_failed() const override {
    const std::lock_guard guard(room_->mutex);
    return !room_->failure.ok();
  }
  void note(std::string_view) override {}
  void poll() override {}
  bool has_progress_thread() const override { return false; }
  std::string link_name(Rank other) const override { return other == rank_ ? "self" : "memory"; }
  Explanation explain(const OperationDescriptor&) const override {
    return {.algorithm = "last", .reason = "whoever comes last computes for all"};
  }

 private:
  // Ends a message and its other end, if that has come; the first of several counts.
  void meet(Message message, Due& due) {
    auto& waiting = room_->messages;
    const auto found = std::ranges::find_if(waiting, [&](const Message& other) {
      return message.goes_to(other) || other.goes_to(message);
    });
    if (found == waiting.end()) return waiting.push_back(std::move(message));
    const Message& sent = message.transfer.sends ? message : *found;
    const Message& received = message.transfer.sends ? *found : message;
    const ConstView& from = sent.transfer.outgoing;
    const View& into = received.transfer.incoming;
    Status status;
    if (from.count != into.count || from.dtype != into.dtype) {
      status = {StatusCode::mismatch, "a message is not what its receiver expects"};
    } else if (from.bytes() > 0) {
      std::memcpy(into.data, from.data, from.bytes());
    }
    received.event->source = sent.self;
    end(*room_, *sent.event, status, due);
    end(*room_, *received.event, status, due);
    waiting.erase(found);
  }

  // Whoever finds that out makes the room of those who are left.
  bool have_all_come(Shrinking& shrinking) {
    if (shrinking.room != nullptr) return true;
    std::vector<Rank> left;
    for (Rank r = 0; r < size(); r = r.value() + 1) {
      if (room_->gone.contains(r) || shrinking.left_out.contains(r)) continue;
      if (!shrinking.come.contains(r)) return false;
      left.push_back(job_rank(r));
    }
    shrinking.room = std::make_shared<Room>(std::move(left));
    room_->shrinking = std::make_shared<Shrinking>();
    room_->changed.notify_all();
    return true;
  }

  std::shared_ptr<group::Operation> visit(CollectiveCall& call) {
    Due due;
    std::shared_ptr<CollectiveCalls> collective;
    {
      const std::lock_guard guard(room_->mutex);
      room_->failure.or_throw();
      const auto self = static_cast<std::size_t>(rank_);
      const std::size_t number = room_->numbers[self]++;
      if (number == room_->collectives.size()) {
        room_->collectives.push_back(std::make_shared<CollectiveCalls>(room_->size));
      }
      collective = room_->collectives[number];
      if (call.shares) {
        const execution::Shares& kept = collective->shares[self] = call.shares->copy();
        call.shares = {kept.counts, kept.received};
      }
      collective->info.collective = call.operation.collective;
      collective->calls[self] = std::move(call);
      if (++collective->come == room_->size)
        end(*room_, *collective, Computation(*collective).run(), due);
    }
    run_continuations(due);
    return std::make_shared<Visit>(room_, std::move(collective));
  }

  std::shared_ptr<Room> room_;
  const Rank rank_;
  const std::string name_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_process_ranks(int size) {
  std::vector<Rank> members;
  for (std::int32_t r = 0; r < size; ++r) members.emplace_back(r);
  const auto room = std::make_shared<Room>(std::move(members));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::int32_t r = 0; r < size; ++r) {
    ranks.push_back(
        std::make_unique<Communicator>(std::make_unique<InProcessBackend>(room, Rank(r))));
  }
  return ranks;
}

}  // namespace stretto::testing
