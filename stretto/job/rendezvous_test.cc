// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/base/rank_vector.h"
#include "stretto/bootstrap/file_store.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/job/rendezvous.h"
#include "stretto/job/slurm.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/free_port.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto::job {
namespace {

using std::chrono::milliseconds;

Job tcp_job(int size) {
  return {.size = size,
          .rendezvous_kind = RendezvousKind::rank_0_store,
          .rendezvous = {"127.0.0.1", free_port()}};
}

class RendezvousTest : public ::testing::Test {
 protected:
  Job file_job(int size) const {
    return {
        .size = size, .rendezvous_kind = RendezvousKind::file, .rendezvous_path = folder_ / "job"};
  }

  const TemporaryFolder folder_;
};

Job as_rank(Job job, int rank) {
  job.rank = rank;
  return job;
}

// Each rank of a job, on a thread of its own, opens a rendezvous, looks at the key and finishes.
std::vector<std::string> meet(const Job& job) {
  RankVector<std::string> keys(job.size);
  on_threads(job.size, [&](int rank) {
    const auto rendezvous = Rendezvous::open(as_rank(job, rank), soon());
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
    keys[rank] = rendezvous.value()->key().hexadecimal();
    const Status finished = rendezvous.value()->finish();
    EXPECT_TRUE(finished.ok()) << finished.message();
  });
  return keys;
}

void expect_one_fresh_key(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) EXPECT_EQ(key, keys[0]);
  EXPECT_NE(keys[0], bootstrap::JobKey().hexadecimal());
}

TEST_F(RendezvousTest, RanksMeetAtRankZeroAgainAndAgain) {
  const Job job = tcp_job(4);
  for (int i = 0; i < 3; ++i) expect_one_fresh_key(meet(job));
}

TEST_F(RendezvousTest, RanksMeetInAFileThatIsGoneAfterwards) {
  const Job job = file_job(4);
  for (int i = 0; i < 3; ++i) {
    expect_one_fresh_key(meet(job));
    EXPECT_FALSE(std::filesystem::exists(job.rendezvous_path));
  }
}

// A user may give the same key to all jobs.
TEST_F(RendezvousTest, JobsThatHaveOneKeyMakeOthersOfIt) {
  std::set<std::string> seen;
  for (Job job : {tcp_job(2), tcp_job(2), file_job(2)}) {
    job.key = bootstrap::JobKey::parse(std::string(64, '7')).or_throw();
    const auto keys = meet(job);
    EXPECT_EQ(keys[0], keys[1]);
    EXPECT_TRUE(seen.insert(keys[0]).second);
    EXPECT_NE(keys[0], job.key->hexadecimal());
  }
}

TEST_F(RendezvousTest, GroupsInOneStoreHaveKeysOfTheirOwnThatItDoesNotTell) {
  const auto store = std::make_shared<bootstrap::MemoryStore>();
  const bootstrap::JobKey key = bootstrap::JobKey::generate().or_throw();
  std::set<std::string> seen = {key.hexadecimal()};
  const std::pair<RendezvousKind, std::string> places[] = {
      {RendezvousKind::given_store, "stretto/"}, {RendezvousKind::torch_store, "stretto/2/1/"}};
  for (const auto& [kind, place] : places) {
    for (const char* const group : {"first/", "second/"}) {
      const auto part = std::make_shared<bootstrap::PrefixStore>(group, store);
      const auto keys = meet({.size = 2, .rendezvous_kind = kind, .store = part, .key = key});
      EXPECT_EQ(keys[0], keys[1]);
      EXPECT_TRUE(seen.insert(keys[0]).second) << group << place;
      const std::string told = store->get(group + place + "key-nonce/0", soon()).or_throw();
      const auto nonce = bootstrap::JobKey::parse(told).or_throw();
      EXPECT_EQ(keys[0], key.for_group(nonce).hexadecimal());
      EXPECT_NE(keys[0], told);
    }
  }
}

TEST_F(RendezvousTest, WhoHasNoKeyIsRefusedWhereOthersHaveOne) {
  Job job = tcp_job(2);
  job.key = bootstrap::JobKey::generate().or_throw();
  ::testing::internal::CaptureStderr();
  const auto zero = Rendezvous::open(job, soon());
  ASSERT_TRUE(zero.ok());
  Job without_key = as_rank(job, 1);
  without_key.key.reset();
  EXPECT_EQ(Rendezvous::open(without_key, soon()).status().code(), StatusCode::refused);
  expect_contains(::testing::internal::GetCapturedStderr(), "rank 1 does not hold this job's key");
}

