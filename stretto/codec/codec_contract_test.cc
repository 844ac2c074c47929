// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What holds for every codec.

#include "stretto/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/codec/header.h"
#include "stretto/kernel/reduce.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;
using Message = std::vector<std::byte>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr codec::Position kPosition{.step = 7, .own_key = 13};

struct Subject {
  std::shared_ptr<const Codec> codec;
  bool is_exact = true;     // The message and the carry add up to the whole, bit for bit.
  bool has_memory = false;  // The message depends on the hint.
};

std::vector<Subject> subjects() {
  return {{dense()},
          {nonzeros()},
          {f16(), false},
          {f16({.clip = 1.5f}), false},
          {bf16()},
          {bf16({.clip = 1.5f}), false},
          {top_k({.density = 0.01})},
          {top_k({.density = 0.2, .values = ValueFormat::bf16})},
          {top_k({.density = 0.1, .values = ValueFormat::int8})},
          {top_k({.density = 0.05, .warm_up_steps = 14})},
          {top_k({.density = 0.1, .exact = false}), true, true},
          {threshold({.limit = 0.5f})},
          {threshold({.limit = 0, .values = ValueFormat::bf16})},
          {int8()},
          {int8({.stochastic = true}), false},
          {one_bit(), false},
          {one_bit({.stochastic = true}), false}};
}

class CodecContract : public ::testing::TestWithParam<std::size_t> {
 protected:
  void expect_sum(float sent, float left, float whole, std::size_t i) const {
    const double sum = double{sent} + double{left};
    const double bound =
        subject_.is_exact ? 0 : 0x1p-24 * (std::abs(double{sent}) + std::abs(double{left}));
    ASSERT_LE(std::abs(sum - double{whole}), bound) << codec_.name() << ": element " << i;
  }

  const Subject subject_ = subjects()[GetParam()];
  const Codec& codec_ = *subject_.codec;
};

// Draws values of all magnitudes, including the smallest and the greatest, with many zeros and many
// equal values.
Floats random_values(std::size_t count, Random& random) {
  Floats values(count);
  const auto kind = random.below(5);
  for (float& value : values) {
    const float unit = static_cast<float>(random.uniform()) * 2 - 1;
    if (kind == 0) value = unit;
    if (kind == 1) value = unit * 1e-42f;  // Denormal.
    if (kind == 2) value = std::ldexp(unit, static_cast<int>(random.below(250)) - 125);
    if (kind == 3) value = static_cast<float>(random.below(3)) - 1;
    if (kind == 4) value = random.below(4) == 0 ? unit * 3e38f : 0;
  }
  return values;
}

Message encoded(const Codec& codec, Floats& carry, const Floats& gradient,
                NonFinite policy = NonFinite::send, codec::Position position = kPosition,
                std::uint32_t* hint = nullptr) {
  codec::Scratch scratch;
  Message message;
  codec.encode({carry, gradient, position, policy, hint}, scratch, message);
  return message;
}

Floats decoded(const Codec& codec, const Message& message, std::size_t count) {
  codec::Scratch scratch;
  Floats values(count);
  const auto length = codec.decode_add(message, kPosition, scratch, values);
  EXPECT_TRUE(length.ok()) << length.status().message();
  if (length.ok()) {
    EXPECT_EQ(length.value(), message.size());
  }
  return values;
}

Status refusal(const Codec& codec, const Message& message, std::size_t count,
               const codec::Position& position = kPosition) {
  codec::Scratch scratch;
  Floats values(count);
  return codec.decode_add(message, position, scratch, values).status();
}

std::size_t length_of(Random& random) {
  constexpr std::size_t kLengths[] = {0, 1, 2, 63, 64, 65, 255, 256, 257, 511, 513, 1000, 20000};
  return kLengths[random.below(std::size(kLengths))];
}

TEST_P(CodecContract, SentAndLeftAreTheWhole) {
  Random random(GetParam() + 1);
  for (int attempt = 0; attempt < 40; ++attempt) {
    const std::size_t count = length_of(random);
    const Floats gradient = random_values(count, random);
    Floats carry = random_values(count, random);
    Floats whole = carry;
    for (std::size_t i = 0; i < count; ++i) {
      whole[i] += gradient[i];
      if (!std::isfinite(whole[i])) whole[i] = 0;
    }
    const Message message = encoded(codec_, carry, gradient, NonFinite::zero);
    const Floats sent = decoded(codec_, message, count);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(std::isfinite(sent[i]) && std::isfinite(carry[i])) << i;
      ASSERT_NO_FATAL_FAILURE(expect_sum(sent[i], carry[i], whole[i], i));
    }
  }
}

TEST_P(CodecContract, LengthsAreAsForetold) {
  Random random(GetParam() + 2);
  for (int attempt = 0; attempt < 30; ++attempt) {
    const std::size_t count = length_of(random);
    Floats carry(count);
    const Message message = encoded(codec_, carry, random_values(count, random));
    EXPECT_LE(message.size(), codec_.max_message_bytes(count));
    EXPECT_EQ(message.size() % 8, 0u);
    const auto foretold = codec_.message_bytes(count, kPosition.step);
    if (foretold) {
      EXPECT_EQ(message.size(), *foretold);
    }
  }
}

