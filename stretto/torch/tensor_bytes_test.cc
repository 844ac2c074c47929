// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/gradient_description.h"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/run_ranks.h"

namespace stretto::ddp {
namespace {

TEST(TensorBytes, EveryDTypeIsThatOfSomeTensor) {
  const std::pair<torch::ScalarType, DType> types[] = {{torch::kByte, DType::u8},
                                                       {torch::kChar, DType::i8},
                                                       {torch::kShort, DType::i16},
                                                       {torch::kInt, DType::i32},
                                                       {torch::kLong, DType::i64},
                                                       {torch::kUInt16, DType::u16},
                                                       {torch::kUInt32, DType::u32},
                                                       {torch::kUInt64, DType::u64},
                                                       {torch::kHalf, DType::f16},
                                                       {torch::kBFloat16, DType::bf16},
                                                       {torch::kFloat, DType::f32},
                                                       {torch::kDouble, DType::f64},
                                                       {torch::kComplexFloat, DType::c64},
                                                       {torch::kComplexDouble, DType::c128},
                                                       {torch::kBool, DType::boolean},
                                                       {torch::kFloat8_e4m3fn, DType::f8_e4m3},
                                                       {torch::kFloat8_e5m2, DType::f8_e5m2}};
  std::set<DType> seen;
  for (const auto& [type, dtype] : types) {
    const torch::Tensor tensor = torch::empty({3}, type);
    const Result<DType> found = dtype_of_tensor(tensor);
    ASSERT_TRUE(found.ok()) << c10::toString(type);
    EXPECT_EQ(found.value(), dtype) << c10::toString(type);
    EXPECT_EQ(static_cast<std::size_t>(tensor.element_size()), size_bytes(dtype));
    seen.insert(dtype);
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kDTypeCount));
}

TEST(TensorBytes, OtherTypesAreRefusedByName) {
  const Result<DType> refused = dtype_of_tensor(torch::empty({3}, torch::kComplexHalf));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(refused.status().message(), "tensors of type ComplexHalf cannot be moved or reduced");
}

TEST(TensorBytes, ALazyConjugateIsWhatItReads) {
  const torch::Tensor stored = torch::full({2}, c10::complex<float>(1, 2), torch::kComplexFloat);
  const torch::Tensor conjugate = stored.conj();
  ASSERT_TRUE(conjugate.is_conj());
  TensorBytes bytes({conjugate});
  ASSERT_EQ(bytes.spans()[0].size(), 2 * sizeof(std::complex<float>));
  std::complex<float> number;
  std::memcpy(&number, bytes.spans()[0].data(), sizeof(number));
  EXPECT_EQ(number, std::complex<float>(1, -2));
  number = {3, 4};
  std::memcpy(bytes.spans()[0].data(), &number, sizeof(number));
  bytes.write_back();
  EXPECT_EQ(conjugate[0].item<c10::complex<float>>(), c10::complex<float>(3, 4));
  EXPECT_EQ(stored[0].item<c10::complex<float>>(), c10::complex<float>(3, -4));
}

TEST(TensorBytes, ALazyNegativeIsWhatItReads) {
  const torch::Tensor stored = torch::full({2}, c10::complex<float>(1, 2), torch::kComplexFloat);
  const torch::Tensor negative = torch::imag(stored.conj());
  ASSERT_TRUE(negative.is_neg());
  TensorBytes bytes({negative});
  float number = 0;
  std::memcpy(&number, bytes.spans()[0].data(), sizeof(number));
  EXPECT_EQ(number, -2.0f);
}

// Records the bytes of operations, and how many of them are in flight.
class Operations final : public OperationObserver {
 public:
  std::uint64_t begun(const ObservedOperation& operation) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(under_way_++, 0);
    std::size_t sum = 0;
    for (const OperationDescriptor& part : operation.parts) sum += part.count;
    bytes.push_back(sum);
    return 0;
  }
  void ended(std::uint64_t, const Status&) override {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
  std::vector<std::size_t> bytes;

 private:
  std::mutex mutex_;
  int under_way_ = 0;
};

TEST(TensorBytes, ABroadcastIsCutIntoOperationsThatFollowEachOther) {
  constexpr std::int64_t kSlice = std::int64_t{32} << 20;
  run_ranks(2, [&](Communicator& communicator) {
    const auto value = communicator.rank().value() + 1;
    const std::vector<torch::Tensor> tensors = {
        torch::full({3}, value, torch::kDouble), torch::full({2 * kSlice + 5}, value, torch::kByte),
        torch::empty({0}), torch::full({7}, value, torch::kByte)};
    const auto operations = std::make_shared<Operations>();
    communicator.observe(operations);
    TensorBytes(tensors).broadcast(communicator, {.root = 1});
    const auto slice = static_cast<std::size_t>(kSlice);
    EXPECT_EQ(operations->bytes, (std::vector<std::size_t>{slice, slice, 24 + 5 + 7}));
    for (const torch::Tensor& tensor : tensors) EXPECT_TRUE((tensor == 2).all().item<bool>());
  });
}

}  // namespace
}  // namespace stretto::ddp
