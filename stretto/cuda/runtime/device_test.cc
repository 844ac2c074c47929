// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What only a device shows. Without one, every test here says that it was skipped.

#include <gtest/gtest.h>

#include <vector>

#include "stretto/base/random.h"
#include "stretto/cuda/cuda_device.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/cuda/staged_all_reduce.h"
#include "tests/support/expect_contains.h"
#include "tests/support/run_ranks.h"

namespace stretto::cuda {
namespace {

int device_count() {
  Result<int> count = nccl::Driver::count("");
  return count.ok() ? *count : 0;
}

std::unique_ptr<CudaDevice> open_device() {
  return std::make_unique<CudaDevice>(nccl::Driver::open("", 0).or_throw(),
                                      load_kernels(process_environment()).or_throw());
}

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "skipped: no GPU";
    device_ = open_device();
  }

  void copy(const void* from, void* to, std::size_t bytes) {
    execution::BoundStep step;
    step.inputs = {{.data = from, .dtype = DType::u8}};
    step.outputs = {to};
    ASSERT_TRUE(queue().run(step, bytes).ok());
  }
  void finish() {
    while (!queue().is_done()) continue;
    ASSERT_TRUE(queue().status().ok()) << queue().status().message();
  }
  execution::KernelQueue& queue() {
    if (queue_ == nullptr) queue_ = device_->make_queue().or_throw();
    return *queue_;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<execution::KernelQueue> queue_;
};

TEST_F(OnDevice, ReductionsHaveTheBitsOfTheHost) {
  constexpr std::size_t kCount = 10'007;
  Random random(18);
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!supports(op, dtype)) continue;
      for (const std::size_t inputs : {2, 3, 7, 16}) {
        const std::size_t bytes = kCount * size_bytes(dtype);
        const auto memory = device_->create((inputs + 1) * bytes).or_throw();
        std::vector<std::byte> values(inputs * bytes);
        for (std::byte& byte : values) byte = static_cast<std::byte>(random.next());
        copy(values.data(), memory.data.get(), values.size());
        execution::BoundStep step;
        std::vector<kernel::Input> own;
        for (std::size_t i = 0; i < inputs; ++i) {
          own.push_back({.data = values.data() + i * bytes, .dtype = dtype});
          step.inputs.push_back({.data = memory.data.get() + i * bytes, .dtype = dtype});
        }
        step.outputs = {memory.data.get() + inputs * bytes};
        step.output_element_bytes = size_bytes(dtype);
        step.reduction = kernel::PreparedReduction::create({.dtype = dtype,
                                                            .output_dtype = dtype,
                                                            .op = op,
                                                            .divisor = op == ReduceOp::mean ? 3 : 1,
                                                            .inputs = step.inputs,
                                                            .outputs = step.outputs})
                             .or_throw();
        ASSERT_TRUE(queue().run(step, kCount).ok()) << queue().status().message();
        std::vector<std::byte> result(bytes);
        copy(step.outputs.front(), result.data(), bytes);
        finish();
        std::vector<std::byte> expected(bytes);
        void* const output = expected.data();
        step.reduction->run(kCount, own, {&output, 1});
        EXPECT_EQ(result, expected) << name(op) << " of " << inputs << " " << name(dtype);
      }
    }
  }
}

TEST_F(OnDevice, StagedAllReduceHasTheBitsOfTheCommunicator) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = open_device();
    constexpr std::size_t kCount = 1'000'003;
    std::vector<float> values(kCount, 0.1f + static_cast<float>(comm.rank().value()));
    const ByteSpan bytes = as_output(values).span();
    const auto memory = device->create(bytes.size()).or_throw();
    const auto queue = device->make_queue().or_throw();
    const auto ready = queue->make_event().or_throw();
    execution::BoundStep step;
    step.inputs = {{.data = bytes.data(), .dtype = DType::u8}};
    step.outputs = {memory.data.get()};
    ASSERT_TRUE(queue->run(step, bytes.size()).ok());
    queue->record(*ready);
    auto staged = StagedAllReduce::create(comm, *device, {}).or_throw();
    const View data(memory.data.get(), kCount, DType::f32);
    ASSERT_TRUE(staged->wait(staged->begin(data, {}, ready.get())).ok());
    comm.all_reduce(values).wait();
    std::vector<float> result(kCount);
    step.inputs = {{.data = memory.data.get(), .dtype = DType::u8}};
    step.outputs = {result.data()};
    ASSERT_TRUE(queue->run(step, bytes.size()).ok());
    while (!queue->is_done()) continue;
    EXPECT_EQ(result, values);
  });
}

// As two processes do it, on one device.
TEST_F(OnDevice, MemoryIsSharedByItsDescriptor) {
  const auto other = open_device();
  const auto own = device_->create(1 << 20).or_throw();
  const auto theirs = other->open(own.descriptor, own.bytes).or_throw();
  std::vector<std::byte> values(1 << 20, std::byte{7});
  copy(values.data(), theirs.data.get(), values.size());
  finish();
  std::vector<std::byte> seen(values.size());
  copy(own.data.get(), seen.data(), seen.size());
  finish();
  EXPECT_EQ(seen, values);
}

// Not skipped: it needs no driver.
TEST(WithoutADevice, KernelsAreLoaded) {
  const auto kernels = load_kernels(process_environment());
  EXPECT_TRUE(kernels.ok()) << kernels.status().message();
}

// Not skipped: what a machine without a device says.
TEST(WithoutADevice, NoneIsOpened) {
  if (device_count() > 0) return;
  EXPECT_EQ(nccl::Driver::open("", 0).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace stretto::cuda
