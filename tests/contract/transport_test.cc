// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Messages on every transport: sizes, order, matching, load.

#include <numeric>

#include "tests/contract/transport_participant.h"
#include "tests/support/seed.h"

namespace stretto::transport {
namespace {

using Message = Participant::Message;

constexpr std::uint64_t kGroup = 7;
constexpr std::size_t kLarge = 3 * 1024 * 1024 + 7;

std::vector<std::size_t> interesting_sizes() {
  return {0,          1,      55,    56, 57, 4096, kEagerBytes - 1, kEagerBytes, kEagerBytes + 1,
          128 * 1024, 200000, kLarge};
}

TEST_P(TransportTest, SaysWhoIsWho) {
  World world = make(3);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(world[r].rank(), Rank(r));
    EXPECT_EQ(world[r].size(), 3);
    for (int p = 0; p < 3; ++p) {
      EXPECT_EQ(world[r].link_name(p), p == r ? "self" : GetParam().link_name(r, p));
    }
  }
}

TEST_P(TransportTest, OneRankAloneHasNothingToDo) {
  World world = make(1);
  EXPECT_FALSE(world[0].progress());
}

TEST_P(TransportTest, AnySizeArrivesWhoeverIsFirst) {
  World world = make();
  Participant from(world, 0);
  Participant to(world, 1);
  std::uint32_t sequence = 0;
  for (const std::size_t size : interesting_sizes()) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(::testing::Message() << size << " bytes, receive first: " << receive_first);
      const MessageKey key{.group = kGroup, .sequence = ++sequence};
      const Bytes bytes = pattern(sequence, size);
      const std::size_t unexpected_before = to.unexpected.size();
      Message* received = receive_first ? &to.recv(0, key, size) : nullptr;
      Message& sent = from.send(1, key, bytes);
      if (received == nullptr) {
        ASSERT_TRUE(drive(world, [&] { return to.unexpected.size() > unexpected_before; }));
        EXPECT_EQ(to.unexpected.back(), std::pair(Rank(0), key));
        EXPECT_EQ(sent.request.done(), size <= kEagerBytes);
        received = &to.recv(0, key, size);
        EXPECT_EQ(received->request.done(), size <= kEagerBytes);
      }
      ASSERT_TRUE(drive(world, [&] { return sent.request.done() && received->request.done(); }));
      EXPECT_TRUE(sent.request.status().ok());
      EXPECT_TRUE(received->request.status().ok()) << received->request.status().message();
      EXPECT_TRUE(same_bytes(received->bytes, bytes));
      EXPECT_EQ(to.unexpected.size(), unexpected_before + (receive_first ? 0 : 1));
    }
  }
}

TEST_P(TransportTest, KeysFindTheirMessagesInAnyOrder) {
  World world = make();
  Participant from(world, 0);
  Participant to(world, 1);
  constexpr int kMessages = 60;
  Random random(11);
  std::vector<int> order(kMessages);
  std::iota(order.begin(), order.end(), 0);
  const auto shuffle = [&] {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  };
  const auto key_of = [](int i) {
    const auto number = static_cast<std::uint32_t>(i);
    return MessageKey{.group = kGroup + number % 2,
                      .sequence = number % 3,
                      .segment = number % 5,
                      .message = number};
  };
  const auto size_of = [](int i) { return static_cast<std::size_t>(i) * 2003; };
  std::vector<Message*> received(kMessages);
  shuffle();
  for (int i = 0; i < kMessages / 2; ++i) {
    const int n = order[static_cast<std::size_t>(i)];
    received[static_cast<std::size_t>(n)] = &to.recv(0, key_of(n), size_of(n));
  }
  const std::vector<int> rest(order.begin() + kMessages / 2, order.end());
  shuffle();
  for (const int n : order)
    from.send(1, key_of(n), pattern(static_cast<std::uint64_t>(n), size_of(n)));
  settle(world);
  for (const int n : rest)
    received[static_cast<std::size_t>(n)] = &to.recv(0, key_of(n), size_of(n));
  ASSERT_TRUE(drive(world, [&] { return from.all_done() && to.all_done(); }));
  for (int n = 0; n < kMessages; ++n) {
    EXPECT_TRUE(same_bytes(received[static_cast<std::size_t>(n)]->bytes,
                           pattern(static_cast<std::uint64_t>(n), size_of(n))))
        << n;
  }
}