bool are_same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_P(CodecContract, MessagesAreTheSameTwiceAndOnEveryTarget) {
  Random random(GetParam() + 3);
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::size_t count = length_of(random);
    const Floats gradient = random_values(count, random);
    Floats first_carry(count);
    const Message first = encoded(codec_, first_carry, gradient);
    for (const std::string_view target : kernel::available_targets()) {
      ASSERT_TRUE(kernel::use_target(target).ok());
      Floats carry(count);
      // The hint may change the speed, but not the message.
      std::uint32_t hint = subject_.has_memory ? 0 : 0x3F000000;
      const Message message = encoded(codec_, carry, gradient, NonFinite::send, kPosition, &hint);
      EXPECT_TRUE(message == first) << target;
      EXPECT_TRUE(are_same_bits(carry, first_carry)) << target;
      const Floats one = decoded(codec_, message, count);
      ASSERT_TRUE(kernel::use_target("").ok());
      const Floats other = decoded(codec_, message, count);
      EXPECT_TRUE(are_same_bits(one, other)) << target;
    }
  }
}

TEST_P(CodecContract, SeveralMessagesStandOneBehindTheOther) {
  Floats carry(100), gradient(100, 1.0f), sums(100);
  codec::Scratch scratch;
  Message messages;
  for (int i = 0; i < 2; ++i) {
    std::fill(carry.begin(), carry.end(), 0.0f);
    codec_.encode({carry, gradient, kPosition}, scratch, messages);
  }
  const auto first = codec_.decode_add(messages, kPosition, scratch, sums);
  ASSERT_TRUE(first.ok());
  const auto rest = std::span(messages).subspan(first.value());
  const auto second = codec_.decode_add(rest, kPosition, scratch, sums);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first.value() + second.value(), messages.size());
  EXPECT_EQ(*std::max_element(sums.begin(), sums.end()), 2.0f);
}

TEST_P(CodecContract, SectionsAddUpToTheWhole) {
  if (codec_.section() == 0) return;
  Random random(GetParam() + 4);
  for (const std::size_t rest : {0, 1, 300, 20000}) {
    const std::size_t count = 2 * codec_.section() + rest;
    Floats carry(count), sums(count);
    const Message message = encoded(codec_, carry, random_values(count, random));
    codec::Scratch scratch;
    const auto length = codec_.check(message, kPosition, scratch, count);
    ASSERT_TRUE(length.ok());
    EXPECT_EQ(length.value(), message.size());
    for (std::size_t first = 0; first < count; first += codec_.section()) {
      const std::size_t some = std::min(codec_.section(), count - first);
      codec_.add_section(message, count, first, std::span(sums).subspan(first, some));
    }
    EXPECT_TRUE(are_same_bits(sums, decoded(codec_, message, count))) << rest;
  }
}

TEST_P(CodecContract, InfinityAndNaNAreSeenAndNotKept) {
  for (const float wrong : {kNaN, kInfinity, -kInfinity}) {
    Floats gradient(1000, 0.25f);
    gradient[300] = wrong;
    Floats carry(1000);
    const Floats sent = decoded(codec_, encoded(codec_, carry, gradient), 1000);
    EXPECT_FALSE(std::isfinite(sent[300])) << codec_.name();
    for (const float left : carry) ASSERT_TRUE(std::isfinite(left));
  }
}

// A finite element is sent and left as if there were no others. Only elements that share a scale
// with an infinity or a NaN may be lost with it.
TEST_P(CodecContract, FiniteElementsBesideOthersAreSentOrLeft) {
  Random random(GetParam() + 6);
  for (const float wrong : {kNaN, kInfinity, -kInfinity}) {
    Floats gradient(2000), carry(2000);
    for (float& value : gradient) value = static_cast<float>(random.uniform()) - 0.5f;
    for (float& value : carry) value = static_cast<float>(random.uniform()) - 0.5f;
    gradient[300] = wrong;
    Floats whole = carry;
    for (std::size_t i = 0; i < 2000; ++i) whole[i] += gradient[i];
    const Floats sent = decoded(codec_, encoded(codec_, carry, gradient), 2000);
    std::size_t lost = 0;
    for (std::size_t i = 0; i < 2000; ++i) {
      ASSERT_TRUE(std::isfinite(carry[i])) << i;
      if (!std::isfinite(sent[i])) ++lost;
      if (!std::isfinite(sent[i]) || i == 300) continue;
      ASSERT_NO_FATAL_FAILURE(expect_sum(sent[i], carry[i], whole[i], i));
    }
    EXPECT_LE(lost, codec_.name().starts_with("one_bit") ? 512u : 1u) << codec_.name();
  }
}

TEST_P(CodecContract, WhoCutsGreatNumbersSaysSo) {
  Floats carry(1000);
  const Floats sent = decoded(codec_, encoded(codec_, carry, Floats(1000, 1e30f)), 1000);
  EXPECT_EQ(*std::max_element(sent.begin(), sent.end()) < 1e29f, codec_.is_bounded());
}

