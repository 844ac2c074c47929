// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Communicators of programs that bring their own rendezvous.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "stretto/base/error.h"
#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/job/join.h"
#include "stretto/job/live_page.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/fake_environment.h"
#include "tests/support/on_threads.h"
#include "tests/support/shortage.h"
#include "tests/support/soon.h"

namespace stretto {
namespace {

// A program's own store, which can do what joining asks for. It counts the requests.
class OwnStore : public bootstrap::Store {
 public:
  std::string describe() const override { return "the store of this test"; }
  Result<bootstrap::StoreReply> answer(const bootstrap::StoreRequest& request,
                                       const WaitLimit& limit) override {
    ++requests;
    return contents_.answer(request, limit);
  }
  std::atomic<int> requests{0};

 private:
  bootstrap::MemoryStore contents_;
};

const FakeEnvironment kNoVariables({});

TEST(MakeCommunicator, MeetsInAStoreThatTheProgramBrings) {
  auto store = std::make_shared<OwnStore>();
  on_threads(3, [&](int rank) {
    for (const char* part : {"first/", "second/"}) {  // One store serves several communicators.
      auto own = std::make_shared<bootstrap::PrefixStore>(part, store);
      auto comm = make_communicator(own, rank, 3, {.environment = &kNoVariables});
      EXPECT_EQ(comm->rank(), Rank(rank));
      EXPECT_EQ(comm->size(), 3);
      std::vector<int> sum = {rank + 1};
      comm->all_reduce(sum).wait();
      EXPECT_EQ(sum.front(), 6);
      comm->barrier().wait();
    }
  });
  EXPECT_GT(store->requests, 0);
}

TEST(MakeCommunicator, SaysWhoIsMissing) {
  auto store = std::make_shared<OwnStore>();
  const JoinOptions options{.join_timeout = std::chrono::milliseconds(200),
                            .environment = &kNoVariables};
  const std::string text =
      testing::error_of<Timeout>([&] { make_communicator(store, 1, 2, options); });
  expect_contains(text, "for 1 of 2 ranks: 0 never came");
  expect_contains(text, "the store of this test");
}

TEST(MakeCommunicator, GroupsOfOneKeyAreJobsOfTheirOwn) {
  const FakeEnvironment encrypted(
      {{"STRETTO_ENCRYPTION", "tls"}, {"STRETTO_JOB_KEY", std::string(64, '7')}});
  const auto are_told_apart = [] {
    std::map<std::string, int> ranks;  // Ranks of each job.
    for (const job::LiveNote& note : job::find_live_notes()) {
      if (note.pid == ::getpid()) ++ranks[note.who.job];
    }
    return ranks.size() == 2 &&
           std::ranges::all_of(ranks, [](const auto& each) { return each.second == 2; });
  };
  auto store = std::make_shared<OwnStore>();
  on_threads(2, [&](int rank) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const char* part : {"first/", "second/"}) {
      auto own = std::make_shared<bootstrap::PrefixStore>(part, store);
      groups.push_back(make_communicator(own, rank, 2, {.environment = &encrypted}));
    }
    if (rank == 0) {
      EXPECT_TRUE(comes_true(are_told_apart));
    }
    groups.back()->barrier().wait();
  });
}

// If rank 0 had no key, it would leave in the store what the others need for one.
TEST(MakeCommunicator, WhoDoesNotHoldTheJobKeyIsRefused) {
  const auto store = std::make_shared<OwnStore>();
  const FakeEnvironment with_key({{"STRETTO_JOB_KEY", std::string(64, '7')}});
  on_threads(2, [&](int rank) {
    const JoinOptions options{.join_timeout = std::chrono::seconds(20),
                              .environment = rank == 0 ? &with_key : &kNoVariables};
    const std::string text =
        testing::error_of<Refused>([&] { (void)make_communicator(store, rank, 2, options); });
    expect_contains(text, "STRETTO_JOB_KEY is not the same there");
  });
}

TEST(MakeCommunicator, AMistakeInTheVariablesOfAllIsTheirOwn) {
  const auto store = std::make_shared<OwnStore>();
  const FakeEnvironment wrong(Variables{{"STRETTO_TRANSPORT", "?"}});
  on_threads(3, [&](int rank) {
    const JoinOptions options{.environment = &wrong};
    expect_contains(testing::error_of<InvalidArgument>(
                        [&] { (void)make_communicator(store, rank, 3, options); }),
                    "STRETTO_TRANSPORT");
  });
}

