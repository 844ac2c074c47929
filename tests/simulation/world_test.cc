// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/simulated_world.h"
#include "tests/support/tracked_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace stretto::transport::sim {
namespace {

constexpr std::size_t kLarge = kEagerBytes + 5000;

struct Listener final : TransportListener {
  void peer_lost(Rank peer, const Status&) override { lost.push_back(peer); }
  void peer_left(Rank peer, const Status&) override { left.push_back(peer); }
  void unexpected_message(Rank, const MessageKey&, const OperationDescriptor&) override {}
  void group_aborted(std::uint64_t, Rank, const Status&, GroupStage) override {}
  std::vector<Rank> lost;
  std::vector<Rank> left;
};

struct Message {
  TrackedRequest request;
  std::vector<std::byte> bytes;
};

class SimWorldTest : public ::testing::Test {
 protected:
  void make(const WorldOptions& options) {
    messages_.clear();
    listeners_.clear();
    world_ = make_world(options).or_throw();
    for (auto& endpoint : world_.endpoints) {
      endpoint->set_listener(&listeners_.emplace_back());
    }
    random_ = Random(options.seed);
  }
  Endpoint& rank(int r) { return *world_.endpoints[r]; }

  Message& send(int from, int to, std::uint32_t number, std::size_t size) {
    Message& message = add(to, number, size, static_cast<std::byte>(number * 7 + 1));
    message.request.outgoing = message.bytes;
    rank(from).send(message.request);
    return message;
  }
  Message& recv(int at, int from, std::uint32_t number, std::size_t size) {
    Message& message = add(from, number, size, std::byte{0});
    message.request.incoming = message.bytes;
    rank(at).recv(message.request);
    return message;
  }
  static bool is_right(const Message& received) {
    const auto expected = static_cast<std::byte>(received.request.key.message * 7 + 1);
    return received.request.done() && received.request.status().ok() &&
           std::count(received.bytes.begin(), received.bytes.end(), expected) ==
               static_cast<std::ptrdiff_t>(received.bytes.size());
  }
  // Lets ranks move in random order until nothing can. Returns how many turns that took.
  int run() {
    int turns = 0;
    while (true) {
      bool moved = false;
      for (int i = 0; i < 3 * world_.network->size(); ++i, ++turns) {
        const int r =
            static_cast<int>(random_.below(static_cast<std::uint64_t>(world_.network->size())));
        if (world_.endpoints[r] != nullptr) {
          moved = rank(r).progress() || moved;
        }
      }
      for (auto& endpoint : world_.endpoints) {
        moved = (endpoint != nullptr && endpoint->progress()) || moved;
      }
      if (!moved && !world_.network->skip()) return turns;
    }
  }

  std::deque<Listener> listeners_;
  std::deque<Message> messages_;
  World world_;
  Random random_{0};

 private:
  Message& add(int peer, std::uint32_t number, std::size_t size, std::byte fill) {
    Message& message = messages_.emplace_back();
    message.bytes.assign(size, fill);
    message.request.peer = peer;
    message.request.key = {.group = 1, .message = number};
    return message;
  }
};

TEST_F(SimWorldTest, CarriesMessagesWhateverTheSeed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    make({.ranks = 3, .seed = seed});
    std::vector<Message*> received;
    for (std::uint32_t i = 0; i < 30; ++i) {
      const int from = static_cast<int>(i % 3);
      const int to = static_cast<int>((i + 1 + i / 3 % 2) % 3);
      const std::size_t size = i % 5 == 0 ? kLarge : i * 100;
      if (i % 2 == 0) received.push_back(&recv(to, from, i, size));
      send(from, to, i, size);
      if (i % 2 == 1) received.push_back(&recv(to, from, i, size));
    }
    run();
    for (const Message* message : received) ASSERT_TRUE(is_right(*message)) << "seed " << seed;
  }
}

TEST_F(SimWorldTest, TheSameSeedIsTheSameRun) {
  const auto trace = [&](std::uint64_t seed) {
    make({.ranks = 2, .seed = seed, .delay_max = Time(5000)});
    for (std::uint32_t i = 0; i < 20; ++i) {
      send(0, 1, i, 3000);
      recv(1, 0, i, 3000);
    }
    const int turns = run();
    return std::pair(turns, world_.network->now());
  };
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

TEST_F(SimWorldTest, LinksAreBounded) {
  make({.ranks = 2, .room_bytes = 1000});
  Message& sent = send(0, 1, 1, 5000);
  while (rank(0).progress() || world_.network->skip()) continue;
  EXPECT_FALSE(sent.request.done());
  run();
  EXPECT_TRUE(sent.request.done());
}

TEST_F(SimWorldTest, AKilledRankIsLostToAllOthers) {
  make({.ranks = 3});
  Message& waiting = recv(0, 1, 1, 10);
  world_.network->kill(1);
  run();
  EXPECT_EQ(listeners_[0].lost, std::vector<Rank>{1});
  EXPECT_EQ(listeners_[2].lost, std::vector<Rank>{1});
  EXPECT_EQ(listeners_[1].lost.size(), 2u);
  EXPECT_EQ(waiting.request.status().code(), StatusCode::peer_lost);
}

TEST_F(SimWorldTest, ALinkCanBeCut) {
  make({.ranks = 3});
  world_.network->cut(0, 2);
  run();
  EXPECT_EQ(listeners_[0].lost, std::vector<Rank>{2});
  EXPECT_EQ(listeners_[2].lost, std::vector<Rank>{0});
  EXPECT_TRUE(listeners_[1].lost.empty());
}

TEST_F(SimWorldTest, WhoLeavesSaysGoodbye) {
  make({.ranks = 2, .room_bytes = 100000, .step_bytes_max = 100000});
  send(0, 1, 1, 1000);
  Message& received = recv(1, 0, 1, 1000);
  run();
  world_.endpoints[0].reset();
  run();
  EXPECT_TRUE(is_right(received));
  EXPECT_EQ(listeners_[1].left, std::vector<Rank>{0});
  EXPECT_TRUE(listeners_[1].lost.empty());
}

TEST_F(SimWorldTest, LosesOneMessage) {
  for (const std::size_t size : {std::size_t{10}, std::size_t{0}, kLarge}) {
    make({.ranks = 2, .seed = size});
    Message& first = recv(1, 0, 1, size);
    Message& second = recv(1, 0, 2, size);
    world_.network->lose_message(0, 1);
    EXPECT_FALSE(world_.network->struck(0, 1));
    send(0, 1, 1, size);
    run();
    send(0, 1, 2, size);
    run();
    EXPECT_TRUE(world_.network->struck(0, 1));
    EXPECT_FALSE(first.request.done());
    EXPECT_TRUE(is_right(second));
  }
}

TEST_F(SimWorldTest, FlipsOneBit) {
  for (const std::size_t size : {std::size_t{10}, kLarge}) {
    make({.ranks = 2, .seed = size});
    Message& received = recv(1, 0, 1, size);
    world_.network->flip_bit(0, 1);
    send(0, 1, 1, size);
    run();
    EXPECT_TRUE(world_.network->struck(0, 1));
    ASSERT_TRUE(received.request.done() && received.request.status().ok());
    EXPECT_EQ(std::count(received.bytes.begin(), received.bytes.end(), std::byte{8}),
              static_cast<std::ptrdiff_t>(size) - 1);
  }
}

}  // namespace
}  // namespace stretto::transport::sim