TEST_P(CodecContract, PoliciesForInfinityAndNaN) {
  Floats gradient(1000, 0.75f);
  gradient[300] = kNaN;
  gradient[301] = kInfinity;
  Floats carry(1000);
  const Message stopped = encoded(codec_, carry, gradient, NonFinite::stop);
  EXPECT_EQ(refusal(codec_, stopped, 1000).code(), StatusCode::invalid_argument);
  if (const auto bytes = codec_.message_bytes(1000, 7)) {
    EXPECT_EQ(stopped.size(), *bytes);
  }
  carry.assign(1000, 0);
  const Message message = encoded(codec_, carry, gradient, NonFinite::zero);
  Floats zeroed = gradient, other_carry(1000);
  zeroed[300] = zeroed[301] = 0;
  EXPECT_TRUE(message == encoded(codec_, other_carry, zeroed));
  EXPECT_EQ(carry, other_carry);
}

TEST_P(CodecContract, MessagesOfOthersAreRefused) {
  Floats carry(1000), gradient(1000, 0.75f);
  const Message message = encoded(codec_, carry, gradient);
  for (const Subject& other : subjects()) {
    if (other.codec->name() == codec_.name()) continue;
    EXPECT_EQ(refusal(*other.codec, message, 1000).code(), StatusCode::mismatch);
  }
  EXPECT_EQ(refusal(codec_, message, 999).code(), StatusCode::mismatch);
  EXPECT_EQ(refusal(codec_, message, 1000, {.step = 8}).code(), StatusCode::mismatch);
  Message later = message;
  later[offsetof(codec::Header, version)] = std::byte{3};
  EXPECT_EQ(refusal(codec_, later, 1000).message(),
            "a compressed message of version 3, where this rank speaks version 2");
}

TEST_P(CodecContract, DamageIsFound) {
  Random random(4);
  Floats carry(1000), gradient(1000, 0.75f);
  const Message message = encoded(codec_, carry, gradient);
  for (int attempt = 0; attempt < 200; ++attempt) {
    Message damaged = message;
    damaged[random.below(damaged.size())] ^= std::byte{1} << random.below(8);
    EXPECT_FALSE(refusal(codec_, damaged, 1000).ok());
    Message cut = message;
    cut.resize(random.below(message.size()));
    EXPECT_FALSE(refusal(codec_, cut, 1000).ok());
  }
}

// With error feedback, everything is sent in the end if the codec is a contraction.
TEST_P(CodecContract, ResidualsStayBounded) {
  EXPECT_EQ(codec_.is_contraction(), codec_.name() != "one_bit, stochastic");
  if (!codec_.is_contraction()) return;
  constexpr std::size_t kCount = 300;
  constexpr int kSteps = 400;
  Random random(5);
  Floats carry(kCount);
  std::vector<double> all(kCount), sent(kCount);
  for (int step = 0; step < kSteps; ++step) {
    Floats gradient(kCount);
    for (float& value : gradient) value = static_cast<float>(random.uniform());
    for (std::size_t i = 0; i < kCount; ++i) all[i] += gradient[i];
    const codec::Position position{.step = static_cast<std::uint64_t>(step)};
    const Message message = encoded(codec_, carry, gradient, NonFinite::send, position);
    Floats values(kCount);
    codec::Scratch scratch;
    ASSERT_TRUE(codec_.decode_add(message, position, scratch, values).ok());
    for (std::size_t i = 0; i < kCount; ++i) sent[i] += values[i];
  }
  // A density of 1 % sends an element at least every few hundred steps.
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(sent[i], all[i], 0.8 * all[i]) << codec_.name() << ", element " << i;
  }
}

TEST(OneBit, DrawsAnewInEachSection) {
  constexpr std::size_t kSection = 32768, kBlock = 512;
  Floats gradient(2 * kSection, 0.3f), carry(2 * kSection);
  for (std::size_t i = 0; i < gradient.size(); i += kBlock) gradient[i] = 1;
  const auto codec = one_bit({.stochastic = true});
  const Floats sent = decoded(*codec, encoded(*codec, carry, gradient), gradient.size());
  EXPECT_NEAR(std::reduce(sent.begin(), sent.end(), 0.0) / (2 * kSection), 0.3, 0.02);
  std::size_t same = 0;
  for (std::size_t i = 0; i + 1 < kSection; ++i) {
    same += sent[kSection + i] == sent[i + 1] ? 1 : 0;
  }
  EXPECT_LT(same, kSection * 6 / 10) << "by chance, 54.5 % are";
}

INSTANTIATE_TEST_SUITE_P(All, CodecContract, ::testing::Range<std::size_t>(0, subjects().size()),
                         [](const auto& subject) {
                           std::string name = subjects()[subject.param].codec->name();
                           for (char& letter : name) {
                             if (std::isalnum(static_cast<unsigned char>(letter)) == 0) {
                               letter = '_';
                             }
                           }
                           return name;
                         });

}  // namespace
}  // namespace stretto
