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
#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/join_notes.h"
#include "stretto/bootstrap/prefix_store.h"

namespace stretto::job {
namespace {

using Numbers = std::vector<std::int64_t>;

// The keys, behind a generation's number or a process's:
//   entered      how many processes have entered the job
//   gone/P       process P has ended, or has left
//   waits/G/P    process P has come for generation G: its launcher rank and its name
//   members/G    the members of generation G; set once, by whoever finds it complete
//   open         the number of the generation that has no members yet; absent: 1
//   G/...        where the members of generation G meet
constexpr const char* kOpen = "open";
constexpr const char* kGone = "gone/";
std::string gone_key(std::int64_t process) { return fmt::format("{}{}", kGone, process); }
std::string waits_prefix(int generation) { return fmt::format("waits/{}/", generation); }
std::string waits_key(int generation, std::int64_t process) {
  return fmt::format("{}{}", waits_prefix(generation), process);
}
std::string members_key(int generation) { return fmt::format("members/{}", generation); }
std::string meeting_prefix(int generation) { return fmt::format("{}/", generation); }

// Between two looks at who has come. All who wait look, so that it takes longer where they are
// many, and the store is asked equally often.
constexpr Duration kLookAgain = std::chrono::milliseconds(5);
Duration pause_for(std::size_t processes) {
  return std::max<Duration>(kLookAgain, std::chrono::milliseconds(processes));
}
// How long the store may take to answer.
Deadline answer() { return Deadline::after(std::chrono::seconds(10)); }

bool contains(const Numbers& numbers, std::int64_t number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

// "1 node04 pid 8812": what others need to know of a process, and its name for people.
std::string card_of(int launcher_rank) {
  return fmt::format("{} {} pid {}", launcher_rank, host_name(), ::getpid());
}
Member member_of(std::int64_t number, const std::string& card) {
  return {.number = number,
          .launcher_rank = parse_number<int>(card.substr(0, card.find(' '))).value_or(-1)};
}
std::string name_of(std::int64_t number, const std::string& card) {
  return fmt::format("process {} ({})", number, printable(card.substr(card.find(' ') + 1)));
}

}  // namespace

std::string format_members(const std::vector<Member>& members) {
  std::string text;
  for (const auto& [number, launcher_rank] : members) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", number, launcher_rank);
  }
  return text;
}

Result<std::vector<Member>> parse_members(std::string_view text) {
  std::vector<Member> members;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const std::size_t colon = std::min(word.find(':'), word.size());
    const auto number = parse_number<std::int64_t>(word.substr(0, colon));
    const auto rank = parse_number<int>(word.substr(std::min(word.size(), colon + 1)));
    const std::int64_t last = members.empty() ? 0 : members.back().number;
    if (!number || *number <= last || !rank || *rank < -1) {
      return status_of(StatusCode::protocol, "\"{}\" are no members of a generation",
                       printable(std::string(text.substr(0, 80))));
    }
    members.push_back({.number = *number, .launcher_rank = *rank});
  }
  return members;
}

struct Membership::Meeting {
  Numbers arrived = {};  // Ascending.
  Numbers missing = {};  // Members of the last generation that live.
  int wanted = 1;        // How many it takes.

  bool complete() const {
    return missing.empty() && arrived.size() >= static_cast<std::size_t>(wanted);
  }
};

Result<std::unique_ptr<Membership>> Membership::enter(std::shared_ptr<bootstrap::Store> store,
                                                      const Options& options) {
  STRETTO_ASSIGN_OR_RETURN(const auto number, store->add("entered", 1, answer()));
  std::unique_ptr<Membership> entered(new Membership(std::move(store), options, number));
  const bootstrap::Will will{.value = "1", .revoked_by = ""};
  STRETTO_ASSIGN_OR_RETURN(entered->life_,
                           entered->store_->watch(gone_key(number), will, answer()));
  return entered;
}

Result<Generation> Membership::next(const WaitLimit& limit) {
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(const int number, open_generation());
    STRETTO_ASSIGN_OR_RETURN(auto pledge, arrive(number));
    STRETTO_ASSIGN_OR_RETURN(auto members, wait_for_members(number, limit));
    const auto own = std::ranges::find(members, number_, &Member::number);
    const auto rank = static_cast<int>(own - members.begin());
    if (own != members.end()) {
      generation_ = number;
      return Generation{
          .number = number,
          .rank = rank,
          .members = std::move(members),
          .store = std::make_shared<bootstrap::PrefixStore>(meeting_prefix(number), store_),
          .pledge = std::move(pledge)};
    }
    // They had met before this process came: it is the next generation's.
    STRETTO_RETURN_IF_ERROR(pledge->revoke(answer()));
    STRETTO_RETURN_IF_ERROR(check_not_given_up());
  }
}

Result<bool> Membership::has_newcomers() const {
  STRETTO_ASSIGN_OR_RETURN(const Numbers waiting, numbers_under(waits_prefix(generation_ + 1)));
  if (waiting.empty()) return false;
  STRETTO_ASSIGN_OR_RETURN(const Numbers gone, numbers_under(kGone));
  return std::ranges::any_of(waiting, [&](std::int64_t n) { return !contains(gone, n); });
}