void expect_second_refused(const Status& status, int rank, const std::string& advice) {
  EXPECT_EQ(status.code(), StatusCode::refused);
  for (const std::string& part :
       {fmt::format("pid {} has come to the store of ", ::getpid()),
        fmt::format(" as rank {}, but ", rank),
        fmt::format("pid {} has come as that rank before it; ", ::getpid()), advice}) {
    expect_contains(status.message(), part);
  }
}

// A job whose ranks meet in a launcher's store.
struct Launched {
  explicit Launched(int size)
      : job{.size = size,
            .rendezvous_kind = RendezvousKind::launcher_store,
            .rendezvous = {"127.0.0.1", server->port()},
            .key = key} {}
  bootstrap::JobKey key = bootstrap::JobKey::generate().or_throw();
  std::unique_ptr<bootstrap::StoreServer> server =
      bootstrap::StoreServer::start({.key = key}).or_throw();
  Job job;
};

TEST_F(RendezvousTest, RefusesASecondProcessOfOneRank) {
  const Job job = tcp_job(2);
  const auto first = Rendezvous::open(job, soon());
  ASSERT_TRUE(first.ok());
  const auto second = Rendezvous::open(as_rank(job, 1), soon());
  ASSERT_TRUE(second.ok());
  const Status third = Rendezvous::open(as_rank(job, 1), soon()).status();
  expect_second_refused(third, 1, "give every job a port of its own");
}

TEST_F(RendezvousTest, RefusesASecondProcessThatWouldHostTheStore) {
  const Job job = tcp_job(2);
  const auto first = Rendezvous::open(job, soon());
  ASSERT_TRUE(first.ok());
  const TimePoint begin = Clock::now();
  expect_second_refused(Rendezvous::open(job, soon()).status(), 0, "every process a rank of its");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
}

// People may give two processes one rank. Who waits is told of the one that was refused.
TEST_F(RendezvousTest, RefusesASecondProcessOfOneRankInALaunchersStore) {
  const Launched launched(3);
  const auto first = Rendezvous::open(launched.job, Deadline::after(milliseconds(1500)));
  ASSERT_TRUE(first.ok());
  const TimePoint begin = Clock::now();
  expect_second_refused(Rendezvous::open(launched.job, soon()).status(), 0, "join a job once");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  expect_contains(first.value()->finish().message(),
                  "Perhaps it was one of them that was refused: ");
}

TEST_F(RendezvousTest, OfTwoProcessesOfOneRankTheSecondHearsThatTheFirstIsGone) {
  const Launched launched(2);
  { const auto first = Rendezvous::open(launched.job, soon()); }
  Status second;
  (void)comes_true([&] {
    second = Rendezvous::open(launched.job, soon()).status();
    return second.code() != StatusCode::refused;
  });
  expect_failure(second, StatusCode::peer_lost, "ended while the job was starting");
}

TEST_F(RendezvousTest, RanksAgreeOnTheSize) {
  for (Job job : {tcp_job(2), file_job(2)}) {
    const auto zero = Rendezvous::open(job, soon());
    ASSERT_TRUE(zero.ok());
    job.size = 3;
    const Status status = Rendezvous::open(as_rank(job, 1), soon()).status();
    expect_failure(status, StatusCode::mismatch,
                   "rank 1 says that the job has 3 ranks, but who came");
  }
}

TEST_F(RendezvousTest, ASizeThatIsNoneIsShownCutAndPrintable) {
  const Job job = file_job(2);
  const auto store = bootstrap::open_file_store(job.rendezvous_path, soon()).or_throw();
  ASSERT_TRUE(store->set("size", "\x1b[2J" + std::string(1000, '3'), soon()).ok());
  const Status status = Rendezvous::open(as_rank(job, 1), soon()).status();
  expect_failure(status, StatusCode::mismatch, "before says ?[2J3");
  EXPECT_LT(status.message().size(), 500u);
}

