// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/membership.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/host_name.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"
#include "stretto/base/take_word.h"
#include "stretto/bootstrap/prefix_store.h"

namespace stretto::job {
namespace {

using Numbers = std::vector<std::int64_t>;

// The keys, where G is the number of a generation and P that of a process:
//   entered      how many processes have entered the job
//   settings     those of the first of them
//   gone/P       process P has ended, or has left
//   waits/G/P    process P has come for generation G: its first generation, its launcher rank, its
//                name
//   members/G    the members of generation G; set once, by whoever finds it complete
//   open         the number of the generation that has no members yet; absent: 1
//   finished     all steps are done
//   G/...        where the members of generation G meet
constexpr const char* kOpen = "open";
constexpr const char* kGone = "gone/";
constexpr const char* kFinished = "finished";
std::string gone_key(std::int64_t process) { return fmt::format("{}{}", kGone, process); }
std::string waits_prefix(int generation) { return fmt::format("waits/{}/", generation); }
std::string waits_key(int generation, std::int64_t process) {
  return fmt::format("{}{}", waits_prefix(generation), process);
}
std::string members_key(int generation) { return fmt::format("members/{}", generation); }
std::string meeting_prefix(int generation) { return fmt::format("{}/", generation); }

// The pause between two looks at who has come. All waiting processes look, so it grows with their
// number; the load on the store stays the same.
constexpr Duration kLookAgain = std::chrono::milliseconds(5);
Duration pause_for(std::size_t processes) {
  return std::max<Duration>(kLookAgain, std::chrono::milliseconds(processes));
}
// The limit of a request to the store during a wait. It is at least a second from now, even at the
// end of the wait, since the failure is to tell what the store says.
WaitLimit limit_of_request(const WaitLimit& limit) {
  const Deadline soon = Deadline::after(std::chrono::seconds(1));
  return Deadline(std::max(limit.deadline().time(), soon.time()));
}

// How long to try to reach a store that has ended the connection of this process's life, to find
// out what has happened. The store takes the process for dead in any case.
constexpr Duration kReconnectTime = std::chrono::seconds(5);

// No job comes so far.
constexpr int kGenerationMax = 1'000'000'000;

bool contains(const Numbers& numbers, std::int64_t number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

// "2 1 node04 pid 8812".
std::string card_of(int since, int launcher_rank) {
  return fmt::format("{} {} {} pid {}", since, launcher_rank, host_name(), ::getpid());
}

// The rank of `process`; -1 if it is not one of the members.
int rank_among(const std::vector<Member>& members, std::int64_t process) {
  const auto member = std::ranges::find(members, process, &Member::number);
  return member == members.end() ? -1 : static_cast<int>(member - members.begin());
}

Result<Numbers> numbers_under(bootstrap::Store& store, const std::string& prefix,
                              const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const auto keys, store.list_keys(prefix, limit));
  Numbers numbers;
  for (const std::string& key : keys) {
    const auto number = parse_number<std::int64_t>(std::string_view(key).substr(prefix.size()));
    if (number && *number > 0) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

// A member that has left the job or died; null if there is none. Null, too, if the store does not
// answer: the caller's own request to it fails and tells why.
const Member* find_gone(bootstrap::Store& store, const std::vector<Member>& members) {
  const auto gone = numbers_under(store, kGone, Deadline::after(std::chrono::seconds(1)));
  if (!gone.ok()) return nullptr;
  const auto member = std::ranges::find_if(
      members, [&](const Member& each) { return contains(gone.value(), each.number); });
  return member == members.end() ? nullptr : &*member;
}

// "process 3 (node04 pid 8812)".
std::string name_of(bootstrap::Store& store, int generation, std::int64_t number) {
  const Deadline soon = Deadline::after(std::chrono::seconds(1));
  const auto text = store.look_up(waits_key(generation, number), soon);
  const std::string card = text.ok() ? text.value().value_or("") : "";
  std::string_view name = card;
  (void)take_word(name, ' ');
  (void)take_word(name, ' ');
  return fmt::format("process {} ({})", number, printable(std::string(name)));
}

// The part of the job's store in which the members of a generation meet. A process waits here only
// for other members. So a wait ends when any member is gone, also one that ended before it came
// here, which nobody would miss yet.
class MeetingPlace final : public bootstrap::PrefixStore {
 public:
  MeetingPlace(int generation, std::vector<Member> members, std::shared_ptr<bootstrap::Store> whole)
      : PrefixStore(meeting_prefix(generation), whole),
        generation_(generation),
        members_(std::move(members)),
        whole_(std::move(whole)) {}

  Result<bootstrap::StoreReply> answer(const bootstrap::StoreRequest& request,
                                       const WaitLimit& limit) override {
    return PrefixStore::answer(request, among_members(limit));
  }
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             const WaitLimit& limit) override {
    return PrefixStore::multi_get(keys, among_members(limit));
  }

 private:
  // All waiting processes look, as they do for arrivals; less often, since deaths are rarer.
  WaitLimit among_members(const WaitLimit& limit) const {
    const Duration pause = 10 * pause_for(members_.size());
    return {limit.deadline(),
            [this, &limit, pause, next = Clock::now() + pause]() mutable -> Status {
              STRETTO_RETURN_IF_ERROR(limit.look());
              if (Clock::now() < next) return {};
              next = Clock::now() + pause;
              return check_members();
            }};
  }
  Status check_members() const {
    const Member* const gone = find_gone(*whole_, members_);
    if (gone == nullptr) return {};
    const auto rank = static_cast<int>(gone - members_.data());
    return {StatusCode::peer_lost,
            fmt::format("rank {}, {}, has left the job or died", rank,
                        name_of(*whole_, generation_, gone->number)),
            Rank(rank)};
  }

  const int generation_;
  const std::vector<Member> members_;
  const std::shared_ptr<bootstrap::Store> whole_;
};

}  // namespace

std::string format_members(const std::vector<Member>& members) {
  std::string text;
  for (const auto& [number, since, launcher_rank] : members) {
    text += fmt::format("{}{}:{}:{}", text.empty() ? "" : " ", number, since, launcher_rank);
  }
  return text;
}

Result<std::vector<Member>> parse_members(std::string_view text) {
  std::vector<Member> members;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view word = take_word(rest, ' ');
    const auto number = parse_number<std::int64_t>(take_word(word, ':'));
    const auto since = parse_number<int>(take_word(word, ':'));
    const auto launcher_rank = parse_number<int>(word);
    const bool makes_sense = number && *number > 0 && since && *since > 0 && launcher_rank &&
                             *launcher_rank >= -1 && rank_among(members, *number) < 0;
    if (!makes_sense) {
      return status_of(StatusCode::protocol, "\"{}\" are no members of a generation",
                       printable(std::string(text.substr(0, 80))));
    }
    members.push_back({.number = *number, .since = *since, .launcher_rank = *launcher_rank});
  }
  return members;
}

struct Membership::Meeting {
  Numbers arrived = {};  // Ascending.
  Numbers missing = {};  // Members of the last generation that live.
  std::optional<int> wanted = 1;

