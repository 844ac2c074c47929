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

namespace stretto::transport::shm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using stretto::testing::FewDescriptors;

Result<Endpoint::Parts> attach_by(Rank self, int socket) {
  std::vector<FileDescriptor> sockets(2);
  sockets[self == 0 ? 1 : 0] = FileDescriptor(socket);
  return attach(self, std::move(sockets), Deadline::after(seconds(20)));
}

struct Outcome {
  Status rank_0;
  int rank_1 = -1;  // What the function has returned.
};

// Two ranks attach to each other. Rank 1, which does what the function does, is another process,
// with limits of its own.
template <class Rank1>
Outcome attach_two(const Rank1& rank_1) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    ::_exit(rank_1(ends[1]));
  }
  ::close(ends[1]);
  Outcome outcome{.rank_0 = attach_by(0, ends[0]).status()};
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  outcome.rank_1 = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// One is for the process of the other; one is that of the own inbox, until the other has taken it.
TEST(AttachTest, TwoDescriptorsAreEnough) {
  const Outcome outcome = attach_two([](int socket) {
    const FewDescriptors two(2);
    return attach_by(1, socket).ok() ? 0 : 1;
  });
  EXPECT_TRUE(outcome.rank_0.ok()) << outcome.rank_0.message();
  EXPECT_EQ(outcome.rank_1, 0);
}

TEST(AttachTest, AShortageThatIsOverSoonGoesUnseen) {
  const Outcome outcome = attach_two([](int socket) {
    std::optional<FewDescriptors> none(0);
    std::thread end([&] {
      std::this_thread::sleep_for(milliseconds(500));
      none.reset();
    });
    const bool attached = attach_by(1, socket).ok();
    end.join();
    return attached ? 0 : 1;
  });
  EXPECT_TRUE(outcome.rank_0.ok()) << outcome.rank_0.message();
  EXPECT_EQ(outcome.rank_1, 0);
}

TEST(AttachTest, AShortageThatLastsIsSaid) {
  const Outcome outcome = attach_two([](int socket) {
    const FewDescriptors none(0);
    const Status status = attach_by(1, socket).status();
    return status.message().find("raise `ulimit -n`") != std::string_view::npos ? 0 : 1;
  });
  EXPECT_EQ(outcome.rank_0.code(), StatusCode::peer_lost) << outcome.rank_0.message();
  EXPECT_EQ(outcome.rank_1, 0);
}

TEST(AttachTest, RanksThatWaitOnOneCoreKnow) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  auto other = std::async(std::launch::async, [&] { return attach_by(1, ends[1]); });
  const auto first = Endpoint::create(attach_by(0, ends[0]).or_throw()).or_throw();
  const auto second = Endpoint::create(other.get().or_throw()).or_throw();
  EXPECT_FALSE(first->shares_core());  // The other has not waited yet.
  // This thread may be moved in between, but not each time.
  bool found = false;
  for (int i = 0; i < 1000 && !found; ++i) {
    first->shares_core();
    found = second->shares_core();
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace stretto::transport::shm
