// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stretto/base/poll.h"
#include "stretto/base/sealed_memory.h"
#include "tests/contract/process_resources.h"
#include "tests/support/expect_contains.h"
#include "tests/support/may_copy_from.h"
#include "tests/support/send_with_descriptors.h"
#include "tests/support/shortage.h"
#include "tests/support/socket_pairs.h"
#include "tests/support/soon.h"

namespace stretto::transport::shm {
namespace {

FileDescriptor make_file(std::size_t bytes) {
  return make_sealed_memory("stretto", bytes).or_throw();
}

FileDescriptor make_shrinking_file() {
  FileDescriptor file(::memfd_create("stretto", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), 4096), 0);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  return file;
}

TEST(MappingTest, IsSharedSealedAndZeroed) {
  MappableMemory::Mapping own = FileMemory().create(5000).or_throw();
  EXPECT_EQ(own.bytes, 5000u);
  EXPECT_EQ(own.data.get()[4999], std::byte{0});
  EXPECT_NE(::ftruncate(own.descriptor.get(), 100), 0) << "it could shrink";
  const MappableMemory::Mapping other =
      FileMemory().open(FileDescriptor(::dup(own.descriptor.get())), 5000).or_throw();
  other.data.get()[4999] = std::byte{7};
  EXPECT_EQ(own.data.get()[4999], std::byte{7});
}

TEST(MappingTest, RefusesWhatCouldTakeItsPagesAway) {
  EXPECT_EQ(FileMemory().open(make_shrinking_file(), 4096).status().code(), StatusCode::protocol);
  EXPECT_TRUE(FileMemory().open(make_file(4096), 4096).ok());
  // This file has no seals at all.
  EXPECT_EQ(
      FileMemory().open(FileDescriptor(::open("/proc/self/exe", O_RDONLY)), 100).status().code(),
      StatusCode::protocol);
}

TEST(MappingTest, RefusesAFileThatIsTooSmall) {
  EXPECT_EQ(FileMemory().open(make_file(4096), 4097).status().code(), StatusCode::protocol);
  EXPECT_EQ(FileMemory().open(make_file(0), 0).status().code(), StatusCode::protocol);
  EXPECT_EQ(FileMemory().open(make_file(4096), static_cast<std::size_t>(-1)).status().code(),
            StatusCode::protocol);
  EXPECT_EQ(FileMemory().open(FileDescriptor(), 4096).status().code(), StatusCode::protocol);
}

// The memory of rank 0, and the bare end of the socket on which rank 1 would be.
class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    auto ends = stretto::testing::make_unix_pair(SOCK_STREAM);
    channel_ = std::make_shared<Channel>(std::move(ends.first));
    peer_ = std::move(ends.second);
    memory_ =
        std::make_shared<ShmMemory>(0, std::vector<std::shared_ptr<Channel>>{nullptr, channel_});
  }
  // Sends bytes with some descriptors beside them.
  void send_bytes(ConstByteSpan bytes, const std::vector<int>& descriptors = {}) {
    ASSERT_EQ(stretto::testing::send_with_descriptors(peer_.get(), bytes, descriptors),
              std::ssize(bytes));
  }
  void send(const Notice& notice, const std::vector<int>& descriptors = {}) {
    send_bytes(std::as_bytes(std::span(&notice, 1)), descriptors);
  }
  void take_in() {
    while (auto received = channel_->receive()) memory_->receive(1, std::move(*received));
  }

  std::shared_ptr<Channel> channel_;
  FileDescriptor peer_;
  std::shared_ptr<ShmMemory> memory_;
};

// The peer is this process itself, which has the memory of both ranks.
TEST_F(MemoryTest, PrivateMemoryIsReachedOnceItIsProved) {
  ASSERT_TRUE(memory_->find_process(1).ok());
  EXPECT_FALSE(memory_->reaches_private(1));
  const Notice proof = memory_->proof();
  Notice wrong = proof;
  ++wrong.region;
  memory_->prove(1, wrong);
  EXPECT_FALSE(memory_->reaches_private(1)) << "another number is there";
  wrong = proof;
  wrong.bytes = 8;
  memory_->prove(1, wrong);
  EXPECT_FALSE(memory_->reaches_private(1)) << "nothing is there";
  std::byte theirs{7};
  std::byte ours{};
  const auto address = RemoteAddress::in_process(&theirs);
  EXPECT_EQ(memory_->get(1, address, {&ours, 1}).code(), StatusCode::internal);
  memory_->prove(1, proof);
  if (!testing::may_copy_from(::getpid())) GTEST_SKIP() << "the system does not allow it";
  ASSERT_TRUE(memory_->get(1, address, {&ours, 1}).ok());
  EXPECT_EQ(ours, std::byte{7});
}