  bool complete() const {
    return missing.empty() && wanted && arrived.size() >= static_cast<std::size_t>(*wanted);
  }
};

Result<std::unique_ptr<Membership>> Membership::enter(std::shared_ptr<bootstrap::Store> store,
                                                      const Options& options,
                                                      const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const auto number, store->add(kEntered, 1, limit));
  std::unique_ptr<Membership> entered(new Membership(std::move(store), options, number));
  STRETTO_RETURN_IF_ERROR(entered->compare_settings(limit));
  const bootstrap::Will will{.value = "1", .revoked_by = ""};
  STRETTO_ASSIGN_OR_RETURN(entered->life_, entered->store_->watch(gone_key(number), will, limit));
  return entered;
}

Status Membership::compare_settings(const WaitLimit& limit) const {
  STRETTO_ASSIGN_OR_RETURN(const auto theirs,
                           store_->compare_set("settings", "", options_.settings, limit));
  if (theirs == options_.settings) return {};
  return status_of(StatusCode::mismatch,
                   "this process has other settings than the job that it is to enter: {}; the job "
                   "has: {}",
                   options_.settings, printable(theirs));
}

Result<std::optional<Generation>> Membership::next(const WaitLimit& limit) {
  while (true) {
    STRETTO_RETURN_IF_ERROR(check_own_place(limit_of_request(limit)));
    STRETTO_ASSIGN_OR_RETURN(const auto finished,
                             store_->look_up(kFinished, limit_of_request(limit)));
    if (finished) return std::optional<Generation>();
    STRETTO_ASSIGN_OR_RETURN(come_for_, open_generation(limit_of_request(limit)));
    STRETTO_RETURN_IF_ERROR(store_->set(waits_key(come_for_, number_),
                                        card_of(since_, options_.launcher_rank),
                                        limit_of_request(limit)));
    Result<std::vector<Member>> found = wait_for_members(come_for_, limit);
    if (found.status().code() == StatusCode::timeout) {
      // The others must not count on this process, unless they have just done so.
      (void)store_->delete_key(waits_key(come_for_, number_), limit_of_request(limit)).ok();
      const auto late = members_of(come_for_, limit_of_request(limit));
      if (late.ok() && rank_among(late.value(), number_) >= 0) found = late;
    }
    STRETTO_ASSIGN_OR_RETURN(const auto members, std::move(found));
    const int rank = rank_among(members, number_);
    // The job has finished, or the members had met before this process came.
    if (rank < 0) continue;
    generation_ = come_for_;
    return std::optional<Generation>(
        {.number = generation_,
         .rank = rank,
         .members = members,
         .store = std::make_shared<MeetingPlace>(generation_, members, store_)});
  }
}

