// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/endpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/transport/frame.h"
#include "stretto/transport/frame_messages.h"
#include "tests/support/fake_link.h"
#include "tests/support/held_plane.h"
#include "tests/support/recording_listener.h"
#include "tests/support/soon.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

// Like a socket, it can be read only after an event. It counts how often it is asked for bytes.
class EventLink final : public FakeLink {
 public:
  bool needs_poll() const override { return true; }
  int descriptor() const override { return event_.get(); }
  void service(std::uint32_t) override { told_ = true; }
  bool readable() const override {
    ++asked;
    return told_ && FakeLink::readable();
  }
  Result<std::size_t> read(ByteSpan into) override {
    Result<std::size_t> given = FakeLink::read(into);
    if (!given.ok() || !FakeLink::readable()) told_ = false;
    return given;
  }
  // Also finds bytes for which there was no event.
  Contact check_contact(TimePoint now) override {
    told_ = true;
    return FakeLink::check_contact(now);
  }

  void make_event() { EXPECT_EQ(::eventfd_write(event_.get(), 1), 0); }
  void feed_with_event(ConstByteSpan bytes) {
    feed(bytes);
    make_event();
  }

  mutable int asked = 0;

 private:
  FileDescriptor event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  bool told_ = false;
};

FrameHeader empty_message(std::uint32_t number) {
  return encode({.kind = FrameKind::message, .key = {.group = 1, .message = number}});
}

// Rank 0 of many ranks, of which only the last shares memory with it.
class DuePeersTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 131;
  static constexpr int kLocal = kRanks - 1;
  static constexpr int kProcess = 70;

  explicit DuePeersTest(std::unique_ptr<DataPlane> plane = nullptr) : plane_(std::move(plane)) {}

  void SetUp() override {
    Endpoint::Parts parts{.rank = 0, .data_plane = std::move(plane_), .farewell_time = {}};
    parts.links = RankVector<std::unique_ptr<Link>>(kRanks);
    parts.processes = RankVector<ProcessHandle>(kRanks);
    parts.processes[kProcess] = process_;
    for (int r = 1; r < kLocal; ++r) {
      auto link = std::make_unique<EventLink>();
      links_[r] = link.get();
      parts.links[r] = std::move(link);
    }
    auto link = std::make_unique<FakeLink>();
    local_ = link.get();
    parts.links[kLocal] = std::move(link);
    endpoint_ = Endpoint::create(std::move(parts)).or_throw();
    endpoint_->set_listener(&listener_);
    settle();
  }

  void settle() {
    while (endpoint_->progress()) continue;
  }
  int asked() const {
    int sum = 0;
    for (int r = 1; r < kLocal; ++r) sum += links_[r]->asked;
    return sum;
  }
  // Expects that progress visits no rank, except the one that shares memory.
  void expect_idle() {
    const int before = asked();
    for (int turn = 0; turn < 10; ++turn) EXPECT_FALSE(endpoint_->progress());
    EXPECT_EQ(asked(), before);
  }

  std::unique_ptr<DataPlane> plane_;  // Only until SetUp().
  ProcessHandle process_;             // The process of rank kProcess.
  RankVector<EventLink*> links_ = RankVector<EventLink*>(kRanks);
  FakeLink* local_ = nullptr;
  RecordingListener listener_;
  std::unique_ptr<Endpoint> endpoint_;
};

TEST_F(DuePeersTest, IdleOnesAreNotVisited) {
  expect_idle();
  local_->feed(empty_message(1));
  const int before = asked();
  EXPECT_TRUE(endpoint_->progress()) << "what comes by memory makes no event";
  EXPECT_EQ(listener_.unexpected.size(), 1u);
  EXPECT_EQ(asked(), before);
}

TEST_F(DuePeersTest, AnEventMakesOneDueAndNoOther) {
  for (const int r : {1, 63, 64, 129}) {
    const int others = asked() - links_[r]->asked;
    links_[r]->feed(empty_message(1));
    expect_idle();
    links_[r]->make_event();
    settle();
    ASSERT_FALSE(listener_.unexpected.empty());
    EXPECT_EQ(listener_.unexpected.back().first, Rank(r));
    EXPECT_EQ(asked() - links_[r]->asked, others);
  }
  EXPECT_EQ(listener_.unexpected.size(), 4u);
  expect_idle();
}

