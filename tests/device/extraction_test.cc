// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compares extractions by PyTorch's operators, here on the CPU, with the codecs; and, if there is a
// GPU, extractions by stretto's kernels with those on the CPU.

#include "stretto/torch_device/device_extraction.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/clock.h"
#include "stretto/base/random.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

using Floats = std::vector<float>;
using Message = std::vector<std::byte>;

constexpr codec::Position kPosition{.step = 3, .own_key = 7, .context_hash = 5};

// Draws many equal values, zeros, very great values, or all magnitudes down to denormals. Some are
// infinity or NaN if not `are_finite`.
Floats awkward_values(std::size_t count, bool are_finite, Random& random) {
  Floats values(count);
  const auto kind = random.below(4);
  for (float& value : values) {
    value = static_cast<float>(random.below(64)) - 32;
    if (kind == 3) value = std::copysign(std::ldexp(1.25f, 126), value);  // Sums are infinite.
    if (kind == 0) value = std::ldexp(value, static_cast<int>(random.below(240)) - 140);
    if (kind == 1) value = static_cast<float>(random.uniform()) - 0.5f;
    if (random.below(30) == 0) value = -0.0f;
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

// Extracts from `values`, which begin at element `first` of a longer vector.
PlacedExtract placed_extract(torch::Tensor& values, const codec::Extraction& how,
                             std::size_t first) {
  PlacedExtract placed = extract_from(values, how, first);
  torch::Tensor& indices = placed.extract.indices;
  if (indices.defined()) indices = indices.add(static_cast<std::int64_t>(first));
  return placed;
}

std::vector<std::shared_ptr<const Codec>> all_codecs() {
  return {f16(),
          f16({.clip = 1.5f}),
          bf16(),
          int8(),
          one_bit(),
          top_k({.density = 0.05}),
          top_k({.density = 0.3, .values = ValueFormat::bf16}),
          top_k({.density = 0.1, .values = ValueFormat::int8}),
          threshold({.limit = 0.4f}),
          threshold({.limit = 1e30f, .values = ValueFormat::int8}),
          nonzeros(),
          int8({.stochastic = true})};
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
INSTANTIATE_TEST_SUITE_P(Of, DeviceExtractions, ::testing::ValuesIn(all_codecs()));

TEST_P(DeviceExtractions, MakeTheMessageAndTheResidualOfTheHost) {
  Random random(18);
  for (int round = 0; round < 60; ++round) {
    const std::size_t count = 1 + random.below(round % 20 == 1  ? 100'000
                                               : round % 2 == 0 ? 600
                                                                : 5000);
    Floats expected_carry = awkward_values(count, true, random);
    Floats carry = expected_carry;
    const bool are_finite = round % 3 != 0;
    Floats gradient = awkward_values(count, are_finite, random);
    Message expected;
    codec_.encode({.carry = expected_carry, .gradient = gradient, .position = kPosition}, scratch_,
                  expected);
    const codec::Extraction how = *codec_.extraction(count, kPosition);
    torch::Tensor there = tensor_of(carry).add_(tensor_of(gradient));
    const PlacedExtract extracted = extract_from(there, how, 0);
    codec::Extract extract{.numbers = bytes_of(extracted.extract.numbers)};
    if (extracted.extract.indices.defined()) {
      const auto* const indices = extracted.extract.indices.const_data_ptr();
      extract.indices = {static_cast<const std::uint32_t*>(indices), extracted.elements};
    }
    Message message(codec_.extract_bytes(count, extracted.elements));
    codec_.encode_extract(extract, count, kPosition, message);
    EXPECT_EQ(carry, expected_carry) << codec_.name() << " of " << count;
    // PyTorch's conversions choose the bits of NaN.
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
    const codec::Extraction how = *codec_.extraction(count, kPosition);
    for (int rank = 0; rank < 3; ++rank) {
      Floats gradient = awkward_values(count, true, random);
      Floats carry(count);
      Message message;
      codec_.encode({.carry = carry, .gradient = gradient, .position = kPosition}, scratch_,
                    message);
      ASSERT_TRUE(codec_.decode_add(message, kPosition, scratch_, expected).ok());
      torch::Tensor there = tensor_of(gradient);
      const PlacedExtract placed = placed_extract(there, how, first);
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
  const PlacedExtract placed{extract, how, 0, 10, 2};
  add_extracts(tensor_of(sums), {&placed, 1});
  EXPECT_EQ(sums, (Floats{0, 0, 0, 1, 0, 0, 0, 0, 0, 2}));
}

bool has_gpu() {
  // Otherwise the linker leaves the library out, because no function of it is called.
  (void)::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  return torch::cuda::is_available();
}

class ExtractionsOnAGpu : public DeviceExtractions {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "skipped: no GPU";
    ASSERT_TRUE(cuda::load_codec_kernels(process_environment()).ok());
  }
};
INSTANTIATE_TEST_SUITE_P(Of, ExtractionsOnAGpu, ::testing::ValuesIn(all_codecs()));

// Vectors begin at places where four values are one memory access, and elsewhere.
TEST_P(ExtractionsOnAGpu, HaveTheBitsOfThoseOnTheCpu) {
  Random random(20);
  for (const std::size_t count : {1, 31, 257, 4095, 4096, 4097, 100'003, 3'000'001}) {
    for (const int variant : {0, 1, 2, 3}) {
      const bool are_finite = variant % 2 == 0;
      const std::int64_t first = variant < 2 ? 0 : 5;
      const auto length = static_cast<std::int64_t>(count);
      Floats values = awkward_values(count, are_finite, random);
      if (are_finite) values[random.below(count)] = -std::numeric_limits<float>::max();
      torch::Tensor here = tensor_of(values);
      const torch::Tensor whole = torch::zeros({first + length}, torch::kCUDA);
      torch::Tensor there = whole.narrow(0, first, length);
      there.copy_(here);
      const codec::Extraction how = *codec_.extraction(count, kPosition);
      const auto at = static_cast<std::size_t>(first);
      const PlacedExtract said = placed_extract(here, how, at);
      const PlacedExtract said_there = placed_extract(there, how, at);
      const DeviceExtract &expected = said.extract, &found = said_there.extract;
      const std::string what =
          codec_.name() + " of " + std::to_string(count) + ", " + std::to_string(variant);
      EXPECT_TRUE(torch::equal(there.cpu(), here)) << what;
      ASSERT_EQ(found.indices.defined(), expected.indices.defined()) << what;
      if (found.indices.defined()) {
        EXPECT_TRUE(torch::equal(found.indices.cpu(), expected.indices)) << what;
      }
      if (are_finite) {
        EXPECT_TRUE(torch::equal(found.numbers.cpu(), expected.numbers)) << what;
      }
      const torch::Tensor sums = torch::zeros({first + length});
      const torch::Tensor sums_there = sums.to(torch::kCUDA);
      add_extracts(sums, {&said, 1});
      add_extracts(sums_there, {&said_there, 1});
      EXPECT_TRUE(torch::allclose(sums_there.cpu(), sums, 0, 0, /*equal_nan=*/true)) << what;
    }
  }
}

TEST_P(ExtractionsOnAGpu, DenormalsAreAddedAsOnTheCpu) {
  Floats values(1000, std::numeric_limits<float>::denorm_min());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<float>(i + 1);
  torch::Tensor here = tensor_of(values), there = here.to(torch::kCUDA);
  const torch::Tensor sums = here.clone(), sums_there = there.clone();
  const codec::Extraction how = *codec_.extraction(values.size(), kPosition);
  const PlacedExtract said = placed_extract(here, how, 0);
  const PlacedExtract said_there = placed_extract(there, how, 0);
  add_extracts(sums, {&said, 1});
  add_extracts(sums_there, {&said_there, 1});
  EXPECT_TRUE(torch::equal(sums_there.cpu(), sums));
}

// Compares the bytes per second that kernels read and write with those of a copy. No kernel should
// be slower than a third of that.
class CodecKernelsOnAGpu : public ::testing::Test {
 protected:
  static constexpr std::int64_t kCount = std::int64_t{64} << 20;

  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "skipped: no GPU";
    kernels_ = cuda::load_codec_kernels(process_environment()).or_throw();
    values_ = torch::randn({kCount}, torch::kCUDA);
    other_ = torch::empty({kCount}, torch::kCUDA);
    copy_ms_ = milliseconds([&] { other_.copy_(values_); });
  }
  template <class Act>
  double milliseconds(const Act& act) {
    constexpr int kRuns = 20;
    act();
    wait_for(current_stream(values_.device()));
    const TimePoint begin = Clock::now();
    for (int run = 0; run < kRuns; ++run) act();
    wait_for(current_stream(values_.device()));
    return 1e3 * seconds(Clock::now() - begin) / kRuns;
  }
  template <class Kernel, class Task>
  void tell(const char* what, Kernel kernel, const Task& task, double bytes_of_element) {
    void* const stream = current_stream(values_.device()).native_handle();
    const double ms = milliseconds([&] { ASSERT_EQ(kernel(&task, stream), 0); });
    const double of_a_copy = bytes_of_element / 8 * copy_ms_ / ms;
    std::printf("{\"what\": \"%s of 64 Mi f32\", \"ms\": %.3f, \"of_a_copy\": %.2f}\n", what, ms,
                of_a_copy);
    EXPECT_GT(of_a_copy, 1.0 / 3);
  }

  cuda::CodecKernels kernels_;
  torch::Tensor values_, other_;
  double copy_ms_ = 0;
};

TEST_F(CodecKernelsOnAGpu, Speed) {
  cuda::Rounding rounding{.values = values_.data_ptr<float>(),
                          .count = static_cast<std::size_t>(kCount),
                          .limit = 65504,
                          .numbers = other_.data_ptr(),
                          .scales = static_cast<std::uint8_t*>(other_.data_ptr()) + kCount};
  for (const DType dtype : {DType::bf16, DType::f16, DType::i8, DType::boolean}) {
    values_.normal_();
    rounding.dtype = dtype;
    const double bytes =
        dtype == DType::boolean ? 8 + 1.0 / 8 : 8.0 + static_cast<double>(size_bytes(dtype));
    tell(("rounding to " + std::string(name(dtype))).c_str(), kernels_.round, rounding, bytes);
    tell(("adding " + std::string(name(dtype))).c_str(), kernels_.add, rounding, bytes);
  }
  values_.normal_();
  rounding.dtype = DType::i8;
  rounding.is_stochastic = true;
  tell("rounding to i8 by random numbers", kernels_.round, rounding, 9);
  values_.normal_();
  const auto greatest = static_cast<std::size_t>(kCount / 100);
  const torch::Tensor room =
      torch::empty({static_cast<std::int64_t>(cuda::selection_room(rounding.count))},
                   torch::dtype(torch::kInt).device(torch::kCUDA));
  const cuda::Selection selection{rounding.values, rounding.count, greatest,
                                  static_cast<std::int64_t*>(other_.data_ptr()),
                                  reinterpret_cast<std::uint32_t*>(room.data_ptr<std::int32_t>())};
  tell("the greatest hundredth", kernels_.select, selection, 5 * 4);
}

}  // namespace
}  // namespace stretto::ddp
