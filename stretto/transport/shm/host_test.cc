// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/host.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <thread>

#include "tests/support/shortage.h"
#include "tests/support/socket_pairs.h"

namespace stretto::transport::shm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using stretto::testing::FewDescriptors;
using stretto::testing::make_unix_pair;

// Attaches as rank `self`, 0 or 1, the two of this host, in a job of `ranks` ranks.
Result<Endpoint::Parts> attach_by(Rank self, FileDescriptor socket, std::size_t ranks = 2) {
  std::vector<FileDescriptor> sockets(ranks);
  sockets[self == 0 ? 1 : 0] = std::move(socket);
  return attach(self, std::move(sockets), Deadline::after(seconds(20)));
}

struct Outcome {
  Status rank_0;
  int rank_1 = -1;  // What the function of rank 1 has returned.
};

// Attaches two ranks to each other. Rank 1 is another process, with limits of its own, that calls
// `rank_1`.
template <class Rank1>
Outcome attach_two(const Rank1& rank_1) {
  auto [own, other] = make_unix_pair(SOCK_STREAM);
  const pid_t child = ::fork();
  if (child == 0) {
    own.reset();
    ::_exit(rank_1(std::move(other)));
  }
  other.reset();
  Outcome outcome{.rank_0 = attach_by(0, std::move(own)).status()};
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  outcome.rank_1 = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// One descriptor is for the process of the other rank. The second is that of the own inbox until it
// has been sent, and then that of the other inbox until it has been mapped.
TEST(AttachTest, TwoDescriptorsAreEnough) {
  const Outcome outcome = attach_two([](FileDescriptor socket) {
    const FewDescriptors two(2);
    return attach_by(1, std::move(socket)).ok() ? 0 : 1;
  });
  EXPECT_TRUE(outcome.rank_0.ok()) << outcome.rank_0.message();
  EXPECT_EQ(outcome.rank_1, 0);
}

TEST(AttachTest, AShortageThatIsOverSoonGoesUnseen) {
  const Outcome outcome = attach_two([](FileDescriptor socket) {
    std::optional<FewDescriptors> none(0);
    std::thread end([&] {
      std::this_thread::sleep_for(milliseconds(500));
      none.reset();
    });
    const bool attached = attach_by(1, std::move(socket)).ok();
    end.join();
    return attached ? 0 : 1;
  });
  EXPECT_TRUE(outcome.rank_0.ok()) << outcome.rank_0.message();
  EXPECT_EQ(outcome.rank_1, 0);
}

TEST(AttachTest, AShortageThatLastsIsSaid) {
  const Outcome outcome = attach_two([](FileDescriptor socket) {
    const FewDescriptors none(0);
    const Status status = attach_by(1, std::move(socket)).status();
    return status.message().find("raise `ulimit -n`") != std::string_view::npos ? 0 : 1;
  });
  EXPECT_EQ(outcome.rank_0.code(), StatusCode::peer_lost) << outcome.rank_0.message();
  EXPECT_EQ(outcome.rank_1, 0);
}

// No memory is used for rings of ranks on other hosts.
TEST(AttachTest, RingsOfOtherHostsCountForNothing) {
  auto ends = make_unix_pair(SOCK_STREAM);
  auto other =
      std::async(std::launch::async, [&] { return attach_by(1, std::move(ends.second), 1024); });
  const Endpoint::Parts first = attach_by(0, std::move(ends.first), 1024).or_throw();
  const Endpoint::Parts second = other.get().or_throw();
  for (const Endpoint::Parts* parts : {&first, &second}) {
    EXPECT_EQ(parts->memory->mapped_bytes(), 2 * Inbox::bytes(2));
  }
}

TEST(AttachTest, RanksThatWaitOnOneCoreKnow) {
  auto ends = make_unix_pair(SOCK_STREAM);
  auto other = std::async(std::launch::async, [&] { return attach_by(1, std::move(ends.second)); });
  const auto first = Endpoint::create(attach_by(0, std::move(ends.first)).or_throw()).or_throw();
  const auto second = Endpoint::create(other.get().or_throw()).or_throw();
  EXPECT_FALSE(first->shares_core());  // Rank 1 has not waited yet.
  // The kernel may move this thread to another core in between, but not each time.
  bool found = false;
  for (int i = 0; i < 1000 && !found; ++i) {
    first->shares_core();
    found = second->shares_core();
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace stretto::transport::shm
