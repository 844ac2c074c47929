// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/membership.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "tests/support/expect_contains.h"
#include "tests/support/on_threads.h"
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
  // A process that enters the job.
  std::unique_ptr<Membership> enter(const Membership::Options& options = {}) {
    return Membership::enter(connect(), options).or_throw();
  }
  bool is_gone(int process) {
    const std::array key = {fmt::format("gone/{}", process)};
    return store_->check(key, soon()).or_throw();
  }
  // The next generation of all of these.
  static std::vector<Generation> meet(const std::vector<Membership*>& processes) {
    std::vector<Generation> generations(processes.size());
    on_threads(processes.size(),
               [&](std::size_t i) { generations[i] = processes[i]->next(soon()).or_throw(); });
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

TEST_F(MembershipTest, TheFirstGenerationWaitsForAllThatTheLauncherStarts) {
  auto early = enter({.first_size = 2});
  const Status alone = early->next(Deadline::after(std::chrono::milliseconds(30))).status();
  EXPECT_EQ(alone.code(), StatusCode::timeout);
  expect_contains(alone.message(), "generation 1 of the job, to which 1 of at least 2 processes");
  early->leave();
  ASSERT_TRUE(comes_true([&] { return is_gone(1); }));
  const auto first = enter({.launcher_rank = 1, .first_size = 2});
  const auto second = enter({.launcher_rank = 0, .first_size = 2});
  const auto generations = meet({first.get(), second.get()});
  EXPECT_EQ(generations[0].number, 1);
  EXPECT_EQ(generations[0].rank, 0);
  EXPECT_EQ(generations[1].rank, 1);
  EXPECT_EQ(generations[0].members, (std::vector<Member>{{2, 1}, {3, 0}}));
  EXPECT_EQ(generations[0].members, generations[1].members);
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

TEST_F(MembershipTest, ANewcomerWaitsUntilTheOthersCome) {
  const auto old = enter();
  meet({old.get()});
  EXPECT_FALSE(old->has_newcomers().or_throw());
  const auto newcomer = enter();
  EXPECT_FALSE(old->has_newcomers().or_throw()) << "it has entered, but waits for nothing yet";
  std::thread waits([&] {
    const Generation generation = newcomer->next(soon()).or_throw();
    EXPECT_EQ(generation.number, 2);
    EXPECT_EQ(generation.rank, 1);
  });
  EXPECT_TRUE(comes_true([&] { return old->has_newcomers().or_throw(); }));
  EXPECT_EQ(numbers_of(old->next(soon()).or_throw()), (Numbers{1, 2}));
  waits.join();
  EXPECT_FALSE(old->has_newcomers().or_throw());
}

TEST_F(MembershipTest, ANewcomerThatIsGoneIsNone) {
  const auto old = enter();
  meet({old.get()});
  auto newcomer = enter();
  EXPECT_EQ(newcomer->next(Deadline::after(std::chrono::milliseconds(1))).status().code(),
            StatusCode::timeout);
  EXPECT_TRUE(old->has_newcomers().or_throw());
  newcomer.reset();
  EXPECT_TRUE(comes_true([&] { return !old->has_newcomers().or_throw(); }));
}

TEST_F(MembershipTest, WaitsForAsManyAsAreWanted) {
  const Membership::Options options{.first_size = 2, .min_size = 2};
  const auto first = enter(options);
  auto second = enter(options);
  meet({first.get(), second.get()});
  second->leave();
  ASSERT_TRUE(comes_true([&] { return is_gone(2); }));
  std::thread waits([&] {
    EXPECT_EQ(numbers_of(first->next(soon()).or_throw()), (Numbers{1, 3}));
  });
  const std::array waiting = {std::string("waits/2/1")};
  store_->wait(waiting, soon()).or_throw();
  const auto third = enter(options);
  EXPECT_EQ(third->next(soon()).or_throw().rank, 1);
  waits.join();
  third->leave();
  const Status alone = first->next(Deadline::after(std::chrono::milliseconds(100))).status();
  expect_contains(alone.message(), "1 of at least 2 processes have come");
}

TEST_F(MembershipTest, NamesWhoLivesButDoesNotCome) {
  const Membership::Options options{.first_size = 2};
  const auto first = enter(options);
  const auto second = enter(options);
  meet({first.get(), second.get()});
  const Status late = first->next(Deadline::after(std::chrono::milliseconds(30))).status();
  EXPECT_EQ(late.code(), StatusCode::timeout);
  expect_contains(late.message(), "these live, but have not called join() again: process 2 (");
  expect_contains(late.message(), fmt::format("pid {})", ::getpid()));
}

TEST_F(MembershipTest, WhoIsTakenForDeadHasToLeave) {
  const auto first = enter();
  meet({first.get()});
  store_->set("gone/1", "1", soon()).or_throw();  // As if its connection had broken.
  const Status given_up = first->next(soon()).status();
  EXPECT_EQ(given_up.code(), StatusCode::aborted);
  expect_contains(given_up.message(), "the job goes on without it");
}

// Else the others would wait for it until their time is up.
TEST_F(MembershipTest, AGenerationFailsIfAMemberEndsBeforeAllHaveMet) {
  const Membership::Options options{.first_size = 2};
  const auto first = enter(options);
  auto second = enter(options);
  auto generations = meet({first.get(), second.get()});
  const std::string failure(bootstrap::kJoinFailureKey);
  EXPECT_FALSE(generations[0].store->look_up(failure, soon()).or_throw());
  generations[1].pledge.reset();
  const Status ended =
      bootstrap::decode_join_failure(generations[0].store->get(failure, soon()).or_throw());
  EXPECT_EQ(ended.code(), StatusCode::peer_lost);
  expect_contains(ended.message(), "process 2 (");
}

TEST_F(MembershipTest, AGenerationThatHasMetIsNotHarmedByAnEnd) {
  const auto first = enter();
  auto generation = first->next(soon()).or_throw();
  generation.store->set("all-joined", "", soon()).or_throw();
  generation.pledge.reset();
  const auto next = first->next(soon()).or_throw();  // Asked for after the will was executed.
  EXPECT_EQ(next.number, 2);
  EXPECT_FALSE(
      generation.store->look_up(std::string(bootstrap::kJoinFailureKey), soon()).or_throw());
}

TEST(Members, AreReadAsTheyAreWritten) {
  const std::vector<Member> members = {{.number = 3, .launcher_rank = 1}, {.number = 12}};
  EXPECT_EQ(format_members(members), "3:1 12:-1");
  EXPECT_EQ(parse_members("3:1 12:-1").or_throw(), members);
  EXPECT_EQ(parse_members("").or_throw(), std::vector<Member>());
  for (const char* text : {"3", "3:", ":1", "3:1 3:2", "4:1 3:1", "0:1", "-3:1", "3:1,4:1", "3:-2",
                           "3:1  4:1", "99999999999999999999:1", "3:1 x"}) {
    EXPECT_EQ(parse_members(text).status().code(), StatusCode::protocol) << text;
  }
}

// Processes come, leave and die at any time; whoever is told of a generation is told the same.
TEST_F(MembershipTest, AllMembersOfAGenerationKnowTheSame) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  constexpr int kThreads = 4;
  constexpr int kMeetings = 25;
  std::mutex mutex;
  std::map<int, std::vector<Member>> generations;
  std::size_t largest = 0;
  on_threads(kThreads, [&](int thread) {
    std::mt19937 random(seed + static_cast<unsigned>(thread));
    auto process = enter();
    int last = 0;
    for (int meeting = 0; meeting < kMeetings; ++meeting) {
      auto generation = process->next(soon()).or_throw();
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_GT(generation.number, last);
      last = generation.number;
      const auto [known, first] = generations.emplace(last, generation.members);
      EXPECT_EQ(known->second, generation.members) << "generation " << last;
      largest = std::max(largest, generation.members.size());
      if (random() % 4 != 0) continue;
      if (random() % 2 == 0) generation.pledge.reset();
      process = enter();  // The old one is gone.
      last = 0;
    }
  });
  EXPECT_GT(largest, 1U) << "they have never met";
}

}  // namespace
}  // namespace stretto::job