TEST_F(DuePeersTest, WhatMadeNoEventIsFoundByTheNextLookAtTheConnections) {
  links_[64]->feed(empty_message(1));
  expect_idle();
  endpoint_->check_contacts(Clock::now());
  EXPECT_TRUE(endpoint_->progress());
  EXPECT_EQ(listener_.unexpected.size(), 1u);
  settle();
  expect_idle();
}

TEST_F(DuePeersTest, OneThatTurnsCannotEmptyIsReadToItsEnd) {
  links_[64]->read_max_bytes = 1;
  for (std::uint32_t i = 0; i < 3; ++i) links_[64]->feed(empty_message(i));
  links_[64]->make_event();
  settle();
  EXPECT_EQ(listener_.unexpected.size(), 3u);
  expect_idle();
}

TEST_F(DuePeersTest, AQuestionThatFindsNoRoomGoesOutLater) {
  links_[64]->room_bytes = 0;
  endpoint_->inquire(64, 1, 1, {});
  for (int turn = 0; turn < 10; ++turn) EXPECT_FALSE(endpoint_->progress());
  links_[64]->room_bytes = kFrameHeaderBytes;
  EXPECT_TRUE(endpoint_->progress());
  EXPECT_EQ(links_[64]->written.size(), kFrameHeaderBytes);
  settle();
  expect_idle();
}

TEST_F(DuePeersTest, AMessageThatFindsNoRoomGoesOutLater) {
  links_[64]->room_bytes = 0;
  TrackedRequest request;
  request.peer = 64;
  request.key = {.group = 1};
  endpoint_->send(request);
  EXPECT_FALSE(endpoint_->progress());
  EXPECT_FALSE(request.done());
  links_[64]->room_bytes = kFrameHeaderBytes;
  EXPECT_TRUE(endpoint_->progress());
  EXPECT_TRUE(request.done() && request.status().ok());
  expect_idle();
}

TEST_F(DuePeersTest, TheReceiveOfALargeMessageIsTold) {
  std::vector<std::byte> bytes(kEagerBytes + 1);
  TrackedRequest request;
  request.peer = 64;
  request.key = {.group = 1};
  request.incoming = bytes;
  endpoint_->recv(request);
  EXPECT_TRUE(endpoint_->progress());
  EXPECT_EQ(links_[64]->written.size(), kFrameHeaderBytes);
  const std::vector<Rank> members = {0, 64};
  endpoint_->abandon(1, members, {StatusCode::aborted, "enough"});
  EXPECT_TRUE(request.done());
  settle();
  expect_idle();
}

// Credit becomes due with the last message that comes.
TEST_F(DuePeersTest, CreditIsGivenThoughNothingElseComes) {
  const std::vector<std::byte> payload(kEagerBytes);
  std::vector<std::byte> bytes(kEagerBytes);
  std::list<TrackedRequest> requests;
  const auto most = FrameMessages::kCreditStepBytes / unexpected_cost_bytes(kEagerBytes);
  for (std::uint32_t i = 0; i <= most; ++i) {
    EXPECT_TRUE(links_[64]->written.empty());
    TrackedRequest& request = requests.emplace_back();
    request.peer = 64;
    request.key = {.group = 1, .message = i};
    request.incoming = bytes;
    endpoint_->recv(request);
    links_[64]->feed(
        encode({.kind = FrameKind::message, .key = request.key, .message_bytes = payload.size()}));
    links_[64]->feed(payload);
    links_[64]->make_event();
    settle();
    ASSERT_TRUE(request.done() && request.status().ok()) << i;
  }
  EXPECT_EQ(links_[64]->written.size(), kFrameHeaderBytes);
  expect_idle();
}