void Membership::note_meeting(const Generation& generation) {
  if (since_ == 0) since_ = generation.number;
  const int last = std::exchange(met_, generation.number);
  // All members have left generation `last`, and the generations since then never met: nobody reads
  // their keys any more.
  if (generation.rank != 0 || last == 0) return;
  for (int old = last; old < generation.number; ++old) forget(old);
}

bool Membership::has_lost_one_of(const Generation& generation) const {
  return find_gone(*store_, generation.members) != nullptr;
}

Result<bool> Membership::has_newcomers(const WaitLimit& limit) const {
  STRETTO_ASSIGN_OR_RETURN(const Numbers waiting,
                           numbers_under(*store_, waits_prefix(generation_ + 1), limit));
  if (waiting.empty()) return false;
  STRETTO_ASSIGN_OR_RETURN(const Numbers gone, numbers_under(*store_, kGone, limit));
  return std::ranges::any_of(waiting, [&](std::int64_t n) { return !contains(gone, n); });
}

Status Membership::finish(const WaitLimit& limit) const {
  return ask_store(limit, [&](const WaitLimit& each) { return store_->set(kFinished, "", each); });
}

// The generation to wait for: the one that this process has come for, if it has not joined it yet,
// else the open one. A process that finds that the generation has its members opens the next one,
// since the process that set the members may have ended before it did so.
Result<int> Membership::open_generation(const WaitLimit& limit) const {
  int number = come_for_;
  if (come_for_ <= generation_) {
    STRETTO_ASSIGN_OR_RETURN(const auto text, store_->look_up(kOpen, limit));
    number = std::clamp(parse_number<int>(text.value_or("1")).value_or(1), 1, kGenerationMax);
  }
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(const auto members, members_of(number, limit));
    const bool is_next = number > generation_ && rank_among(members, number_) >= 0;
    if (members.empty() || is_next) return number;
    const std::string before = number == 1 ? "" : std::to_string(number);
    ++number;
    STRETTO_RETURN_IF_ERROR(
        store_->compare_set(kOpen, before, std::to_string(number), limit).status());
  }
}

// Empty if the members are not decided yet.
Result<std::vector<Member>> Membership::members_of(int generation, const WaitLimit& limit) const {
  STRETTO_ASSIGN_OR_RETURN(const auto text, store_->look_up(members_key(generation), limit));
  return parse_members(text.value_or(""));
}

// Returns no members if the job finishes instead.
Result<std::vector<Member>> Membership::wait_for_members(int generation,
                                                         const WaitLimit& limit) const {
  const TimePoint start = Clock::now();
  std::vector<Member> last;
  if (generation > 1) {
    STRETTO_ASSIGN_OR_RETURN(last, members_of(generation - 1, limit_of_request(limit)));
  }
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(auto members, members_of(generation, limit_of_request(limit)));
    if (!members.empty()) return members;
    STRETTO_RETURN_IF_ERROR(check_own_place(limit_of_request(limit)));
    STRETTO_ASSIGN_OR_RETURN(const Meeting meeting,
                             look(generation, last, limit_of_request(limit)));
    // Asked after look(): a member finishes the job before it leaves. So if look() misses it no
    // more because it has left, the job is finished here.
    STRETTO_ASSIGN_OR_RETURN(const auto finished,
                             store_->look_up(kFinished, limit_of_request(limit)));
    if (finished) return members;
    if (meeting.complete()) {
      STRETTO_RETURN_IF_ERROR(close(generation, meeting, limit_of_request(limit)));
      continue;
    }
    if (limit.passed()) return describe_wait(generation, meeting, Clock::now() - start);
    STRETTO_RETURN_IF_ERROR(limit.look());
    std::this_thread::sleep_for(std::min(pause_for(meeting.arrived.size()), limit.nap()));
  }
}

