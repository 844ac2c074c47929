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
    const torch::Tensor bytes = extract_from(there, how);
    auto* const data = static_cast<std::byte*>(bytes.data_ptr());
    codec::Extract extract{.numbers = {data, bytes.nbytes()}};
    if (!how.rounded) {
      auto* const indices = reinterpret_cast<std::uint32_t*>(data);
      extract = {.indices = {indices, how.greatest},
                 .values = {reinterpret_cast<float*>(indices + how.greatest), how.greatest}};
    }
    codec_.encode_extract(extract, count, kPosition, message);
    for (std::size_t j = 0; j < extract.indices.size(); ++j) {
      const float rest = extract.values[j];
      carry[extract.indices[j]] = std::isfinite(rest) ? rest : 0.0f;
    }
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

TEST_P(DeviceExtractions, OfMessagesAreAddedAsTheHostAddsThem) {
  Random random(19);
  for (int round = 0; round < 20; ++round) {
    const std::size_t count = 1 + random.below(3000);
    Floats expected(count), sums(count);
    Message all, up;
    for (int rank = 0; rank < 3; ++rank) {
      Floats carry(count);
      const Floats gradient = awkward_values(count, true, random);
      codec_.encode({.carry = carry, .gradient = gradient, .position = kPosition}, scratch_, all);
    }
    Upload upload(all, up);
    for (ConstByteSpan rest = all; !rest.empty();) {
      const std::size_t length = codec_.decode_add(rest, kPosition, scratch_, expected).or_throw();
      const codec::Extract said =
          codec_.decode_extract(rest, kPosition, scratch_, count).or_throw();
      if (said.numbers.empty()) {
        upload.name(0, said);
        upload.add_named(tensor_of(sums));
      } else {
        upload.add(tensor_of(sums), said.numbers, *codec_.extraction(count, kPosition.step));
      }
      rest = rest.subspan(length);
    }
    upload.copy_to(torch::kCPU);
    upload.run_additions();
    EXPECT_EQ(sums, expected) << codec_.name() << " of " << count;
  }
}

}  // namespace
}  // namespace stretto::ddp
