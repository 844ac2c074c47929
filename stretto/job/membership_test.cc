// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/membership.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "tests/support/expect_contains.h"
#include "tests/support/on_threads.h"
#include "tests/support/seed.h"
#include "tests/support/soon.h"

namespace stretto::job {
namespace {

using Numbers = std::vector<std::int64_t>;

class MembershipTest : public ::testing::Test {
 protected:
  std::shared_ptr<bootstrap::Store> connect() {
    return bootstrap::connect_tcp_store({.host = "127.0.0.1", .port = server_->port(), .key = key_},
                                        soon())
        .or_throw();
  }
  // Makes a process that enters the job.
  std::unique_ptr<Membership> enter(const Membership::Options& options = {.first_size = 1}) {
    return Membership::enter(connect(), options, soon()).or_throw();
  }
  // Lets the process meet those who have come. Returns what next() returns.
  static Result<std::optional<Generation>> next(Membership& process,
                                                const WaitLimit& limit = soon()) {
    auto generation = process.next(limit);
    if (generation.ok() && *generation) process.note_meeting(**generation);
    return generation;
  }
  static Generation meet(Membership& process) { return next(process).or_throw().value(); }
  static bool has_newcomers(const Membership& process) {
    return process.has_newcomers(soon()).or_throw();
  }
  bool is_gone(int process) {
    const std::array key = {fmt::format("gone/{}", process)};
    return store_->check(key, soon()).or_throw();
  }
  // Returns the next generation, as each of these processes sees it.
  static std::vector<Generation> meet(const std::vector<Membership*>& processes) {
    std::vector<Generation> generations(processes.size());
    on_threads(processes.size(), [&](std::size_t i) { generations[i] = meet(*processes[i]); });
    return generations;
  }