TEST_F(RendezvousTest, RefusesTheFileOfAnEarlierJobAndLeavesIt) {
  const Job job = file_job(2);
  {
    const auto store = Rendezvous::open(job, soon());
    ASSERT_TRUE(store.ok());
    std::filesystem::copy_file(job.rendezvous_path, job.rendezvous_path + ".left");
  }
  EXPECT_FALSE(std::filesystem::exists(job.rendezvous_path)) << "rank 0 gave up";
  std::filesystem::rename(job.rendezvous_path + ".left", job.rendezvous_path);
  const Status again = Rendezvous::open(job, soon()).status();
  expect_failure(again, StatusCode::refused, "an earlier job may have left it: remove it");
  EXPECT_TRUE(std::filesystem::exists(job.rendezvous_path));
}

TEST_F(RendezvousTest, NamesTheRanksThatHaveNotJoined) {
  for (const Job& job : {tcp_job(3), file_job(3)}) {
    const auto zero = Rendezvous::open(job, Deadline::after(milliseconds(500)));
    ASSERT_TRUE(zero.ok()) << zero.status().message();
    const Status status = zero.value()->finish();
    expect_failure(status, StatusCode::timeout, "for 2 of 3 ranks: 1, 2 never came");
  }
}

TEST_F(RendezvousTest, RanksLearnThatRankZeroHasGivenUp) {
  for (const Job& job : {tcp_job(2), file_job(2)}) {
    auto zero = Rendezvous::open(job, soon());
    ASSERT_TRUE(zero.ok());
    auto one = Rendezvous::open(as_rank(job, 1), soon());
    ASSERT_TRUE(one.ok());
    std::thread leave([&] {
      std::this_thread::sleep_for(milliseconds(20));
      zero->reset();
    });
    const Status status = one.value()->notes().get("card", 0).status();
    expect_failure(status, StatusCode::peer_lost, "rank 0 (");
    one->reset();
    leave.join();
  }
}

TEST_F(RendezvousTest, SaysWhyRankZeroCannotHostTheStore) {
  const auto listener = bootstrap::listen_tcp("127.0.0.1", 0).or_throw();
  Job job = tcp_job(2);
  job.rendezvous.port = bootstrap::local_port(listener.get()).or_throw();
  const Status status = Rendezvous::open(job, soon()).status();
  expect_failure(status, StatusCode::system,
                 "rank 0 is to host the store of this job at 127.0.0.1:");
  expect_contains(status.message(), "in use");
}

TEST_F(RendezvousTest, WaitsForRankZeroNoLongerThanItsDeadline) {
  const Status status =
      Rendezvous::open(as_rank(tcp_job(2), 1), Deadline::after(milliseconds(50))).status();
  expect_failure(status, StatusCode::timeout, "the store of rank 0 at 127.0.0.1:");
}

// What a process sees of PyTorch's store until it is killed. After that it sees nothing more.
class UntilKilled final : public bootstrap::Store {
 public:
  explicit UntilKilled(std::shared_ptr<bootstrap::Store> whole) : whole_(std::move(whole)) {}
  void kill() { killed_ = true; }
  std::string describe() const override { return "the store of this test"; }
  Result<bootstrap::StoreReply> answer(const bootstrap::StoreRequest& request,
                                       const WaitLimit& limit) override {
    STRETTO_RETURN_IF_ERROR(alive());
    const WaitLimit own(limit.deadline(), [&] {
      const Status status = alive();
      return status.ok() ? limit.look() : status;
    });
    return whole_->answer(request, own);
  }

 private:
  Status alive() const {
    return killed_ ? Status(StatusCode::internal, "this process is dead") : Status();
  }

  const std::shared_ptr<bootstrap::Store> whole_;
  std::atomic<bool> killed_ = false;
};