TEST_F(MemoryTest, TakesARegionAndItsEnd) {
  const FileDescriptor file = make_file(4096);
  send({.kind = Notice::Kind::region, .region = 5, .bytes = 4096}, {file.get()});
  take_in();
  EXPECT_NE(memory_->resolve(1, {5, 0}, 4096), nullptr);
  EXPECT_EQ(memory_->resolve(1, {5, 0}, 4097), nullptr);
  send({.kind = Notice::Kind::release, .region = 5});
  take_in();
  EXPECT_EQ(memory_->resolve(1, {5, 0}, 1), nullptr);
}

TEST_F(MemoryTest, DoesNotMapWhatCannotBeTrusted) {
  const FileDescriptor shrinking = make_shrinking_file();
  const FileDescriptor good = make_file(4096);
  send({.kind = Notice::Kind::region, .region = 1, .bytes = 4096}, {shrinking.get()});
  send({.kind = Notice::Kind::region, .region = 2, .bytes = 8192}, {good.get()});
  send({.kind = Notice::Kind::region, .region = 3, .bytes = 4096});
  send({.kind = Notice::Kind::release, .region = 77});
  take_in();
  for (const std::uint32_t region : {1u, 2u, 3u}) {
    EXPECT_EQ(memory_->resolve(1, {region, 0}, 1), nullptr) << region;
  }
  EXPECT_FALSE(channel_->closed());
}

TEST_F(MemoryTest, ARegionAnnouncedTwiceIsTheLaterOne) {
  const FileDescriptor first = make_file(8192);
  const FileDescriptor second = make_file(4096);
  send({.kind = Notice::Kind::region, .region = 5, .bytes = 8192}, {first.get()});
  send({.kind = Notice::Kind::region, .region = 5, .bytes = 4096}, {second.get()});
  take_in();
  EXPECT_EQ(memory_->resolve(1, {5, 0}, 8192), nullptr) << "the first is not mapped any more";
  std::byte* const data = memory_->resolve(1, {5, 0}, 4096);
  ASSERT_NE(data, nullptr);
  data[4095] = std::byte{1};
}

TEST_F(MemoryTest, WhatComesAndGoesWhileAPeerDoesNotReadIsNotKept) {
  const auto use = [&](int times) {
    for (int i = 0; i < times; ++i) (void)memory_->allocate(4096).or_throw();
  };
  use(2000);  // More notices than the socket takes.
  memory_->service();
  const int before = open_descriptors();
  use(1000);
  memory_->service();
  EXPECT_LE(open_descriptors(), before);
}

TEST_F(MemoryTest, NoDescriptorLeaks) {
  const FileDescriptor file = make_file(4096);
  const int before = open_descriptors();
  send({.kind = Notice::Kind::region, .region = 5, .bytes = 4096},
       {file.get(), file.get(), file.get(), file.get()});
  send({.kind = Notice::Kind::doorbell}, {file.get(), file.get()});
  send({.kind = Notice::Kind::region, .region = 6, .bytes = 1 << 30}, {file.get()});
  take_in();
  EXPECT_EQ(open_descriptors(), before);
}

// The connected memories of two ranks.
class MemoryShortage : public ::testing::Test {
 protected:
  MemoryShortage() {
    auto ends = stretto::testing::make_unix_pair(SOCK_STREAM);
    channels_[0] = std::make_shared<Channel>(std::move(ends.first));
    channels_[1] = std::make_shared<Channel>(std::move(ends.second));
    owner_ = std::make_shared<ShmMemory>(
        0, std::vector<std::shared_ptr<Channel>>{nullptr, channels_[0]});
    other_ = std::make_shared<ShmMemory>(
        1, std::vector<std::shared_ptr<Channel>>{channels_[1], nullptr});
  }
  void turn() {
    take_in_by_owner();
    while (auto received = channels_[1]->receive()) other_->receive(0, std::move(*received));
    owner_->service();
    other_->service();
  }
  // Whether the region arrives within an ample time.
  bool arrives(RemoteAddress address) {
    return comes_true([&] {
      turn();
      return other_->resolve(0, address, 1) != nullptr;
    });
  }
  void turn_for_a_while() {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
    while (!deadline.passed()) turn();
  }
  void take_in_by_owner() {
    while (auto received = channels_[0]->receive()) owner_->receive(1, std::move(*received));
  }

  std::shared_ptr<Channel> channels_[2];
  std::shared_ptr<ShmMemory> owner_;
  std::shared_ptr<ShmMemory> other_;
};

TEST_F(MemoryShortage, AFileThatFindsNoDescriptorIsTakenLater) {
  const int before = open_descriptors();
  const Region region = owner_->allocate(1024 * 1024).or_throw();
  EXPECT_TRUE(other_->find_shortage(0, region.address).ok()) << "it has not come yet";
  {
    const stretto::testing::FewDescriptors none(0);
    turn_for_a_while();
    EXPECT_EQ(other_->resolve(0, region.address, 1), nullptr);
    const Status shortage = other_->find_shortage(0, region.address);
    EXPECT_EQ(shortage.rank(), Rank(1));
    expect_failure(shortage, StatusCode::system,
                   "rank 1 cannot map 1.0 MiB of shared memory of rank 0: taking its file: "
                   "Too many open files; raise `ulimit -n`");
  }
  region.bytes[7] = std::byte{7};
  ASSERT_TRUE(arrives(region.address));
  EXPECT_EQ(*other_->resolve(0, {region.address.region, 7}, 1), std::byte{7});
  EXPECT_TRUE(other_->find_shortage(0, region.address).ok());
  turn();
  EXPECT_EQ(open_descriptors(), before) << "nobody needs the file any more";
}