  bootstrap::JobKey key_ = bootstrap::JobKey::generate().or_throw();
  std::unique_ptr<bootstrap::StoreServer> server_ =
      bootstrap::StoreServer::start({.key = key_}).or_throw();
  std::shared_ptr<bootstrap::Store> store_ = connect();
};

Numbers numbers_of(const Generation& generation) {
  Numbers numbers;
  for (const Member& member : generation.members) numbers.push_back(member.number);
  return numbers;
}

const Deadline kNoTime = Deadline(TimePoint::min());

TEST_F(MembershipTest, TheFirstGenerationWaitsForAllThatTheLauncherStarts) {
  const auto first = enter({.launcher_rank = 1, .first_size = 2});
  const Status alone = next(*first, Deadline::after(std::chrono::milliseconds(30))).status();
  EXPECT_EQ(alone.code(), StatusCode::timeout);
  expect_contains(alone.message(), "generation 1 of the job, to which 1 of at least 2 processes");
  const auto second = enter({.launcher_rank = 0, .first_size = 2});
  const auto generations = meet({first.get(), second.get()});
  EXPECT_EQ(generations[0].number, 1);
  EXPECT_EQ(generations[0].rank, 0);
  EXPECT_EQ(generations[1].rank, 1);
  EXPECT_EQ(generations[0].members, (std::vector<Member>{{1, 1, 1}, {2, 1, 0}}));
  EXPECT_EQ(generations[0].members, generations[1].members);
}

TEST_F(MembershipTest, WhoDoesNotKnowHowManyThereAreDoesNotBegin) {
  const auto by_hand = enter({});
  const Status alone = next(*by_hand, Deadline::after(std::chrono::milliseconds(30))).status();
  expect_contains(alone.message(), "1 of at least the launcher's processes have come");
  const auto launched = enter({.first_size = 2});
  EXPECT_EQ(meet({by_hand.get(), launched.get()})[0].members.size(), 2U);
}

TEST_F(MembershipTest, GoesOnWithThoseThatLive) {
  const Membership::Options options{.first_size = 3};
  auto first = enter(options);
  const auto second = enter(options);
  const auto third = enter(options);
  meet({first.get(), second.get(), third.get()});
  first.reset();
  const auto generations = meet({second.get(), third.get()});
  EXPECT_EQ(generations[0].number, 2);
  EXPECT_EQ(numbers_of(generations[0]), (Numbers{2, 3}));
  EXPECT_EQ(generations[1].rank, 1);
}

// The child may be a worker of a DataLoader.
TEST_F(MembershipTest, WhoHasLeftIsGoneThoughAForkedChildLives) {
  auto first = enter({.first_size = 2});
  const auto second = enter({.first_size = 2});
  meet({first.get(), second.get()});
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(writing.get());
    char end_of_test = 0;
    ::_exit(static_cast<int>(::read(reading.get(), &end_of_test, 1)));
  }
  first.reset();
  EXPECT_EQ(numbers_of(meet(*second)), (Numbers{2}));
  writing.reset();
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(MembershipTest, ANewcomerWaitsUntilTheOthersCome) {
  const auto old = enter();
  meet(*old);
  EXPECT_FALSE(has_newcomers(*old));
  const auto newcomer = enter();
  EXPECT_FALSE(has_newcomers(*old)) << "it has entered, but waits for nothing yet";
  std::thread waits([&] {
    const Generation generation = meet(*newcomer);
    EXPECT_EQ(generation.number, 2);
    EXPECT_EQ(generation.rank, 1);
  });
  EXPECT_TRUE(comes_true([&] { return has_newcomers(*old); }));
  EXPECT_EQ(numbers_of(meet(*old)), (Numbers{1, 2}));
  waits.join();
  EXPECT_FALSE(has_newcomers(*old));
}

// As rank 0, it would give everybody its empty state.
TEST_F(MembershipTest, WhoHasEnteredFirstButComesLastIsANewcomer) {
  const auto slow = enter();
  const auto first = enter({.first_size = 2});
  const auto second = enter({.first_size = 2});
  meet({first.get(), second.get()});
  std::thread waits([&] { EXPECT_EQ(meet(*slow).rank, 2); });
  EXPECT_TRUE(comes_true([&] { return has_newcomers(*first); }));
  EXPECT_EQ(numbers_of(meet({first.get(), second.get()})[0]), (Numbers{2, 3, 1}));
  waits.join();
}

TEST_F(MembershipTest, ANewcomerThatIsGoneIsNone) {
  const auto old = enter();
  meet(*old);
  auto newcomer = enter();
  store_->set("waits/2/2", "0 -1 as if it had come", soon()).or_throw();
  EXPECT_TRUE(has_newcomers(*old));
  newcomer.reset();
  EXPECT_TRUE(comes_true([&] { return !has_newcomers(*old); }));
}

TEST_F(MembershipTest, WhoHasTimedOutIsNotCountedAndMayComeAgain) {
  const Membership::Options options{.first_size = 2};
  const auto first = enter(options);
  const auto second = enter(options);
  EXPECT_EQ(next(*first, kNoTime).status().code(), StatusCode::timeout);
  EXPECT_EQ(store_->num_keys("waits/1/", soon()).or_throw(), 0);
  EXPECT_EQ(meet({first.get(), second.get()})[0].number, 1);
  // Now it times out as a member.
  EXPECT_EQ(next(*second, kNoTime).status().code(), StatusCode::timeout);
  const auto generations = meet({first.get(), second.get()});
  EXPECT_EQ(generations[1].number, 2);
  EXPECT_EQ(numbers_of(generations[1]), (Numbers{1, 2}));
}

TEST_F(MembershipTest, TheFirstListOfMembersCounts) {
  const auto first = enter({.first_size = 2});
  std::thread others([&] {
    const std::array come = {std::string("waits/1/1")};
    store_->wait(come, soon()).or_throw();
    store_->set("members/1", "1:1:-1 2:1:-1", soon()).or_throw();
  });
  EXPECT_EQ(meet(*first).members.size(), 2U);
  others.join();
}

TEST_F(MembershipTest, WaitsForAsManyAsAreWanted) {
  const Membership::Options options{.first_size = 2, .min_size = 2};
  const auto first = enter(options);
  auto second = enter(options);
  meet({first.get(), second.get()});
  second.reset();
  ASSERT_TRUE(comes_true([&] { return is_gone(2); }));
  const Status alone = next(*first, Deadline::after(std::chrono::milliseconds(30))).status();
  expect_contains(alone.message(), "1 of at least 2 processes have come");
  const auto third = enter(options);
  EXPECT_EQ(numbers_of(meet({first.get(), third.get()})[0]), (Numbers{1, 3}));
}

TEST_F(MembershipTest, NamesWhoLivesButDoesNotCome) {
  const Membership::Options options{.first_size = 2};
  const auto first = enter(options);
  const auto second = enter(options);
  meet({first.get(), second.get()});
  const Status late = next(*first, Deadline::after(std::chrono::milliseconds(30))).status();
  EXPECT_EQ(late.code(), StatusCode::timeout);
  expect_contains(late.message(), "these live, but have not called join() again: process 2 (");
  expect_contains(late.message(), fmt::format("pid {})", ::getpid()));
}

TEST_F(MembershipTest, WhoIsTakenForDeadHasToLeave) {
  const auto first = enter();
  meet(*first);
  store_->set("gone/1", "1", soon()).or_throw();  // As if its connection had broken.
  const Status given_up = next(*first).status();
  EXPECT_EQ(given_up.code(), StatusCode::aborted);
  expect_contains(given_up.message(), "the job goes on without it");
}

TEST_F(MembershipTest, AStoreThatIsGoneIsNotWaitedForUntilTheDeadline) {
  const auto process = enter();
  meet(*process);
  store_.reset();
  server_.reset();
  const TimePoint start = Clock::now();
  const Status lost = next(*process, Deadline::after(std::chrono::seconds(60))).status();
  EXPECT_EQ(lost.code(), StatusCode::peer_lost);
  expect_contains(lost.message(), "is gone, and with it the job");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  // It does not wait either if no connection is left that could end.
  EXPECT_EQ(process->finish(Deadline::after(std::chrono::milliseconds(30))).code(),
            StatusCode::peer_lost);
}

// Otherwise a process that comes after the others have ended would do everything once more.
TEST_F(MembershipTest, NobodyComesToAJobThatHasFinished) {
  const auto old = enter();
  meet(*old);
  const auto newcomer = enter();
  std::thread waits([&] { EXPECT_FALSE(next(*newcomer).or_throw().has_value()); });
  EXPECT_TRUE(comes_true([&] { return has_newcomers(*old); }));
  old->finish(soon()).or_throw();
  waits.join();
  EXPECT_FALSE(next(*old).or_throw().has_value());
  EXPECT_FALSE(next(*enter()).or_throw().has_value());
}

TEST_F(MembershipTest, OldGenerationsAreForgotten) {
  const auto process = enter();
  for (int generation = 1; generation <= 5; ++generation) {
    meet(*process).store->set("note", "x", soon()).or_throw();
  }
  EXPECT_EQ(store_->num_keys("1/", soon()).or_throw(), 0);
  EXPECT_EQ(store_->num_keys("waits/1/", soon()).or_throw(), 0);
  EXPECT_EQ(store_->num_keys("5/", soon()).or_throw(), 1);
}

TEST(Members, AreReadAsTheyAreWritten) {
  const std::vector<Member> members = {{.number = 12, .since = 1, .launcher_rank = 1},
                                       {.number = 3, .since = 2}};
  EXPECT_EQ(format_members(members), "12:1:1 3:2:-1");
  EXPECT_EQ(parse_members("12:1:1 3:2:-1").or_throw(), members);
  EXPECT_EQ(parse_members("").or_throw(), std::vector<Member>());
  for (const char* text :
       {"3", "3:1", "3:1:", ":1:1", "3:1:1 3:1:2", "0:1:1", "-3:1:1", "3:0:1", "3:1:1,4:1:1",
        "3:1:-2", "3:1:1  4:1:1", "99999999999999999999:1:1", "3:1:1 x", "3:1:1:1"}) {
    EXPECT_EQ(parse_members(text).status().code(), StatusCode::protocol) << text;
  }
}

// Processes come, leave and die at any time. All who know a generation know the same of it.
TEST_F(MembershipTest, AllMembersOfAGenerationKnowTheSame) {
  const std::uint64_t seed = testing::draw_seed();
  constexpr int kThreads = 4;
  constexpr int kMeetings = 25;
  std::mutex mutex;
  std::map<int, std::vector<Member>> generations;
  std::size_t largest = 0;
  on_threads(kThreads, [&](int thread) {
    std::mt19937 random(seed + static_cast<std::uint64_t>(thread));
    auto process = enter();
    int last = 0;
    for (int meeting = 0; meeting < kMeetings;) {
      const bool in_a_hurry = random() % 5 == 0;
      const auto generation = next(*process, in_a_hurry ? kNoTime : soon());
      if (in_a_hurry && generation.status().code() == StatusCode::timeout) continue;
      const Generation met = Result(generation).or_throw().value();
      ++meeting;
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_GT(met.number, last);
      last = met.number;
      const auto [known, first] = generations.emplace(last, met.members);
      EXPECT_EQ(known->second, met.members) << "generation " << last;
      largest = std::max(largest, met.members.size());
      if (random() % 4 != 0) continue;
      process = enter();  // The old one is gone.
      last = 0;
    }
  });
  EXPECT_GT(largest, 1U) << "they have never met";
}

}  // namespace
}  // namespace stretto::job
