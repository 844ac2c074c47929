// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What is done by PyTorch's operators, here on the CPU, against the codecs.

#include "stretto/torch/device_extraction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/torch/device_tensors.h"

namespace stretto::ddp {
namespace {

using Floats = std::vector<float>;
using Message = std::vector<std::byte>;

constexpr codec::Position kPosition{.step = 3, .context_hash = 5};

// Many equal, many zero, of all magnitudes down to those that are denormal; some are no numbers.
Floats awkward_values(std::size_t count, bool are_finite, Random& random) {
  Floats values(count);
  const auto kind = random.below(3);
  for (float& value : values) {
    value = static_cast<float>(random.below(64)) - 32;
    if (kind == 0) value = std::ldexp(value, static_cast<int>(random.below(240)) - 140);
    if (kind == 1) value = static_cast<float>(random.uniform()) - 0.5f;
    if (are_finite || random.below(50) != 0) continue;
    value = random.below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : -std::numeric_limits<float>::infinity();
  }
  return values;
}

torch::Tensor tensor_of(Floats& values) {
  return ddp::tensor_of(const_view_of(std::span<const float>(values)), torch::kCPU);
}

ConstByteSpan bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

class DeviceExtractions : public ::testing::TestWithParam<std::shared_ptr<const Codec>> {
 protected:
  torch::Tensor said_by(const Message& message, std::size_t count) {
    Floats sums(count);
    EXPECT_TRUE(codec_.decode_add(message, kPosition, scratch_, sums).ok());
    return tensor_of(sums).clone();
  }

  const Codec& codec_ = *GetParam();
  codec::Scratch scratch_;
};
INSTANTIATE_TEST_SUITE_P(Of, DeviceExtractions,
                         ::testing::Values(f16(), f16({.clip = 1.5f}), bf16(), int8(),
                                           top_k({.density = 0.05}),
                                           top_k({.density = 0.3, .values = ValueFormat::bf16}),
                                           top_k({.density = 0.1, .values = ValueFormat::int8})));

TEST_P(DeviceExtractions, MakeTheMessageAndTheResidualOfTheHost) {
  Random random(18);
  for (int round = 0; round < 60; ++round) {
    const std::size_t count = 1 + random.below(round % 2 == 0 ? 600 : 5000);
    Floats expected_carry = awkward_values(count, true, random);
    Floats carry = expected_carry;
    const bool are_finite = round % 3 != 0;
    Floats gradient = awkward_values(count, are_finite, random);
    Message expected, message(*codec_.message_bytes(count, kPosition.step));
    codec_.encode({.carry = expected_carry, .gradient = gradient, .position = kPosition}, scratch_,
                  expected);
    const codec::Extraction how = *codec_.extraction(count, kPosition.step);
    torch::Tensor there = tensor_of(carry).add_(tensor_of(gradient));
    const DeviceExtract extracted = extract_from(there, how);
    codec::Extract extract{.numbers = bytes_of(extracted.numbers)};
    if (how.greatest > 0) {
      const auto* const indices = extracted.indices.const_data_ptr();
      extract.indices = {static_cast<const std::uint32_t*>(indices), how.greatest};
    }
    codec_.encode_extract(extract, count, kPosition, message);
    EXPECT_EQ(carry, expected_carry) << codec_.name() << " of " << count;
    // Which of all NaN a NaN is, PyTorch's conversions choose.
    if (are_finite) {
      EXPECT_EQ(message, expected) << codec_.name() << " of " << count;
    } else {
      EXPECT_TRUE(torch::allclose(said_by(message, count), said_by(expected, count), 0, 0,
                                  /*equal_nan=*/true))
          << codec_.name() << " of " << count;
    }
  }
}

TEST_P(DeviceExtractions, AreAddedAsTheHostAddsMessages) {
  Random random(19);
  for (int round = 0; round < 20; ++round) {
    const std::size_t count = 1 + random.below(3000);
    const std::size_t first = random.below(3) * 100;
    Floats expected(count), sums(first + count);
    const codec::Extraction how = *codec_.extraction(count, kPosition.step);
    for (int rank = 0; rank < 3; ++rank) {
      Floats gradient = awkward_values(count, true, random);
      Floats carry(count);
      Message message;
      codec_.encode({.carry = carry, .gradient = gradient, .position = kPosition}, scratch_,
                    message);
      ASSERT_TRUE(codec_.decode_add(message, kPosition, scratch_, expected).ok());
      torch::Tensor there = tensor_of(gradient);
      const PlacedExtract placed{extract_from(there, how, first), how, first, count};
      add_extracts(tensor_of(sums), {&placed, 1});
    }
    EXPECT_EQ(Floats(sums.begin() + static_cast<std::ptrdiff_t>(first), sums.end()), expected)
        << codec_.name() << " of " << count;
  }
}

TEST(DeviceExtraction, IndicesOfAnotherRankStayInTheVector) {
  Floats sums(10);
  const codec::Extraction how{.greatest = 2};
  const DeviceExtract extract{torch::tensor({3, -5}, torch::kInt),
                              torch::tensor({1.0f, 2.0f}).view(torch::kByte)};
  const PlacedExtract placed{extract, how, 0, 10};
  add_extracts(tensor_of(sums), {&placed, 1});
  EXPECT_EQ(sums, (Floats{0, 0, 0, 1, 0, 0, 0, 0, 0, 2}));
}

}  // namespace
}  // namespace stretto::ddp
