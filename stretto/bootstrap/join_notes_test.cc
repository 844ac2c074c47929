// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/join_notes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "stretto/bootstrap/file_store.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;

// Opens, for each rank, a store of every kind that can tell of dead ranks.
class JoinNotesTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<Store> open(int rank) {
    const bool by_file = GetParam() == std::string("file");
    if (by_file) return open_file_store(folder_ / "notes", soon()).or_throw();
    return connect_tcp_store(
               {.host = "localhost", .port = server_->port(), .key = key_, .self = {.rank = rank}},
               soon())
        .or_throw();
  }
  std::unique_ptr<JoinNotes> arrive(int rank, int size, Deadline deadline = soon()) {
    auto notes = std::make_unique<JoinNotes>(
        open(rank), JoinNotes::Options{.rank = rank, .size = size, .deadline = deadline});
    EXPECT_TRUE(notes->arrive().ok());
    return notes;
  }

  const JobKey key_ = JobKey::generate().or_throw();
  const std::unique_ptr<StoreServer> server_ = StoreServer::start({.key = key_}).or_throw();
  const TemporaryFolder folder_;
};

TEST_P(JoinNotesTest, ARankThatEndsWithoutAWordEndsTheJoinOfAll) {
  const auto zero = arrive(0, 3);
  auto one = arrive(1, 3);
  std::thread end([&] {
    std::this_thread::sleep_for(milliseconds(20));
    one.reset();
  });
  const Status status = zero->get("card", 2).status();
  end.join();
  expect_failure(status, StatusCode::peer_lost, "rank 1 (");
  expect_failure(status, StatusCode::peer_lost, "ended while the job was starting");
  EXPECT_EQ(status.rank(), Rank(1));
  EXPECT_EQ(zero->limit().look().message(), status.message()) << "the first failure stays";
}

// The other ranks wait for its last note.
TEST_P(JoinNotesTest, RankZeroMayNotEndBeforeItHasToldThatAllHaveJoined) {
  auto zero = arrive(0, 2);
  const auto one = arrive(1, 2);
  EXPECT_TRUE(zero->finish().ok());
  EXPECT_TRUE(one->finish().ok());
  zero.reset();
  const Status status = one->wait_for_join();
  expect_failure(status, StatusCode::peer_lost, "ended while the job was starting");
  EXPECT_EQ(status.rank(), Rank(0));
}

TEST_P(JoinNotesTest, TheFirstFailureIsEverybodys) {
  const auto zero = arrive(0, 3);
  const auto one = arrive(1, 3);
  const auto two = arrive(2, 3);
  const Status own(StatusCode::out_of_memory, "no room");
  EXPECT_EQ(one->abandon(own).message(), "no room");
  expect_failure(zero->get("card", 2).status(), StatusCode::aborted, "could not join: no room");
  const Status second = two->abandon({StatusCode::system, "something that follows"});
  expect_failure(second, StatusCode::aborted, "could not join: no room");
  EXPECT_EQ(second.rank(), Rank(1));
}

TEST_P(JoinNotesTest, WhatGoesWrongMeanwhileEndsAWaitAndIsTold) {
  const auto zero = arrive(0, 2);
  const auto one = arrive(1, 2);
  Status own;
  zero->end_waits_by([&own] { return own; });
  EXPECT_TRUE(one->tell("card", "").ok());
  EXPECT_TRUE(zero->get("card", 1).ok());
  own = Status(StatusCode::system, "nobody can connect");
  expect_failure(zero->get("unix", 1).status(), StatusCode::system, "nobody can connect");
  expect_failure(zero->limit().look(), StatusCode::system, "nobody can connect");
  EXPECT_EQ(zero->abandon(own).message(), "nobody can connect");
  expect_failure(one->get("unix", 0).status(), StatusCode::aborted,
                 "could not join: nobody can connect");
}

TEST_P(JoinNotesTest, WhoHasFinishedOrNoPlaceMayEnd) {
  const auto zero = arrive(0, 2);
  auto one = arrive(1, 2);
  auto again = std::make_unique<JoinNotes>(
      open(1), JoinNotes::Options{.rank = 1, .size = 2, .deadline = soon()});
  expect_failure(again->arrive(), StatusCode::refused,
                 fmt::format("pid {} has come as that rank before it", ::getpid()));
  EXPECT_EQ(again->abandon({StatusCode::refused, "not me"}).message(), "not me");
  again.reset();
  EXPECT_TRUE(one->finish().ok());
  one.reset();
  EXPECT_TRUE(zero->finish().ok());
  EXPECT_TRUE(zero->end_join().ok());
  // Each file is looked at more often than this.
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_TRUE(zero->limit().look().ok()) << zero->limit().look().message();
}

TEST_P(JoinNotesTest, TellsWhoNeverCameFromWhoDidNotGoOn) {
  const auto zero = arrive(0, 3, Deadline::after(milliseconds(300)));
  const auto one = arrive(1, 3);
  expect_failure(zero->get("card", 1).status(), StatusCode::timeout,
                 "for 1 of 3 ranks: 2 never came. All meet in ");
  const auto two = arrive(2, 3);
  EXPECT_TRUE(two->tell("card", "").ok());
  expect_failure(zero->get("card", 1).status(), StatusCode::timeout,
                 "for 1 of 3 ranks: 1 came to ");
}

// Rank 1 waits for a note that only rank 0 writes.
TEST_P(JoinNotesTest, OnlyRankZeroIsNamedWhereItAloneIsWaitedFor) {
  const auto zero = arrive(0, 3);
  const auto two = arrive(2, 3);
  const auto one = arrive(1, 3, Deadline::after(milliseconds(300)));
  expect_failure(one->wait_for_arrivals(), StatusCode::timeout, "for 1 of 3 ranks: 0 came to ");
}

