// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/elastic_job.h"

#include <gtest/gtest.h>

#include <latch>
#include <optional>
#include <thread>

#include "stretto/bootstrap/host_port.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/job/join.h"
#include "stretto/job/membership.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/fake_environment.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto {
namespace {

using testing::error_of;

constexpr const char* kSettings =
    "backend stretto, transport auto, encryption off, algorithm chosen, min_size 1";

class ElasticJobTest : public ::testing::Test {
 protected:
  std::string place() const { return bootstrap::format_host_port("127.0.0.1", server_->port()); }
  // Returns the environment of a process that a launcher of `size` ranks has started as `rank`.
  FakeEnvironment launched(int rank, int size) const {
    return FakeEnvironment({{"STRETTO_RANK", std::to_string(rank)},
                            {"STRETTO_SIZE", std::to_string(size)},
                            {"STRETTO_RENDEZVOUS", place()},
                            {"STRETTO_JOB_KEY", key_.hexadecimal()}});
  }
  // Connects to the launcher's store.
  std::shared_ptr<bootstrap::Store> store() const {
    return bootstrap::connect_tcp_store({.host = "127.0.0.1", .port = server_->port(), .key = key_},
                                        soon())
        .or_throw();
  }
  // Makes a process that comes, but connects to no other.
  std::unique_ptr<job::Membership> enter(const job::Membership::Options& options) const {
    return job::Membership::enter(std::make_shared<bootstrap::PrefixStore>("elastic/", store()),
                                  options, soon())
        .or_throw();
  }
  // Runs the last of `size` processes. It ends before all have met.
  std::thread dying_member(int size) const {
    return std::thread([this, size] {
      const auto process =
          enter({.launcher_rank = size - 1, .first_size = size, .settings = kSettings});
      EXPECT_EQ(process->next(soon()).or_throw()->number, 1);
    });
  }
  // Comes, tells the others of a failure, comes again to a generation of `size`, and leaves.
  std::thread mistaken_newcomer(StatusCode code, std::size_t size) const {
    return std::thread([this, code, size] {
      const auto process = enter({.settings = kSettings});
      const auto generation = process->next(soon()).or_throw();
      const Status mistake(code, "a mistake", Rank(generation->rank));
      generation->store
          ->set("stretto/" + std::string(bootstrap::kJoinFailureKey),
                bootstrap::encode_join_failure(mistake), soon())
          .or_throw();
      EXPECT_EQ(process->next(soon()).or_throw()->members.size(), size);
    });
  }
  const bootstrap::JobKey key_ = bootstrap::JobKey::generate().or_throw();
  const std::unique_ptr<bootstrap::StoreServer> server_ =
      bootstrap::StoreServer::start({.key = key_}).or_throw();
};

ElasticOptions options_of(const Environment& environment) {
  return {.join = {.join_timeout = std::chrono::seconds(20), .environment = &environment}};
}

int sum_of(Communicator& comm, int value) {
  std::vector<int> sum = {value};
  comm.all_reduce(sum).wait();
  return sum.front();
}

// Expects that the generation is over, because another rank has left it.
void expect_over(Communicator& comm) {
  try {
    sum_of(comm, 1);
    ADD_FAILURE() << "no failure";
  } catch (const Error& error) {
    EXPECT_TRUE(ElasticJob::is_loss(error)) << error.what();
  }
}

TEST_F(ElasticJobTest, GoesOnWithoutADeadProcessAndWithANewOne) {
  on_threads(3, [&](int rank) {
    const FakeEnvironment environment = launched(rank, 3);
    ElasticJob job(options_of(environment));
    EXPECT_EQ(job.generation(), 0);
    auto comm = job.join();
    EXPECT_EQ(job.generation(), 1);
    EXPECT_EQ(sum_of(*comm, 1), 3);
    EXPECT_FALSE(job.has_newcomers(*comm));
    if (comm->rank() == 1) return;  // This process leaves.
    const Rank before = comm->rank();
    expect_over(*comm);
    comm.reset();
    comm = job.join();
    EXPECT_EQ(comm->size(), 2);
    EXPECT_EQ(comm->rank(), before == 0 ? Rank(0) : Rank(1)) << "ranks are by age";
    EXPECT_EQ(sum_of(*comm, 10), 20);

    std::optional<std::thread> newcomer;
    if (comm->rank() == 0) {
      newcomer.emplace([&] {
        const FakeEnvironment by_hand({{"STRETTO_JOB_KEY", key_.hexadecimal()}});
        ElasticOptions options = options_of(by_hand);
        options.join.rendezvous = place();
        ElasticJob late(options);
        const auto joined = late.join();
        EXPECT_EQ(joined->rank(), Rank(2));
        EXPECT_EQ(late.generation(), 3);
        EXPECT_EQ(sum_of(*joined, 100), 300);
        joined->barrier().wait();
      });
    }
    while (!job.has_newcomers(*comm)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comm.reset();
    comm = job.join();
    EXPECT_EQ(comm->size(), 3);
    EXPECT_EQ(sum_of(*comm, 100), 300);
    comm->barrier().wait();
    if (newcomer) newcomer->join();
    job.finish();
    EXPECT_EQ(job.join(), nullptr);
  });
}

TEST_F(ElasticJobTest, MeetsAgainIfAProcessDiesMeanwhile) {
  std::thread dies = dying_member(3);
  on_threads(2, [&](int rank) {
    const FakeEnvironment environment = launched(rank, 3);
    ElasticJob job(options_of(environment));
    const auto comm = job.join();
    EXPECT_EQ(comm->size(), 2);
    EXPECT_GT(job.generation(), 1);
    EXPECT_EQ(sum_of(*comm, 1), 2);
    comm->barrier().wait();
  });
  dies.join();
}

// The first deadline passes while the failed meeting waits half a second for what the store knows.
TEST_F(ElasticJobTest, ADeathInAMeetingGivesTheNextOneTimeOfItsOwn) {
  std::thread dies = dying_member(2);
  const FakeEnvironment environment = launched(0, 2);
  ElasticOptions hasty = options_of(environment);
  hasty.join.join_timeout = std::chrono::milliseconds(400);
  ElasticJob job(hasty);
  std::unique_ptr<Communicator> comm;
  while (comm == nullptr) {
    try {
      comm = job.join();
    } catch (const Timeout&) {  // The other may need longer than that to come.
    }
  }
  EXPECT_EQ(comm->size(), 1);
  dies.join();
}

// Otherwise the others would wait for its answer until their time is up.
TEST_F(ElasticJobTest, AWaitInTheStoreOfAGenerationEndsWithAMember) {
  std::latch looked(2);
  on_threads(3, [&](int rank) {
    const FakeEnvironment environment = launched(rank, 3);
    std::shared_ptr<bootstrap::Store> store;
    {
      ElasticJob job(options_of(environment));
      EXPECT_EQ(job.store(), nullptr);
      const auto comm = job.join();
      store = job.store();
      if (comm->rank() == 2) {
        store->set("parting", "word", soon()).or_throw();
        return;  // This process leaves.
      }
      EXPECT_EQ(store->get("parting", soon()).or_throw(), "word");
      const Status lost = store->get("answer", soon()).status();
      EXPECT_EQ(lost.code(), StatusCode::peer_lost);
      EXPECT_EQ(lost.rank(), Rank(2));
      expect_contains(lost.message(), "rank 2, process 3 (");
      expect_contains(lost.message(), "has left the job");
      const std::vector<std::string> keys = {"parting", "answer"};
      EXPECT_EQ(store->multi_get(keys, soon()).status().code(), StatusCode::peer_lost);
      EXPECT_THROW(make_communicator(std::make_shared<bootstrap::PrefixStore>("again/", store),
                                     comm->rank(), 3, options_of(environment).join),
                   PeerLost);
      looked.arrive_and_wait();  // Nobody else leaves before this.
    }
    EXPECT_EQ(store->get("parting", soon()).or_throw(), "word") << "it may outlive the job";
  });
}

TEST_F(ElasticJobTest, AProcessThatHasTimedOutMayComeAgain) {
  const FakeEnvironment first = launched(0, 2);
  ElasticOptions hasty = options_of(first);
  hasty.join.join_timeout = std::chrono::milliseconds(500);
  ElasticJob job(hasty);
  expect_contains(error_of<Timeout>([&] { job.join(); }), "1 of at least 2 processes have come");
  std::thread other([&] {
    const FakeEnvironment second = launched(1, 2);
    ElasticJob late(options_of(second));
    while (const auto comm = late.join()) {
      try {
        EXPECT_EQ(sum_of(*comm, 1), 2);
        late.finish();
      } catch (const Error& error) {
        EXPECT_TRUE(ElasticJob::is_loss(error)) << error.what();
      }
    }
  });
  bool has_met = false;
  const Deadline deadline = soon();
  while (!has_met && !deadline.passed()) {
    try {
      const auto comm = job.join();
      if (comm == nullptr) break;
      EXPECT_EQ(sum_of(*comm, 1), 2);
      has_met = true;
    } catch (const Timeout&) {  // The other may need longer than that.
    }
  }
  EXPECT_TRUE(has_met);
  other.join();
}

TEST_F(ElasticJobTest, ANewcomerWithOtherSettingsIsRefusedAndHarmsNobody) {
  const FakeEnvironment environment = launched(0, 1);
  ElasticJob job(options_of(environment));
  auto comm = job.join();
  const FakeEnvironment other({{"STRETTO_JOB_KEY", key_.hexadecimal()},
                               {"STRETTO_RENDEZVOUS", place()},
                               {"STRETTO_ALGORITHM", "ring"}});
  expect_contains(error_of<Mismatch>([&] { ElasticJob newcomer(options_of(other)); }),
                  "algorithm ring, min_size 1; the job has: backend stretto");
  ElasticOptions larger = options_of(environment);
  larger.min_size = 2;
  expect_contains(error_of<Mismatch>([&] { ElasticJob newcomer(larger); }), "min_size 2; the job");
  EXPECT_FALSE(job.has_newcomers(*comm));
  comm.reset();
  EXPECT_EQ(job.join()->size(), 1);
}

// The newcomer has come, but no member can reach it.
TEST_F(ElasticJobTest, ANewcomerThatCannotBeReachedIsGoneOnWithout) {
  const FakeEnvironment environment = launched(0, 1);
  ElasticOptions hasty = options_of(environment);
  hasty.join.join_timeout = std::chrono::seconds(3);
  ElasticJob job(hasty);
  auto comm = job.join();
  std::thread newcomer([&] {
    const auto process = enter({.settings = kSettings});
    EXPECT_EQ(process->next(soon()).or_throw()->rank, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(3200));
  });
  EXPECT_TRUE(comes_true([&] { return job.has_newcomers(*comm); }));
  comm.reset();
  comm = job.join();
  EXPECT_EQ(comm->size(), 1);
  EXPECT_GT(job.generation(), 2);
  newcomer.join();
}

TEST_F(ElasticJobTest, ANewcomerThatCannotReachTheOthersLeaves) {
  const auto old = enter({.first_size = 1, .settings = kSettings});
  old->note_meeting(old->next(soon()).or_throw().value());
  const FakeEnvironment by_hand(
      {{"STRETTO_JOB_KEY", key_.hexadecimal()}, {"STRETTO_RENDEZVOUS", place()}});
  ElasticOptions hasty = options_of(by_hand);
  hasty.join.join_timeout = std::chrono::seconds(1);
  ElasticJob late(hasty);
  std::thread newcomer([&] { EXPECT_THROW(late.join(), Timeout); });
  EXPECT_TRUE(comes_true([&] { return old->has_newcomers(soon()).or_throw(); }));
  EXPECT_EQ(old->next(soon()).or_throw()->members.size(), 2U);
  newcomer.join();
  EXPECT_EQ(old->next(soon()).or_throw()->members.size(), 1U) << "it is not waited for";
  expect_contains(error_of<Aborted>([&] { late.join(); }), "make another ElasticJob");
}

// The others are told of this failure, as of every failure on one rank.
TEST_F(ElasticJobTest, ANewcomersMistakeIsItsOwn) {
  const FakeEnvironment environment = launched(0, 1);
  ElasticJob job(options_of(environment));
  auto comm = job.join();
  std::thread newcomer([&] {
    const FakeEnvironment mistaken({{"STRETTO_JOB_KEY", key_.hexadecimal()},
                                    {"STRETTO_RENDEZVOUS", place()},
                                    {"STRETTO_VERIFY", "sometimes"}});
    ElasticJob late(options_of(mistaken));
    EXPECT_THROW(late.join(), InvalidArgument);
    expect_contains(error_of<Aborted>([&] { late.join(); }), "make another ElasticJob");
  });
  EXPECT_TRUE(comes_true([&] { return job.has_newcomers(*comm); }));
  comm.reset();
  EXPECT_EQ(job.join()->size(), 1);
  newcomer.join();
}

TEST_F(ElasticJobTest, ANewcomerThatIsRefusedEndsNoJob) {
  const FakeEnvironment environment = launched(0, 1);
  ElasticJob job(options_of(environment));
  auto comm = job.join();
  std::thread newcomer = mistaken_newcomer(StatusCode::refused, 2);
  EXPECT_TRUE(comes_true([&] { return job.has_newcomers(*comm); }));
  comm.reset();
  EXPECT_EQ(job.join()->size(), 1);
  newcomer.join();
}

// This holds although the newcomer that has made the mistake is still there.
TEST_F(ElasticJobTest, AnotherNewcomersMistakeMakesNoneLeave) {
  const FakeEnvironment environment = launched(0, 1);
  ElasticJob job(options_of(environment));
  auto comm = job.join();
  std::thread mistaken = mistaken_newcomer(StatusCode::aborted, 3);
  std::thread newcomer([&] {
    const FakeEnvironment by_hand(
        {{"STRETTO_JOB_KEY", key_.hexadecimal()}, {"STRETTO_RENDEZVOUS", place()}});
    ElasticJob late(options_of(by_hand));
    const auto joined = late.join();
    EXPECT_EQ(joined->size(), 2);
    joined->barrier().wait();
  });
  const auto of_launcher = store();
  EXPECT_TRUE(comes_true(
      [&] { return of_launcher->list_keys("elastic/waits/2/", soon()).or_throw().size() == 2; }));
  comm.reset();
  comm = job.join();
  EXPECT_EQ(comm->size(), 2);
  comm->barrier().wait();
  mistaken.join();
  newcomer.join();
}

TEST(ElasticJobAlone, IsAJobOfOneProcess) {
  const FakeEnvironment nothing({});
  ElasticJob job(options_of(nothing));
  for (const int generation : {1, 2}) {
    const auto comm = job.join();
    EXPECT_EQ(comm->size(), 1);
    EXPECT_EQ(job.generation(), generation);
    EXPECT_EQ(sum_of(*comm, 7), 7);
    EXPECT_FALSE(job.has_newcomers(*comm));
    EXPECT_EQ(job.store()->add("own", 3, soon()).or_throw(), 3) << "another one each time";
  }
  job.finish();
  EXPECT_EQ(job.join(), nullptr);
}

TEST_F(ElasticJobTest, SaysWhereItCannotMeet) {
  const auto refused = [](const Variables& variables, const ElasticOptions& given) {
    const FakeEnvironment environment(variables);
    ElasticOptions options = given;
    options.join.environment = &environment;
    return error_of<InvalidArgument>([&] { ElasticJob job(options); });
  };
  const std::string key = key_.hexadecimal();
  expect_contains(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}}, {}),
                  "meets in the store of stretto run");
  expect_contains(refused({{"STRETTO_JOB_KEY", key}}, {.join = {.rendezvous = "file:///tmp/x"}}),
                  "option rendezvous names another place");
  expect_contains(
      refused({{"STRETTO_JOB_KEY", key}}, {.join = {.rendezvous = "tcp://127.0.0.1:1"}}),
      "option rendezvous names another place");
  expect_contains(refused({{"STRETTO_RENDEZVOUS", place()}}, {}), "STRETTO_JOB_KEY is not set");
  for (const Variables& by_mpi : {Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}},
                                  {{"STRETTO_TRANSPORT", "mpi"}},
                                  {{"STRETTO_BACKEND", "mpi"}}}) {
    Variables variables = {{"STRETTO_RENDEZVOUS", place()}, {"STRETTO_JOB_KEY", key}};
    variables.insert(by_mpi.begin(), by_mpi.end());
    expect_contains(refused(variables, {}), "the processes of an MPI start and end together");
  }
  expect_contains(refused({}, {.join = {.rank = 0, .size = 1}}), "leave rank and size out");
  expect_contains(refused({}, {.min_size = 0}), "min_size is 0");
  expect_contains(refused({}, {.min_size = 2}), "min_size is 2, but this process is alone");
}

TEST_F(ElasticJobTest, WrongKeysAreRefused) {
  Variables variables = {
      {"STRETTO_RENDEZVOUS", place()},
      {"STRETTO_JOB_KEY", bootstrap::JobKey::generate().or_throw().hexadecimal()}};
  const FakeEnvironment environment(variables);
  EXPECT_THROW(ElasticJob job(options_of(environment)), Refused);
  EXPECT_FALSE(store()->look_up(bootstrap::kJoinFailureKey, soon()).or_throw())
      << "it is no rank that is missing";
}

}  // namespace
}  // namespace stretto