// The variables may differ from host to host.
TEST(MakeCommunicator, AMistakeInTheVariablesOfARankEndsTheStartOfAll) {
  for (const char* variable : {"STRETTO_TRANSPORT", "STRETTO_STREAMS", "STRETTO_WARN_AFTER"}) {
    const auto store = std::make_shared<OwnStore>();
    const FakeEnvironment wrong(Variables{{variable, "?"}});
    on_threads(2, [&](int rank) {
      const JoinOptions options{.join_timeout = std::chrono::seconds(20),
                                .environment = rank == 1 ? &wrong : &kNoVariables};
      const auto join = [&] { (void)make_communicator(store, rank, 2, options); };
      expect_contains(
          rank == 1 ? testing::error_of<InvalidArgument>(join) : testing::error_of<Aborted>(join),
          std::string("rank 1 ") + (rank == 1 ? "of 2 could not join: " : "("));
    });
  }
}

// The connected rank reads the variable of the link cache a second time. If it `is_late`, this
// takes a second, and the rank comes late to what all ranks do together then.
class LateEnvironment final : public Environment {
 public:
  explicit LateEnvironment(bool is_late) : is_late_(is_late) {}
  std::optional<std::string> get(const std::string& variable) const override {
    const bool again = variable == "STRETTO_LINK_CACHE" && times_++ == 1;
    if (is_late_ && again) std::this_thread::sleep_for(std::chrono::seconds(1));
    return std::nullopt;
  }

 private:
  const bool is_late_;
  mutable int times_ = 0;
};

TEST(MakeCommunicator, TakesNoLongerThanItsOwnTimeout) {
  using std::chrono::milliseconds;
  const auto is_timeout = [](Duration join_timeout, Duration timeout) {
    auto store = std::make_shared<OwnStore>();
    bool first = false;
    on_threads(2, [&](int rank) {
      const LateEnvironment environment(rank == 1);
      try {
        (void)make_communicator(
            store, rank, 2,
            {.join_timeout = join_timeout, .timeout = timeout, .environment = &environment});
      } catch (const Error& error) {  // The other rank gets another error.
        if (rank == 0) first = error.status().code() == StatusCode::timeout;
      }
    });
    return first;
  };
  EXPECT_TRUE(is_timeout(milliseconds(300), std::chrono::seconds(60)));
  EXPECT_FALSE(is_timeout(std::chrono::seconds(60), milliseconds(300)))
      << "the timeout of operations says nothing of it";
}

// Most shells allow 1024 descriptors, and more to a process that asks.
TEST(MakeCommunicator, AsksForTheDescriptorsThatManyRanksTake) {
  const testing::LowLimit usual(RLIMIT_NOFILE, 1024);
  const JoinOptions options{.join_timeout = std::chrono::milliseconds(1),
                            .environment = &kNoVariables};
  const auto limit_after = [&](int size) {
    EXPECT_THROW(make_communicator(std::make_shared<OwnStore>(), 1, size, options), Timeout);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  };
  EXPECT_EQ(limit_after(100), 1024u);
  EXPECT_EQ(limit_after(300), 1800u) << "twice 300 links, epolls and connections to a store";
  EXPECT_EQ(limit_after(200), 1800u);
}

TEST(MakeCommunicator, RefusesWhatMakesNoSense) {
  auto store = std::make_shared<OwnStore>();
  JoinOptions options{.environment = &kNoVariables};
  EXPECT_THROW(make_communicator(store, 2, 2, options), InvalidArgument);
  EXPECT_THROW(make_communicator(store, -1, 2, options), InvalidArgument);
  EXPECT_THROW(make_communicator(nullptr, 0, 2, options), InvalidArgument);
  options.rank = 0;
  EXPECT_THROW(make_communicator(store, 0, 1, options), InvalidArgument);
  EXPECT_EQ(make_communicator(store, 0, 1, {.environment = &kNoVariables})->size(), 1);
  EXPECT_EQ(store->requests, 0);
}

}  // namespace
}  // namespace stretto