// Point-to-point messages with one tag match in the order of sending and posting, whether a message
// travels at once or waits, and whenever the receives are posted.
TEST_P(TransportTest, EqualKeysAreFirstComeFirstServed) {
  const MessageKey key{.group = kGroup, .sequence = kPointToPoint, .segment = 3};
  const std::vector<std::size_t> sizes = {100000, 5, 70000, 80000, 0, 6, 90000, 7};
  for (const std::size_t posted_before : {0, 1, 2, 3, 5, 8}) {
    for (const bool settle_between : {false, true}) {
      SCOPED_TRACE(posted_before);
      World world = make();
      Participant from(world, 0);
      Participant to(world, 1);
      std::vector<Message*> received;
      const auto post = [&] { received.push_back(&to.recv(0, key, sizes[received.size()])); };
      while (received.size() < posted_before) post();
      if (settle_between) settle(world);
      for (std::size_t i = 0; i < sizes.size(); ++i) from.send(1, key, pattern(i, sizes[i]));
      if (settle_between) settle({&world[0]});
      while (received.size() < sizes.size()) {
        post();
        world[1].progress();
      }
      ASSERT_TRUE(drive(world, [&] { return from.all_done() && to.all_done(); }));
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_TRUE(received[i]->request.status().ok()) << received[i]->request.status().message();
        EXPECT_TRUE(same_bytes(received[i]->bytes, pattern(i, sizes[i]))) << "message " << i;
      }
    }
  }
}

// The peer holds so much already that small messages have to wait for their receives, too.
TEST_P(TransportTest, EqualKeysAreFirstComeFirstServedWhereSmallOnesWait) {
  const MessageKey key{.group = kGroup, .sequence = kPointToPoint, .segment = 3};
  const std::vector<std::size_t> sizes = {5, 100000, 6, 7, 70000, 100000, 5};
  const std::size_t large = kUnexpectedBytesMax / unexpected_cost_bytes(kEagerBytes);
  const std::size_t empty = kEagerBytes / kUnexpectedOverheadBytes;
  for (const std::size_t posted_before : {0, 2, 7}) {
    for (const bool settle_between : {false, true}) {
      SCOPED_TRACE(::testing::Message() << posted_before << ' ' << settle_between);
      World world = make();
      Participant from(world, 0);
      Participant to(world, 1);
      for (std::uint32_t i = 0; i < large + empty; ++i) {
        from.send(1, {.group = kGroup, .message = i}, Bytes(i < large ? kEagerBytes : 0));
      }
      std::vector<Message*> sent;
      std::vector<Message*> received;
      const auto post = [&] { received.push_back(&to.recv(0, key, sizes[received.size()])); };
      while (received.size() < posted_before) post();
      if (settle_between) settle(world);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        sent.push_back(&from.send(1, key, pattern(i, sizes[i])));
      }
      if (settle_between) settle({&world[0]});
      while (received.size() < sizes.size()) {
        post();
        world[1].progress();
      }
      const auto is_done = [](const Message* message) { return message->request.done(); };
      EXPECT_TRUE(drive(world, [&] {
        return std::ranges::all_of(sent, is_done) && std::ranges::all_of(received, is_done);
      }));
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_TRUE(received[i]->request.done()) << "message " << i;
        if (!received[i]->request.done()) continue;
        EXPECT_TRUE(received[i]->request.status().ok()) << received[i]->request.status().message();
        EXPECT_TRUE(same_bytes(received[i]->bytes, pattern(i, sizes[i]))) << "message " << i;
      }
    }
  }
}

TEST_P(TransportTest, EveryQuestionFindsItsAnswer) {
  constexpr std::uint32_t kMessages = 300;
  World world = make();
  Participant asking(world, 0);
  Participant answering(world, 1);
  std::vector<Message*> questions;
  std::vector<Message*> answers;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    questions.push_back(&answering.recv(0, {.group = kGroup, .message = i}, 1 + i * 13 % 500));
  }
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    answers.push_back(&asking.recv(1, {.group = kGroup + 1, .message = i}, 1 + i * 13 % 500));
    asking.send(1, {.group = kGroup, .message = i}, pattern(i, 1 + i * 13 % 500));
  }
  std::uint32_t answered = 0;
  ASSERT_TRUE(drive({&world[1], &world[0]}, [&] {
    for (; answered < kMessages && questions[answered]->request.done(); ++answered) {
      answering.send(0, {.group = kGroup + 1, .message = answered}, questions[answered]->bytes);
    }
    return answered == kMessages && asking.all_done() && answering.all_done();
  }));
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(same_bytes(answers[i]->bytes, pattern(i, 1 + i * 13 % 500))) << i;
  }
}