Result<Membership::Meeting> Membership::look(int generation, const std::vector<Member>& last,
                                             const WaitLimit& limit) const {
  STRETTO_ASSIGN_OR_RETURN(Numbers waiting,
                           numbers_under(*store_, waits_prefix(generation), limit));
  STRETTO_ASSIGN_OR_RETURN(const Numbers gone, numbers_under(*store_, kGone, limit));
  Meeting meeting{.wanted = options_.min_size};
  if (generation == 1) {
    meeting.wanted = options_.first_size;
    if (meeting.wanted) meeting.wanted = std::max(*meeting.wanted, options_.min_size);
  }
  for (const Member& member : last) {
    if (!contains(waiting, member.number) && !contains(gone, member.number)) {
      meeting.missing.push_back(member.number);
    }
  }
  std::erase_if(waiting, [&](std::int64_t n) { return contains(gone, n); });
  meeting.arrived = std::move(waiting);
  return meeting;
}

// Several processes may find the generation complete, with other late arrivals: the first one
// decides.
Status Membership::close(int generation, const Meeting& meeting, const WaitLimit& limit) const {
  std::vector<std::string> keys;
  for (const std::int64_t number : meeting.arrived) keys.push_back(waits_key(generation, number));
  const auto cards = store_->multi_get(keys, limit.within(std::chrono::seconds(1)));
  // A process has given up waiting meanwhile: look again.
  if (cards.status().code() == StatusCode::timeout) return {};
  STRETTO_RETURN_IF_ERROR(cards.status());
  std::vector<Member> members;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::string_view card = cards.value()[i];
    const int since = parse_number<int>(take_word(card, ' ')).value_or(0);
    const int launcher_rank = parse_number<int>(take_word(card, ' ')).value_or(-1);
    members.push_back({.number = meeting.arrived[i],
                       .since = since > 0 ? since : generation,
                       .launcher_rank = std::max(-1, launcher_rank)});
  }
  // Members that first met in the same generation keep the order in which they entered the job.
  std::ranges::stable_sort(members, {}, &Member::since);
  return store_->compare_set(members_key(generation), "", format_members(members), limit).status();
}

Status Membership::check_own_place(const WaitLimit& limit) const {
  if (life_ == nullptr) {
    return {StatusCode::aborted,
            "this process has left the job, as it could not connect to the others; to try again, "
            "make another ElasticJob"};
  }
  const std::array key = {gone_key(number_)};
  bool gone = false;
  STRETTO_RETURN_IF_ERROR(ask_store(limit, [&](const WaitLimit& each) -> Status {
    STRETTO_ASSIGN_OR_RETURN(gone, store_->check(key, each));
    return {};
  }));
  if (!gone) return {};
  return status_of(StatusCode::aborted,
                   "{} has lost the connection to this process, which the others have taken for "
                   "dead: the job goes on without it",
                   store_->describe());
}

// Asks again after a failure: an idle connection may have been broken by an outage of the network,
// and the second attempt makes a new one. As long as the store holds the connection of this
// process's life, the store is alive, however slow it is.
Status Membership::ask_store(const WaitLimit& limit,
                             const std::function<Status(const WaitLimit&)>& ask) const {
  const auto held = [this] { return life_ == nullptr ? Status() : life_->look().status(); };
  for (int attempt = 0;; ++attempt) {
    const bool is_held = held().ok();
    const Status status =
        ask(is_held ? WaitLimit(limit.deadline(), held) : limit.within(kReconnectTime));
    if (status.ok()) return status;
    if (attempt == 0 || (is_held && !held().ok())) continue;
    if (is_held || status.code() != StatusCode::timeout) return status;
    return status_of(StatusCode::peer_lost, "{} is gone, and with it the job: {}",
                     store_->describe(), status.message());
  }
}

Status Membership::describe_wait(int generation, const Meeting& meeting, Duration waited) const {
  std::string text = fmt::format(
      "waited {:.0f} s for generation {} of the job, to which {} of at least {} processes have "
      "come",
      seconds(waited), generation, meeting.arrived.size(),
      meeting.wanted ? std::to_string(*meeting.wanted) : "the launcher's");
  std::string separator = "; these live, but have not called join() again: ";
  for (const std::int64_t number : meeting.missing) {
    text += separator + name_of(*store_, generation - 1, number);
    separator = ", ";
  }
  return {StatusCode::timeout, text + "; all meet in " + store_->describe()};
}

// Keeps the store small in a job that runs for weeks. Nothing depends on it.
void Membership::forget(int generation) const {
  const WaitLimit soon = Deadline::after(std::chrono::seconds(10));
  for (const std::string& prefix : {meeting_prefix(generation), waits_prefix(generation)}) {
    const auto keys = store_->list_keys(prefix, soon);
    if (!keys.ok()) return;
    for (const std::string& key : keys.value()) (void)store_->delete_key(key, soon).ok();
  }
}

}  // namespace stretto::job