// Two ranks that are started again, and come to the store that they used before.
class RoundsTest : public ::testing::Test {
 protected:
  Job job(int rank) const { return job(rank, store_); }
  static Job job(int rank, std::shared_ptr<bootstrap::Store> store) {
    return {.rank = rank,
            .size = 2,
            .rendezvous_kind = RendezvousKind::torch_store,
            .store = std::move(store)};
  }
  // On a thread of its own, a rank comes and finishes. Returns whether that went well.
  static std::future<Status> join(const Job& job) {
    return std::async(std::launch::async, [job] {
      const auto rendezvous = Rendezvous::open(job, soon());
      return rendezvous.ok() ? rendezvous.value()->finish() : rendezvous.status();
    });
  }
  std::future<Status> join(int rank) const { return join(job(rank)); }
  [[nodiscard]] bool is_set(const std::string& key) const {
    const std::array keys = {"stretto/2/" + key};
    return comes_true([&] { return store_->check(keys, soon()).or_throw(); });
  }
  // Whether the rank has come to any round.
  [[nodiscard]] bool has_come(int rank) const { return is_set(fmt::format("arrived/{}", rank)); }
  // Whether the rank has its place in this round, until another process takes the place.
  [[nodiscard]] bool has_arrived(int rank, int round) const {
    return is_set(fmt::format("{}/arrived/{}", round, rank));
  }
  // Whether `processes` processes, of any rank, have come to the round.
  [[nodiscard]] bool have_come(int processes, int round) const {
    const std::string key = fmt::format("stretto/2/{}/arrivals", round);
    return comes_true([&] { return store_->add(key, 0, soon()).or_throw() == processes; });
  }
  // Makes a process come to the round, and kills it while it waits there.
  void come_and_die(int rank, int round) const {
    const auto seen = std::make_shared<UntilKilled>(store_);
    std::future<Status> joined = join(job(rank, seen));
    EXPECT_TRUE(has_arrived(rank, round));
    seen->kill();
    EXPECT_FALSE(joined.get().ok());
  }
  static void expect_joined(std::future<Status>& first, std::future<Status>& second) {
    for (std::future<Status>* const each : {&first, &second}) {
      const Status status = each->get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  const std::shared_ptr<bootstrap::Store> store_ = std::make_shared<bootstrap::MemoryStore>();
};

// The newcomer finds a place in the dead rank's round, which rank 0 ends when it comes.
TEST_F(RoundsTest, RankOneHadDiedBeforeItCame) {
  come_and_die(0, 1);
  auto one = join(1);
  EXPECT_TRUE(has_arrived(1, 1));
  auto zero = join(0);
  expect_joined(zero, one);
}

TEST_F(RoundsTest, RankZeroComesFirst) {
  come_and_die(0, 1);
  auto zero = join(0);
  EXPECT_TRUE(has_arrived(0, 2));
  auto one = join(1);
  expect_joined(zero, one);
}

// The newcomer finds its place in the round of the dead ranks taken.
TEST_F(RoundsTest, BothHadComeBeforeTheyDied) {
  const auto seen = std::make_shared<UntilKilled>(store_);
  {
    std::future<Status> zero = join(job(0, seen));
    const auto one = Rendezvous::open(job(1, seen), soon());
    ASSERT_TRUE(one.ok()) << one.status().message();
    seen->kill();
    EXPECT_FALSE(zero.get().ok());
  }
  auto one = join(1);
  EXPECT_TRUE(have_come(3, 1));
  auto zero = join(0);
  expect_joined(zero, one);
}

TEST_F(RoundsTest, RankZeroHadDiedBeforeItCame) {
  const auto seen = std::make_shared<UntilKilled>(store_);
  std::future<Status> dead = join(job(1, seen));
  EXPECT_TRUE(has_come(1));
  seen->kill();
  EXPECT_FALSE(dead.get().ok());
  auto one = join(1);
  auto zero = join(0);
  expect_joined(zero, one);
}

// Programs do this that make one group after the other. Rank 1 still comes to the first round.
TEST_F(RoundsTest, LivingRanksMeetAgain) {
  auto zero = join(0);
  auto one = join(1);
  expect_joined(zero, one);
  one = join(1);
  EXPECT_TRUE(have_come(3, 1));
  zero = join(0);
  expect_joined(zero, one);
}

TEST_F(RoundsTest, WhoIsMissingIsNamed) {
  const Deadline at_once = Deadline::after(milliseconds(100));
  expect_failure(Rendezvous::open(job(1), at_once).status(), StatusCode::timeout,
                 "for 1 of 2 ranks: 0 never came");
  expect_failure(Rendezvous::open(job(0), Deadline::after(milliseconds(100))).status(),
                 StatusCode::timeout, "for 1 of 2 ranks: 1 never came");
}

// Rank 0 has given up before rank 1 took its place, and both are started again.
TEST_F(RoundsTest, ARoundThatHasFailedIsNotEntered) {
  const Status gave_up = Rendezvous::open(job(0), Deadline::after(milliseconds(50))).status();
  expect_failure(gave_up, StatusCode::timeout, "1 never came");
  auto one = join(1);
  ASSERT_TRUE(has_come(1));
  std::this_thread::sleep_for(milliseconds(20));  // It would have failed by now.
  auto zero = join(0);
  expect_joined(zero, one);
}

TEST_F(RoundsTest, WhatHasFailedIsToldWhereRankZeroBeginsNoOtherRound) {
  ASSERT_FALSE(Rendezvous::open(job(0), Deadline::after(milliseconds(50))).ok());
  const Status status = Rendezvous::open(job(1), Deadline::after(milliseconds(300))).status();
  expect_failure(status, StatusCode::timeout,
                 "the last round has failed, and rank 0 has not begun another for ");
  expect_contains(status.message(), " s: rank 0 (");
  expect_contains(status.message(), "1 never came");
}

// The first round ends while rank 1 is in it. Rank 1 then finds that the second has ended.
TEST_F(RoundsTest, OfTwoRoundsThatHaveFailedTheLastIsTold) {
  const auto set = [&](const std::string& key, const std::string& value) {
    EXPECT_TRUE(store_->set("stretto/2/" + key, value, soon()).ok());
  };
  const auto failure = [](const char* text) {
    return bootstrap::encode_join_failure(Status(StatusCode::peer_lost, text));
  };
  set("round/0", "1");
  auto one = std::async(std::launch::async, [this] {
    return Rendezvous::open(job(1), Deadline::after(std::chrono::seconds(4))).status();
  });
  EXPECT_TRUE(has_arrived(1, 1));
  set("2/join-failure", failure("the second has failed"));
  set("round/0", "2");
  set("1/join-failure", failure("the first has failed"));
  const Status status = one.get();
  expect_failure(status, StatusCode::peer_lost, "rank 0 has not begun another for ");
  expect_contains(status.message(), " s: the second has failed");
}

TEST_F(RoundsTest, ASecondProcessOfARankWaitsAndIsRefused) {
  auto zero = join(0);
  auto one = join(1);
  expect_joined(zero, one);
  const Job second = job(1, std::make_shared<UntilKilled>(store_));
  const Status status = Rendezvous::open(second, Deadline::after(milliseconds(100))).status();
  expect_failure(status, StatusCode::refused, "rank 0 has not come again for ");
  expect_second_refused(status, 1, "join a job once");
}

TEST_F(RendezvousTest, MakesAFolderForThisUserOnly) {
  Job job = file_job(2);
  job.makes_folder = true;
  job.rendezvous_path = folder_ / "own/job";
  meet(job);
  struct stat state {};
  ASSERT_EQ(::stat((folder_ / "own").c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 07777, 0700u);
  ::chmod((folder_ / "own").c_str(), 0777);
  const Status status = Rendezvous::open(job, soon()).status();
  expect_failure(status, StatusCode::refused, "is not a folder of this user alone");
}

TEST(Slurm, FindsTheFirstHostOfAList) {
  const auto first = [](const char* list) { return first_slurm_host(list).or_throw(); };
  EXPECT_EQ(first("node7"), "node7");
  EXPECT_EQ(first("node7,node1"), "node7");
  EXPECT_EQ(first("node[007-129,200]"), "node007");
  EXPECT_EQ(first("node[12,3-4],login"), "node12");
  EXPECT_EQ(first("rack[2-3]-node[05,07]"), "rack2-node05");
  EXPECT_EQ(first("n[1-2].cluster.example"), "n1.cluster.example");
  EXPECT_EQ(first("10.0.4.7"), "10.0.4.7");
}

TEST(Slurm, RefusesWhatIsNoList) {
  for (const char* bad : {"", ",", "node[", "node[]", "node[,1]", "node[1", "node]1", "a b"}) {
    const Result<std::string> host = first_slurm_host(bad);
    ASSERT_FALSE(host.ok()) << bad;
    EXPECT_EQ(host.status().code(), StatusCode::invalid_argument);
  }
}

}  // namespace
}  // namespace stretto::job