TEST_P(JoinNotesTest, ALauncherTellsOfARankThatNeverCameButNotOfOneThatHasJoined) {
  const auto zero = arrive(0, 3);
  const auto one = arrive(1, 3);
  EXPECT_TRUE(one->finish().ok());
  const auto launcher = open(-1);
  EXPECT_TRUE(report_end(*launcher, 1, "exit status 1").ok());
  EXPECT_TRUE(zero->limit().look().ok());
  EXPECT_TRUE(report_end(*launcher, 2, "exit status 3").ok());
  expect_failure(zero->get("card", 2).status(), StatusCode::peer_lost,
                 "rank 2 ended while the job was starting: exit status 3");
}

INSTANTIATE_TEST_SUITE_P(Stores, JoinNotesTest, ::testing::Values("tcp", "file"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(JoinNotes, NamesWhoIsMissingAndWhereAndForHowLong) {
  const JobKey key = JobKey::generate().or_throw();
  const auto server = StoreServer::start({.key = key}).or_throw();
  const std::shared_ptr<Store> store =
      connect_tcp_store({.host = "localhost", .port = server->port(), .key = key}, soon())
          .or_throw();
  for (int r : {0, 1, 2, 3, 4, 7}) {
    ASSERT_TRUE(store->set("arrived/" + std::to_string(r), "1", soon()).ok());
    ASSERT_TRUE(store->set("card/" + std::to_string(r), "", soon()).ok());
  }
  const JoinNotes notes(store, {.size = 8, .deadline = Deadline::after(milliseconds(600))});
  EXPECT_TRUE(notes.get("card", 4).ok());
  const Status status = notes.get("card", 5).status();
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(),
            fmt::format("waited 1/1 s for 2 of 8 ranks: 5, 6 never came. All meet in the store of "
                        "the launcher at localhost:{0} (on this host 127.0.0.1:{0}), which their "
                        "hosts must be able to reach; test there: stretto doctor --to "
                        "127.0.0.1:{0}",
                        server->port()));
}

TEST(JoinNotes, RemindsWhileItWaitsAndHintsAtWhoWasRefused) {
  const auto store = std::make_shared<MemoryStore>();
  ASSERT_TRUE(store->set(kRefusedPeerKey, "rank 1 has another \x9bkey (10.0.0.7:33)", soon()).ok());
  const JoinNotes notes(store, {.size = 2, .deadline = soon(), .reminder = milliseconds(10)});
  ::testing::internal::CaptureStderr();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_TRUE(store->set("card/1", "here", soon()).ok());
  });
  EXPECT_EQ(notes.get("card", 1).or_throw(), "here");
  late.join();
  const std::string text = ::testing::internal::GetCapturedStderr();
  expect_contains(text,
                  "warning: waiting 0/10 s for 1 of 2 ranks: 1 never came. All meet in the "
                  "memory of this process");
  expect_contains(text, "Perhaps it was one of them that was refused: rank 1 has another ?key");
}

TEST(JoinNotes, WaitsForAChangeAndSaysSo) {
  const auto store = std::make_shared<MemoryStore>();
  ASSERT_TRUE(store->set("round", "1", soon()).ok());
  const JoinNotes notes(store, {.rank = 1, .size = 2, .deadline = soon(), .reminder = {}});
  const auto changed = [&](Deadline until) {
    return notes.get_changed("round", "1", "rank 0 has not come again", until);
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(changed(Deadline::after(milliseconds(100))).status().code(), StatusCode::timeout);
  expect_contains(::testing::internal::GetCapturedStderr(),
                  "warning: waiting 0/10 s: rank 0 has not come again\n");
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_TRUE(store->set("round", "2", soon()).ok());
  });
  EXPECT_EQ(changed(soon()).or_throw(), "2");
  late.join();
}

// If the network is down, its watch tells this once, as the system does, and then a plain end.
class CutOffStore : public MemoryStore {
 public:
  Result<std::unique_ptr<StoreWatch>> watch(const std::string&, const Will&,
                                            const WaitLimit&) override {
    class Watch : public StoreWatch {
      Result<std::optional<std::string>> look() override {
        const StatusCode code = first_ ? StatusCode::system : StatusCode::peer_lost;
        first_ = false;
        return Status(code, code == StatusCode::system ? "the network is down" : "it ended");
      }
      Status revoke(const WaitLimit&) override { return {}; }
      bool first_ = true;
    };
    return std::unique_ptr<StoreWatch>(std::make_unique<Watch>());
  }
};

TEST(JoinNotes, AStoreThatIsCutOffIsNotTakenForOneThatHasEnded) {
  JoinNotes notes(std::make_shared<CutOffStore>(), {.size = 2, .deadline = soon()});
  ASSERT_TRUE(notes.arrive().ok());
  for (int i = 0; i < 2; ++i) {
    expect_failure(notes.limit().look(), StatusCode::system, "the network is down");
  }
}

TEST(JoinFailure, SurvivesItsWayAndAnyText) {
  const Status sent(StatusCode::mismatch, "rank 2 says 3", Rank(2));
  const Status received = decode_join_failure(encode_join_failure(sent));
  EXPECT_EQ(received.code(), sent.code());
  EXPECT_EQ(received.message(), sent.message());
  EXPECT_EQ(received.rank(), sent.rank());
  for (const char* text :
       {"", "x", "refused", "refused\n-7\nwho", "\n\n\x1b[2J", "\n\n\x9b[2J", "ok\n0\nfine"}) {
    const Status status = decode_join_failure(text);
    EXPECT_FALSE(status.ok());
    expect_lacks(status.message(), "\x1b");
    expect_lacks(status.message(), "\x9b");
  }
}

}  // namespace
}  // namespace stretto::bootstrap