TEST_P(TransportTest, NobodyHasToReadFirst) {
  World world = make(3);
  on_each_rank(world, [](Participant& self) {
    Endpoint& endpoint = self.endpoint();
    std::vector<Message*> received;
    for (int p = 0; p < 3; ++p) {
      if (Rank(p) == endpoint.rank()) continue;
      self.send(p, {.group = kGroup}, pattern(static_cast<std::uint64_t>(p), kLarge));
      for (std::uint32_t i = 0; i < 40; ++i) {
        self.send(p, {.group = kGroup, .message = 1 + i}, pattern(i, kEagerBytes));
      }
    }
    settle({&endpoint});
    for (int p = 0; p < 3; ++p) {
      if (Rank(p) == endpoint.rank()) continue;
      for (std::uint32_t i = 0; i < 40; ++i) {
        received.push_back(&self.recv(p, {.group = kGroup, .message = 1 + i}, kEagerBytes));
      }
      received.push_back(&self.recv(p, {.group = kGroup}, kLarge));
    }
    ASSERT_TRUE(drive({&endpoint}, [&] { return self.all_done(); }));
    for (std::size_t i = 0; i < received.size(); ++i) {
      const std::size_t n = i % 41;
      EXPECT_TRUE(
          same_bytes(received[i]->bytes,
                     n == 40 ? pattern(static_cast<std::uint64_t>(endpoint.rank().value()), kLarge)
                             : pattern(n, kEagerBytes)));
    }
    // A rank that is done goes on serving the others.
    settle({&endpoint});
  });
}

struct Traffic {
  std::uint64_t seed;
  std::uint32_t messages;  // From each rank to each other.

  std::uint64_t content(int from, int to, std::uint32_t i) const {
    return seed + static_cast<std::uint64_t>(from) * 1000003 +
           static_cast<std::uint64_t>(to) * 10007 + i;
  }
  std::size_t size(int from, int to, std::uint32_t i) const {
    Random random(content(from, to, i));
    const std::uint64_t kind = random.below(16);
    if (kind == 0) return random.below(1200000);
    if (kind < 3) return kEagerBytes - 2 + random.below(4);
    return kind < 6 ? random.below(20000) : random.below(300);
  }
};

// Posts everything in an order of its own, with turns of progress in between.
void run_traffic(const Traffic& traffic, Participant& self) {
  Endpoint& endpoint = self.endpoint();
  const int rank = endpoint.rank().value();
  struct Item {
    int peer;
    std::uint32_t index;
    bool sends;
  };
  std::vector<Item> items;
  for (int p = 0; p < endpoint.size(); ++p) {
    for (std::uint32_t i = 0; p != rank && i < traffic.messages; ++i) {
      items.push_back({p, i, true});
      items.push_back({p, i, false});
    }
  }
  Random random(traffic.seed + static_cast<std::uint64_t>(rank));
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
  std::vector<std::pair<Item, Message*>> received;
  for (const Item& item : items) {
    const MessageKey key{.group = kGroup, .sequence = item.index};
    const int from = item.sends ? rank : item.peer;
    const int to = item.sends ? item.peer : rank;
    const std::size_t size = traffic.size(from, to, item.index);
    if (item.sends) {
      self.send(item.peer, key, pattern(traffic.content(from, to, item.index), size));
    } else {
      received.emplace_back(item, &self.recv(item.peer, key, size));
    }
    if (random.below(4) == 0) endpoint.progress();
  }
  ASSERT_TRUE(drive({&endpoint}, [&] { return self.all_done(); }));
  for (const auto& [item, message] : received) {
    ASSERT_TRUE(message->request.status().ok()) << message->request.status().message();
    ASSERT_TRUE(same_bytes(message->bytes, pattern(traffic.content(item.peer, rank, item.index),
                                                   traffic.size(item.peer, rank, item.index))))
        << "from " << item.peer << " to " << rank << " #" << item.index;
  }
}

TEST_P(TransportTest, RandomTrafficBetweenAll) {
  const std::uint64_t seed = testing::draw_seed();
  for (int ranks = 2; ranks <= 5; ++ranks) {
    const Traffic traffic{.seed = seed + static_cast<std::uint64_t>(ranks), .messages = 40};
    SCOPED_TRACE(::testing::Message() << ranks << " ranks");
    World world = make(ranks);
    std::atomic<int> finished{0};
    on_each_rank(world, [&](Participant& self) {
      run_traffic(traffic, self);
      ++finished;
      EXPECT_TRUE(drive({&self.endpoint()}, [&] { return finished == ranks; }));
    });
    if (HasFailure()) return;
  }
}

TEST_P(TransportTest, SocketsMayTakeAFewBytesAtATime) {
  World world = make(2, 2048);
  Participant from(world, 0);
  Participant to(world, 1);
  std::vector<Message*> received;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const std::size_t size = i % 20 == 0 ? 150000 : i * 97;
    from.send(1, {.group = kGroup, .message = i}, pattern(i, size));
    received.push_back(&to.recv(0, {.group = kGroup, .message = i}, size));
  }
  ASSERT_TRUE(drive(world, [&] { return from.all_done() && to.all_done(); }));
  for (std::uint32_t i = 0; i < 60; ++i) {
    EXPECT_TRUE(same_bytes(received[i]->bytes, pattern(i, received[i]->bytes.size()))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportTest, ::testing::ValuesIn(world_kinds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto::transport