TEST_F(MemoryShortage, WhatComesBehindSuchAFileComesAfterIt) {
  Region freed = owner_->allocate(4096).or_throw();
  const Region behind = owner_->allocate(8192).or_throw();
  const RemoteAddress address = freed.address;
  {
    const stretto::testing::FewDescriptors none(0);
    turn_for_a_while();
    freed = {};
    turn_for_a_while();
    for (const RemoteAddress& each : {address, behind.address}) {
      EXPECT_EQ(other_->resolve(0, each, 1), nullptr);
      EXPECT_FALSE(other_->find_shortage(0, each).ok());
    }
  }
  EXPECT_TRUE(arrives(behind.address));
  turn();
  EXPECT_EQ(other_->resolve(0, address, 1), nullptr) << "it has been freed";
  EXPECT_TRUE(other_->find_shortage(0, address).ok());
}

// No event tells that descriptors are free again.
TEST_F(MemoryShortage, IsLookedAtAgainWithAllThatHasComeBehindIt) {
  const Region region = owner_->allocate(4096).or_throw();
  Region freed = owner_->allocate(4096).or_throw();
  const RemoteAddress gone = freed.address;
  freed = {};
  owner_->service();
  channels_[0]->ring();
  {
    const stretto::testing::FewDescriptors none(0);
    EXPECT_FALSE(channels_[1]->receive());
    EXPECT_TRUE(channels_[1]->stuck());
  }
  EXPECT_TRUE(comes_true([&] {
    other_->service();
    return other_->resolve(0, region.address, 1) != nullptr;
  }));
  EXPECT_EQ(other_->resolve(0, gone, 1), nullptr);
  EXPECT_FALSE(is_readable(channels_[1]->descriptor())) << "nothing is left there";
}

TEST_F(MemoryShortage, TheEndOfItsOwnerIsSeenAllTheSame) {
  const Region region = owner_->allocate(4096).or_throw();
  const stretto::testing::FewDescriptors none(0);
  turn_for_a_while();
  EXPECT_FALSE(channels_[1]->closed());
  channels_[0]->shut_down();
  EXPECT_FALSE(channels_[1]->receive());
  EXPECT_TRUE(channels_[1]->closed());
}

TEST_F(MemoryShortage, ARegionThatFindsNoAddressesIsMappedLater) {
  const Region region = owner_->allocate(256 * 1024 * 1024).or_throw();
  {
    const stretto::testing::LittleAddressSpace little(64 * 1024 * 1024);
    turn_for_a_while();
    EXPECT_EQ(other_->resolve(0, region.address, 1), nullptr);
    expect_contains(other_->find_shortage(0, region.address).message(),
                    "Cannot allocate memory; raise `ulimit -v`");
  }
  EXPECT_TRUE(arrives(region.address));
}

TEST_F(MemoryShortage, EndsWithTheRankThatHasNotTakenTheFile) {
  for (int i = 0; i < 10000; ++i) channels_[0]->ring();  // Until there is no room for more.
  const int before = open_descriptors();
  const Region region = owner_->allocate(4096).or_throw();
  EXPECT_GT(open_descriptors(), before);
  EXPECT_TRUE(channels_[0]->has_pending());
  other_.reset();
  channels_[1].reset();
  while (!channels_[0]->closed()) (void)channels_[0]->receive();
  EXPECT_LT(open_descriptors(), before) << "neither the file nor the other end of the socket";
}

TEST_F(MemoryTest, NonsenseClosesTheChannel) {
  send({.kind = static_cast<Notice::Kind>(99)});
  take_in();
  EXPECT_TRUE(channel_->closed());
}

TEST_F(MemoryTest, APieceOfANoticeClosesTheChannel) {
  send_bytes(std::as_bytes(std::span("abc", 3)));
  take_in();
  EXPECT_TRUE(channel_->closed());
}

TEST_F(MemoryTest, ManyRegionsReachAPeerThatLooksLate) {
  std::vector<Region> regions;
  for (int i = 0; i < 500; ++i) regions.push_back(memory_->allocate(10).or_throw());
  auto reader = std::make_shared<Channel>(std::move(peer_));
  ShmMemory peer_memory(1, {reader, nullptr});
  for (int turn = 0; turn < 500; ++turn) {
    memory_->service();
    while (auto received = reader->receive()) peer_memory.receive(0, std::move(*received));
  }
  for (const auto& region : regions) EXPECT_NE(peer_memory.resolve(0, region.address, 10), nullptr);
}

}  // namespace
}  // namespace stretto::transport::shm
