// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/ring.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "stretto/base/random.h"

namespace stretto::transport {
namespace {

// A ring in memory of its own.
struct OwnRing {
  std::unique_ptr<Ring::Control> control = std::make_unique<Ring::Control>();
  std::vector<std::byte> data = std::vector<std::byte>(Ring::kBytes);
  Ring ring{control.get(), data.data()};

  std::size_t write(ConstByteSpan bytes) {
    const ConstByteSpan pieces[] = {bytes};
    return ring.write(pieces).or_throw();
  }
  std::size_t read(ByteSpan into) { return ring.read(into).or_throw(); }
};

std::byte byte_at(std::uint64_t position) {
  return static_cast<std::byte>((position * 0x9e3779b97f4a7c15u) >> 56);
}

std::vector<std::byte> bytes_from(std::uint64_t position, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = byte_at(position + i);
  return bytes;
}

TEST(RingTest, StartsEmptyAndFillsUp) {
  OwnRing own;
  std::vector<std::byte> into(10);
  EXPECT_TRUE(own.ring.empty());
  EXPECT_EQ(own.read(into), 0u);
  const auto bytes = bytes_from(0, Ring::kBytes + 1);
  EXPECT_EQ(own.write(bytes), Ring::kBytes);
  EXPECT_EQ(own.write(bytes), 0u);
  EXPECT_FALSE(own.ring.empty());
  EXPECT_TRUE(own.ring.was_full_at(0));
  EXPECT_EQ(own.read(into), 10u);
  EXPECT_TRUE(own.ring.was_full_at(0));
  EXPECT_FALSE(own.ring.was_full_at(own.ring.position()));
  EXPECT_EQ(into, bytes_from(0, 10));
  EXPECT_EQ(own.write(bytes), 10u);
}

TEST(RingTest, WrapsAroundAnywhere) {
  OwnRing own;
  Random random(3);
  std::uint64_t written = 0;
  std::uint64_t read = 0;
  std::vector<std::byte> into(Ring::kBytes);
  while (read < 20 * Ring::kBytes) {
    const auto bytes = bytes_from(written, random.below(60000));
    const std::size_t cut = bytes.empty() ? 0 : random.below(bytes.size());
    const ConstByteSpan whole(bytes);
    const ConstByteSpan pieces[] = {whole.first(cut), {}, whole.subspan(cut)};
    written += own.ring.write(pieces).or_throw();
    const std::size_t given = own.read(std::span(into).first(random.below(60000)));
    for (std::size_t i = 0; i < given; ++i) ASSERT_EQ(into[i], byte_at(read + i)) << read + i;
    read += given;
    ASSERT_LE(written - read, Ring::kBytes);
  }
}

TEST(RingTest, RefusesPositionsThatMakeNoSense) {
  std::vector<std::byte> some(100);
  const ConstByteSpan pieces[] = {some};
  const auto set = [](OwnRing& own, std::uint64_t written, std::uint64_t read) {
    own.control->written = written;
    own.control->read = read;
  };
  for (const std::uint64_t base : {std::uint64_t{0}, std::uint64_t{1} << 40}) {
    for (const std::uint64_t distance : {Ring::kBytes + std::uint64_t{1}, ~std::uint64_t{0}}) {
      OwnRing own;
      set(own, base + distance, base);
      EXPECT_EQ(own.ring.read(some).status().code(), StatusCode::protocol);
      EXPECT_EQ(own.ring.write(pieces).status().code(), StatusCode::protocol);
    }
  }
}

TEST(RingTest, StreamsBetweenThreads) {
  constexpr std::uint64_t kTotal = 100'000'000;
  OwnRing own;
  std::thread writer([&] {
    const auto bytes = bytes_from(0, 1 << 20);
    Random random(1);
    for (std::uint64_t written = 0; written < kTotal;) {
      // The contents repeat with the size of `bytes`.
      const std::size_t offset = written % bytes.size();
      const std::size_t size = std::min<std::uint64_t>(
          {1 + random.below(100000), bytes.size() - offset, kTotal - written});
      const std::size_t taken = own.write(std::span(bytes).subspan(offset, size));
      if (taken == 0) ::sched_yield();
      written += taken;
    }
  });
  const auto expected = bytes_from(0, 1 << 20);
  std::vector<std::byte> into(100000);
  Random random(2);
  std::uint64_t wrong = 0;
  for (std::uint64_t read = 0; read < kTotal;) {
    const std::size_t offset = read % expected.size();
    const std::size_t size = std::min(1 + random.below(into.size()), expected.size() - offset);
    const std::size_t given = own.read(std::span(into).first(size));
    if (given == 0) ::sched_yield();
    const ConstByteSpan part = std::span(expected).subspan(offset, given);
    wrong += std::equal(part.begin(), part.end(), into.begin()) ? 0 : 1;
    read += given;
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(own.ring.empty());
}

TEST(InboxTest, KeepsItsWritersApart) {
  constexpr int kWriters = 3;
  const std::size_t size = Inbox::bytes(kWriters);
  constexpr std::align_val_t kAlignment{128};
  auto* const memory = static_cast<std::byte*>(::operator new(size + 1, kAlignment));
  std::fill(memory, memory + size, std::byte{0});
  memory[size] = std::byte{0x5a};
  const Inbox inbox(memory);
  for (int w = 0; w < kWriters; ++w) {
    const std::vector<std::byte> bytes(Ring::kBytes, static_cast<std::byte>(w + 1));
    const ConstByteSpan pieces[] = {bytes};
    EXPECT_EQ(inbox.ring(w).write(pieces).or_throw(), Ring::kBytes);
  }
  inbox.sleeping().store(1);
  for (int w = 0; w < kWriters; ++w) {
    std::vector<std::byte> into(Ring::kBytes);
    EXPECT_EQ(inbox.ring(w).read(into).or_throw(), Ring::kBytes);
    EXPECT_EQ(into, std::vector<std::byte>(Ring::kBytes, static_cast<std::byte>(w + 1)));
  }
  EXPECT_EQ(inbox.sleeping().load(), 1u);
  EXPECT_EQ(memory[size], std::byte{0x5a});
  ::operator delete(memory, kAlignment);
}

}  // namespace
}  // namespace stretto::transport