// Whoever finds that the open one has its members opens the next, as the one who has set them may
// not have come to that.
Result<int> Membership::open_generation() const {
  STRETTO_ASSIGN_OR_RETURN(const auto text, store_->look_up(kOpen, answer()));
  int number = std::max(1, parse_number<int>(text.value_or("1")).value_or(1));
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(const auto members, members_of(number));
    if (members.empty()) return number;
    const std::string before = number == 1 ? "" : std::to_string(number);
    ++number;
    STRETTO_RETURN_IF_ERROR(
        store_->compare_set(kOpen, before, std::to_string(number), answer()).status());
  }
}

// Empty: it has none yet.
Result<std::vector<Member>> Membership::members_of(int generation) const {
  STRETTO_ASSIGN_OR_RETURN(const auto text, store_->look_up(members_key(generation), answer()));
  return parse_members(text.value_or(""));
}

// If this process ends before all members have met, nobody waits for it: their join has failed, and
// the next generation will be without it.
Result<std::unique_ptr<bootstrap::StoreWatch>> Membership::arrive(int generation) const {
  const std::string card = card_of(options_.launcher_rank);
  const Status ended(StatusCode::peer_lost,
                     fmt::format("{} ended while generation {} of the job was starting",
                                 name_of(number_, card), generation));
  const std::string prefix = meeting_prefix(generation);
  STRETTO_ASSIGN_OR_RETURN(auto pledge,
                           store_->watch(prefix + std::string(bootstrap::kJoinFailureKey),
                                         {.value = bootstrap::encode_join_failure(ended),
                                          .revoked_by = prefix + bootstrap::kAllJoinedKey},
                                         answer()));
  STRETTO_RETURN_IF_ERROR(store_->set(waits_key(generation, number_), card, answer()));
  return pledge;
}

Result<std::vector<Member>> Membership::wait_for_members(int generation,
                                                         const WaitLimit& limit) const {
  const TimePoint start = Clock::now();
  std::vector<Member> last;
  if (generation > 1) {
    STRETTO_ASSIGN_OR_RETURN(last, members_of(generation - 1));
  }
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(auto members, members_of(generation));
    if (!members.empty()) return members;
    STRETTO_RETURN_IF_ERROR(check_not_given_up());
    STRETTO_ASSIGN_OR_RETURN(const Meeting meeting, look(generation, last));
    if (meeting.complete()) {
      STRETTO_RETURN_IF_ERROR(close(generation, meeting));
      continue;
    }
    if (limit.passed()) return describe_wait(generation, meeting, Clock::now() - start);
    STRETTO_RETURN_IF_ERROR(limit.look());
    std::this_thread::sleep_for(std::min(pause_for(meeting.arrived.size()), limit.nap()));
  }
}

Result<Numbers> Membership::numbers_under(const std::string& prefix) const {
  STRETTO_ASSIGN_OR_RETURN(const auto keys, store_->list_keys(prefix, answer()));
  Numbers numbers;
  for (const std::string& key : keys) {
    const auto number = parse_number<std::int64_t>(std::string_view(key).substr(prefix.size()));
    if (number) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<Membership::Meeting> Membership::look(int generation,
                                             const std::vector<Member>& last) const {
  STRETTO_ASSIGN_OR_RETURN(Numbers waiting, numbers_under(waits_prefix(generation)));
  STRETTO_ASSIGN_OR_RETURN(const Numbers gone, numbers_under(kGone));
  Meeting meeting{.wanted = generation == 1 ? std::max(options_.first_size, options_.min_size)
                                            : options_.min_size};
  for (const Member& member : last) {
    if (!contains(waiting, member.number) && !contains(gone, member.number)) {
      meeting.missing.push_back(member.number);
    }
  }
  std::erase_if(waiting, [&](std::int64_t n) { return contains(gone, n); });
  meeting.arrived = std::move(waiting);
  return meeting;
}

// Several may find it complete, and differ in who has come last: the first decides.
Status Membership::close(int generation, const Meeting& meeting) const {
  std::vector<std::string> keys;
  for (const std::int64_t number : meeting.arrived) keys.push_back(waits_key(generation, number));
  STRETTO_ASSIGN_OR_RETURN(const auto cards, store_->multi_get(keys, answer()));
  std::vector<Member> members;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    members.push_back(member_of(meeting.arrived[i], cards[i]));
  }
  return store_->compare_set(members_key(generation), "", format_members(members), answer())
      .status();
}

Status Membership::check_not_given_up() const {
  const std::array key = {gone_key(number_)};
  STRETTO_ASSIGN_OR_RETURN(const bool gone, store_->check(key, answer()));
  if (!gone) return {};
  return status_of(StatusCode::aborted,
                   "{} has lost the connection to this process, which the others have taken for "
                   "dead: the job goes on without it",
                   store_->describe());
}

Status Membership::describe_wait(int generation, const Meeting& meeting, Duration waited) const {
  std::string text = fmt::format(
      "waited {:.0f} s for generation {} of the job, to which {} of at least {} processes have "
      "come",
      seconds(waited), generation, meeting.arrived.size(), meeting.wanted);
  std::string separator = "; these live, but have not called join() again: ";
  for (const std::int64_t number : meeting.missing) {
    const auto card = store_->look_up(waits_key(generation - 1, number), answer());
    text += separator + name_of(number, card.ok() ? card.value().value_or("") : "");
    separator = ", ";
  }
  return {StatusCode::timeout, text + "; all meet in " + store_->describe()};
}

}  // namespace stretto::job