TEST_F(DuePeersTest, TheLauncherIsAskedUntilItTells) {
  listener_.obituary = "";
  links_[64]->ended = true;
  links_[64]->make_event();
  endpoint_->progress();
  EXPECT_TRUE(endpoint_->awaits_obituary());
  for (int turn = 0; turn < 3; ++turn) {
    const std::size_t before = listener_.obituaries_asked.size();
    endpoint_->progress();
    EXPECT_GT(listener_.obituaries_asked.size(), before);
  }
  listener_.obituary = "killed";
  EXPECT_TRUE(endpoint_->progress());
  ASSERT_EQ(listener_.lost.size(), 1u);
  EXPECT_EQ(listener_.lost[0].first, Rank(64));
  settle();
  EXPECT_FALSE(endpoint_->awaits_obituary());
  expect_idle();
}

TEST_F(DuePeersTest, AConflictIsFoundAsLongAsItsMessageWaits) {
  const OperationDescriptor theirs{.collective = Collective::barrier};
  const OperationDescriptor ours{.collective = Collective::broadcast};
  const MessageKey key{.group = 1, .sequence = 3};
  EXPECT_TRUE(endpoint_->find_conflict(1, 3, ours).ok());
  links_[64]->feed_with_event(
      encode({.kind = FrameKind::message, .key = key, .operation = theirs}));
  settle();
  EXPECT_EQ(endpoint_->find_conflict(1, 3, ours).code(), StatusCode::mismatch);
  EXPECT_TRUE(endpoint_->find_conflict(1, 3, theirs).ok());
  TrackedRequest request;
  request.peer = 64;
  request.key = key;
  request.operation = theirs;
  endpoint_->recv(request);
  EXPECT_TRUE(request.done() && request.status().ok());
  EXPECT_TRUE(endpoint_->find_conflict(1, 3, ours).ok());
}

// A separate process stands for rank kProcess. Its link stays open, as if a child had kept it.
class DueProcessTest : public DuePeersTest {
 protected:
  DueProcessTest() : child_(::fork()) {
    if (child_ == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Ends the child if the test crashes.
    while (child_ == 0) ::pause();
  }
  void SetUp() override {
    process_ = ProcessHandle::of_number(child_).or_throw();
    DuePeersTest::SetUp();
  }
  ~DueProcessTest() override { kill(); }

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_;
};

TEST_F(DueProcessTest, TheEndOfAProcessIsTheEndOfItsPeerAMomentLater) {
  if (!process_.valid()) GTEST_SKIP() << "this kernel has no descriptors of processes";
  kill();
  EXPECT_TRUE(comes_true([&] {
    endpoint_->progress();
    return !listener_.lost.empty();
  }));
  ASSERT_EQ(listener_.lost.size(), 1u);
  EXPECT_EQ(listener_.lost[0].first, Rank(kProcess));
  settle();
  expect_idle();
}

// A data plane moves the messages. It makes no events.
class DueByPlaneTest : public DuePeersTest {
 protected:
  DueByPlaneTest() : DuePeersTest(std::make_unique<HeldPlane>()) {}
  HeldPlane& held_ = static_cast<HeldPlane&>(*plane_);
};

TEST_F(DueByPlaneTest, WhatMustNotOvertakeMessagesIsSaidBehindThem) {
  held_.output = true;
  endpoint_->send_agreement(64, {.group = 6}, {});
  settle();
  EXPECT_TRUE(links_[64]->written.empty());
  held_.output = false;
  EXPECT_TRUE(endpoint_->progress());
  EXPECT_EQ(links_[64]->written.size(), kFrameHeaderBytes);
  settle();
  expect_idle();
}

TEST_F(DueByPlaneTest, WhatHasOvertakenMessagesIsHeardBehindThem) {
  held_.arrived = 1;
  links_[64]->feed_with_event(encode({.kind = FrameKind::farewell, .key = {.group = 5}}));
  settle();
  EXPECT_TRUE(listener_.groups_left.empty());
  held_.read = 1;
  EXPECT_TRUE(endpoint_->progress());
  EXPECT_EQ(listener_.groups_left, std::vector<std::uint64_t>{5});
  settle();
  expect_idle();
}

}  // namespace
}  // namespace stretto::transport
