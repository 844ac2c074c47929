// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/endpoint.h"

#include <gtest/gtest.h>

#include "stretto/transport/fake_link.h"
#include "stretto/transport/frame.h"

namespace stretto::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Listener final : TransportListener {
  void peer_lost(Rank peer, const Status& status) override { lost.emplace_back(peer, status); }
  void message_early(Rank, const MessageKey&, const OperationDescriptor&) override {}
  void group_aborted(std::uint64_t, Rank, const Status&) override {}
  std::vector<std::pair<Rank, Status>> lost;
};

// Rank 0 of five.
class EndpointTest : public testing::Test {
 protected:
  EndpointTest() {
    Endpoint::Parts parts{.rank = 0, .links = {}, .memory = nullptr, .sleep_flag = nullptr};
    parts.names = {"node0 pid 1", "node1 pid 2", "node1 pid 3", "node2 pid 4", "node1 pid 5"};
    parts.links.push_back(nullptr);
    for (int r = 1; r < 5; ++r) {
      auto link = std::make_unique<FakeLink>();
      links.push_back(link.get());
      parts.links.push_back(std::move(link));
    }
    endpoint = Endpoint::create(std::move(parts)).or_throw();
  }

  std::vector<FakeLink*> links{nullptr};
  std::unique_ptr<Endpoint> endpoint;
};

TEST_F(EndpointTest, GivesAQuietPeerSomethingToAcknowledge) {
  TimePoint now = Clock::now();
  const auto check = [&] { endpoint->check_contacts(now += seconds(1)); };
  check();
  EXPECT_TRUE(links[1]->written.empty());
  links[1]->contact.wants_sign = true;
  check();
  check();
  EXPECT_TRUE(links[2]->written.empty());
  ASSERT_EQ(links[1]->written.size(), 2 * kFrameHeaderBytes);
  FrameHeader header;
  std::copy_n(links[1]->written.begin(), header.size(), header.begin());
  EXPECT_EQ(decode(header).or_throw().kind, FrameKind::credit);
  // Not behind what does not leave anyway.
  links[1]->room_bytes = 0;
  for (int i = 0; i < 100; ++i) check();
  links[1]->room_bytes = 1 << 20;
  endpoint->progress();
  EXPECT_EQ(links[1]->written.size(), 3 * kFrameHeaderBytes);
  // And taken by the other side for what it is.
  for (int i = 0; i < 3; ++i) links[2]->feed(header);
  endpoint->progress();
  EXPECT_TRUE(endpoint->peer_status(2).status.ok());
}

TEST_F(EndpointTest, NamesAllFromWhomNothingComesBack) {
  Listener listener;
  endpoint->set_listener(&listener);
  const TimePoint now = Clock::now();
  endpoint->check_contacts(now);
  EXPECT_TRUE(listener.lost.empty());
  links[1]->contact.silence = milliseconds(8600);
  links[2]->contact = {.silence = seconds(9), .lost = true};
  links[3]->contact.silence = milliseconds(500);
  links[4]->contact.silence = seconds(7);
  endpoint->check_contacts(now + milliseconds(1));
  EXPECT_TRUE(listener.lost.empty()) << "the links were asked a moment ago";
  endpoint->check_contacts(now + seconds(1));
  ASSERT_EQ(listener.lost.size(), 1u);
  EXPECT_EQ(listener.lost[0].first, Rank(2));
  EXPECT_EQ(listener.lost[0].second.code(), StatusCode::peer_lost);
  const std::string text(listener.lost[0].second.message());
  EXPECT_TRUE(
      text.starts_with("lost rank 2 (fake, node1 pid 3): nothing has come back from it for "
                       "9.0 s, nor from rank 1, 4: the network to it, or its host, is down"))
      << text;
  EXPECT_FALSE(endpoint->peer_status(2).status.ok());
  EXPECT_TRUE(endpoint->peer_status(1).status.ok());
  endpoint->check_contacts(now + seconds(2));
  EXPECT_EQ(listener.lost.size(), 1u) << "told once";
}

}  // namespace
}  // namespace stretto::transport
