// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Tests that need a device. Without one, all but those of WithoutADevice are skipped.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/random.h"
#include "stretto/cuda/cuda_device.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/cuda/staged_all_reduce.h"
#include "stretto/cuda_driver/symbol_table.h"
#include "tests/support/captured_graph.h"
#include "tests/support/expect_contains.h"
#include "tests/support/run_ranks.h"

namespace stretto::cuda {
namespace {

int device_count() {
  Result<int> count = Driver::count("");
  return count.ok() ? *count : 0;
}

std::unique_ptr<CudaDevice> open_device() {
  return std::make_unique<CudaDevice>(Driver::open("", 0).or_throw(),
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
  struct Case {
    DType dtype;
    ReduceOp op;
    std::size_t inputs;
    std::size_t apart;  // Elements from the begin of an input to the begin of the next.
  };
  void compare_with_host(const Case& problem, Random& random) {
    const auto& [dtype, op, inputs, apart] = problem;
    const std::size_t count = apart - 3, apart_bytes = apart * size_bytes(dtype);
    const auto memory = device_->create((inputs + 1) * apart_bytes).or_throw();
    std::vector<std::byte> values(inputs * apart_bytes);
    for (std::byte& byte : values) byte = static_cast<std::byte>(random.next());
    copy(values.data(), memory.data.get(), values.size());
    execution::BoundStep step;
    std::vector<kernel::Input> own;
    for (std::size_t i = 0; i < inputs; ++i) {
      own.push_back({.data = values.data() + i * apart_bytes, .dtype = dtype});
      step.inputs.push_back({.data = memory.data.get() + i * apart_bytes, .dtype = dtype});
    }
    step.outputs = {memory.data.get() + inputs * apart_bytes};
    step.output_element_bytes = size_bytes(dtype);
    step.reduction = kernel::PreparedReduction::create({.dtype = dtype,
                                                        .output_dtype = dtype,
                                                        .op = op,
                                                        .divisor = op == ReduceOp::mean ? 3 : 1,
                                                        .inputs = step.inputs,
                                                        .outputs = step.outputs})
                         .or_throw();
    ASSERT_TRUE(queue().run(step, count).ok()) << queue().status().message();
    std::vector<std::byte> result(count * size_bytes(dtype)), expected(result.size());
    copy(step.outputs.front(), result.data(), result.size());
    finish();
    void* const output = expected.data();
    step.reduction->run(count, own, {&output, 1});
    EXPECT_EQ(result, expected) << name(op) << " of " << inputs << " " << name(dtype) << ", "
                                << apart << " apart";
  }
  execution::KernelQueue& queue() {
    if (queue_ == nullptr) queue_ = device_->make_queue().or_throw();
    return *queue_;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<execution::KernelQueue> queue_;
};

// If buffers begin a multiple of 16 bytes apart, threads take packs of elements, and the last
// elements one by one. Otherwise they take all elements one by one.
TEST_F(OnDevice, ReductionsHaveTheBitsOfTheHost) {
  Random random(18);
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!supports(op, dtype)) continue;
      for (const std::size_t inputs : {2, 3, 7, 16}) {
        for (const std::size_t apart : {10'007, 10'016}) {
          compare_with_host({dtype, op, inputs, apart}, random);
        }
      }
    }
  }
}

// Every byte that is read or written counts. Each kernel should have at least half of a copy's
// speed.
class SpeedOnDevice : public OnDevice {
 protected:
  static constexpr std::size_t kBytes = std::size_t{256} << 20;  // Of each buffer.

  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    memory_ = device_->create(9 * kBytes).or_throw();
    of_copy_ = bytes_per_second(step_of(1, DType::u8), kBytes, 2 * kBytes);
  }
  execution::BoundStep step_of(std::size_t inputs, DType dtype) const {
    execution::BoundStep step;
    for (std::size_t i = 0; i < inputs; ++i) {
      step.inputs.push_back({.data = memory_.data.get() + i * kBytes, .dtype = dtype});
    }
    step.outputs = {memory_.data.get() + 8 * kBytes};
    return step;
  }
  double bytes_per_second(const execution::BoundStep& step, std::size_t count, std::size_t bytes) {
    constexpr int kRuns = 20;
    TimePoint begin;
    for (int run = -1; run < kRuns; ++run) {
      if (run == 0) {
        finish();
        begin = Clock::now();
      }
      (void)queue().run(step, count);
    }
    finish();
    return static_cast<double>(bytes) * kRuns / seconds(Clock::now() - begin);
  }
  void tell(const std::string& what, const execution::BoundStep& step) {
    const DType dtype = step.inputs.front().dtype;
    const double speed =
        bytes_per_second(step, kBytes / size_bytes(dtype), (step.inputs.size() + 1) * kBytes);
    std::printf("{\"what\": \"%s %s\", \"gb_per_s\": %.0f, \"of_a_copy\": %.2f}\n", what.c_str(),
                std::string(name(dtype)).c_str(), speed / 1e9, speed / of_copy_);
    EXPECT_GT(speed, of_copy_ / 2);
  }

  transport::MappableMemory::Mapping memory_;
  double of_copy_ = 0;
};

TEST_F(SpeedOnDevice, OfReductions) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8}) {
    for (const std::size_t inputs : {2, 4, 8}) {
      execution::BoundStep step = step_of(inputs, dtype);
      step.reduction = kernel::PreparedReduction::create({.dtype = dtype,
                                                          .output_dtype = dtype,
                                                          .inputs = step.inputs,
                                                          .outputs = step.outputs})
                           .or_throw();
      tell("sum of " + std::to_string(inputs), step);
    }
  }
}

TEST_F(SpeedOnDevice, OfProductsWithAFactor) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    execution::BoundStep step = step_of(1, dtype);
    step.factor = 0.3;
    tell("product of", step);
  }
}

TEST_F(OnDevice, StagedAllReduceHasTheBitsOfTheCommunicator) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = open_device();
    const auto queue = device->make_queue().or_throw();
    const auto ready = queue->make_event().or_throw();
    auto staged = StagedAllReduce::create(comm, *device, {}).or_throw();
    Random random(static_cast<std::uint64_t>(comm.rank().value()));
    for (int d = 0; d < kDTypeCount; ++d) {
      const auto dtype = static_cast<DType>(d);
      if (!supports(ReduceOp::sum, dtype)) continue;
      constexpr std::size_t kCount = 300'007;
      std::vector<std::byte> values(kCount * size_bytes(dtype));
      for (std::byte& byte : values) byte = static_cast<std::byte>(random.next());
      const auto memory = device->create(values.size()).or_throw();
      execution::BoundStep step;
      step.inputs = {{.data = values.data(), .dtype = DType::u8}};
      step.outputs = {memory.data.get()};
      ASSERT_TRUE(queue->run(step, values.size()).ok());
      queue->record(*ready);
      const View data(memory.data.get(), kCount, dtype);
      ASSERT_TRUE(staged->wait(staged->begin(data, {}, ready.get())).ok());
      comm.all_reduce(View(values.data(), kCount, dtype)).wait();
      std::vector<std::byte> result(values.size());
      step.inputs = {{.data = memory.data.get(), .dtype = DType::u8}};
      step.outputs = {result.data()};
      ASSERT_TRUE(queue->run(step, values.size()).ok());
      while (!queue->is_done()) continue;
      EXPECT_EQ(result, values) << name(dtype);
    }
  });
}

// Two processes would share memory in this way on one device.
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

TEST_F(OnDevice, AGraphThatIsCapturedIsNotSpoiled) {
  int (*make_stream)(StreamHandle*, unsigned) = nullptr;
  const auto symbols = SymbolTable::open({"libcuda.so.1"}).or_throw();
  ASSERT_TRUE(symbols.find_all({{"cuStreamCreate", &make_stream}}).ok());
  const auto memory = device_->create(1 << 20).or_throw();
  ASSERT_TRUE(queue().is_done());
  const auto driver = Driver::open("", 0).or_throw();
  StreamHandle stream = nullptr;
  {
    const Driver::Current current(*driver);
    ASSERT_EQ(make_stream(&stream, 0), 0);
  }
  const testing::CapturedGraph graph("", driver, stream, [&] {
    for (const Status& refused :
         {device_->is_captured(nullptr).status(), device_->is_captured(stream).status(),
          device_->create(8).status()}) {
      expect_contains(refused.message(), "a CUDA graph is being captured");
    }
    EXPECT_EQ(device_->device_of(memory.data.get()), 0);
    copy(memory.data.get(), memory.data.get() + 4096, 4096);
    finish();
  });
  {
    const Driver::Current current(*driver);
    (void)driver->call().stream_destroy(stream);
  }
  EXPECT_TRUE(graph.status().ok()) << graph.status().message();
  EXPECT_TRUE(device_->mark(nullptr, false).ok());
}

// After a read at a wrong address the device refuses everything else that the process asks. So this
// process is a separate one, and has to end well.
TEST_F(OnDevice, AFailureIsToldInTheWordsOfTheDriver) {
  const auto fail_and_end = [&] {
    const auto* const nowhere = reinterpret_cast<const void*>(std::uintptr_t{4096});
    auto memory = device_->create(1 << 20).or_throw();
    execution::BoundStep step;
    step.inputs = {{.data = nowhere, .dtype = DType::f32}, {.data = nowhere, .dtype = DType::f32}};
    step.outputs = {memory.data.get()};
    step.reduction = kernel::PreparedReduction::create({.dtype = DType::f32,
                                                        .output_dtype = DType::f32,
                                                        .inputs = step.inputs,
                                                        .outputs = step.outputs})
                         .or_throw();
    (void)queue().run(step, 1000);
    while (!queue().is_done()) continue;
    for (const Status& status :
         {queue().status(), device_->mark(nullptr, false).status(), device_->create(8).status()}) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      if (status.code() != StatusCode::system) std::exit(1);
    }
    // Otherwise it would be taken for memory of the host, which the host touches.
    if (device_->device_of(memory.data.get()) != 0) std::exit(2);
    memory.data.reset();
    queue_.reset();
    device_.reset();
    std::exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fail_and_end(), ::testing::ExitedWithCode(0), "illegal memory access");
}

// Variables of a program may outlive the driver, which ends after main().
std::vector<std::shared_ptr<void>> until_the_end;

TEST_F(OnDevice, IsLetGoOfWhenTheProgramHasEnded) {
  const auto end = [&] {
    const auto memory = device_->create(64 << 20).or_throw();
    const auto host = std::make_shared<std::vector<std::byte>>(64 << 20);
    auto pinned = device_->pin(*host).or_throw();
    copy(memory.data.get(), host->data(), host->size());
    (void)device_->mark(nullptr, false).or_throw();
    until_the_end = {memory.data, std::move(pinned), host, std::move(queue_), std::move(device_)};
    std::exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(0), "");
}

// Not skipped: it needs no driver.
TEST(WithoutADevice, KernelsAreLoaded) {
  const auto kernels = load_kernels(process_environment());
  EXPECT_TRUE(kernels.ok()) << kernels.status().message();
}

// The floor is the time of the copies to the host and back, which cannot be left out.
TEST_F(OnDevice, StagedAllReduceAgainstItsCopies) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = open_device();
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    const auto memory = device->create(kBytes).or_throw();
    const Memory host = comm.allocate_bytes(kBytes);
    const auto pinned = device->pin(host.bytes()).or_throw();
    const auto queue = device->make_queue().or_throw();
    const auto copy = [&](const std::byte* from, std::byte* to) {
      execution::BoundStep step;
      step.inputs = {{.data = from, .dtype = DType::u8}};
      step.outputs = {to};
      ASSERT_TRUE(queue->run(step, kBytes).ok());
    };
    auto staged = StagedAllReduce::create(comm, *device, {}).or_throw();
    const auto best_of = [&](const auto& act) {
      double best = std::numeric_limits<double>::infinity();
      for (int run = 0; run < 5; ++run) {
        comm.barrier().wait();
        const TimePoint begin = Clock::now();
        act();
        best = std::min(best, seconds(Clock::now() - begin));
      }
      return best;
    };
    const double floor = best_of([&] {
      copy(memory.data.get(), host.bytes().data());
      copy(host.bytes().data(), memory.data.get());
      while (!queue->is_done()) continue;
    });
    const double whole = best_of([&] {
      const View data(memory.data.get(), kBytes / sizeof(float), DType::f32);
      EXPECT_TRUE(staged->wait(staged->begin(data)).ok());
    });
    const double on_host = best_of([&] {
      comm.all_reduce(View(host.bytes().data(), kBytes / sizeof(float), DType::f32)).wait();
    });
    EXPECT_LT(whole, 20 * floor);
    if (comm.rank() != Rank(0)) return;
    std::printf(
        "{\"what\": \"staged all_reduce of 64 MiB, 2 ranks\", \"ms\": %.2f, \"copies_ms\": "
        "%.2f, \"on_host_ms\": %.2f}\n",
        whole * 1e3, floor * 1e3, on_host * 1e3);
  });
}

// Not skipped: it shows what a machine without a device says.
TEST(WithoutADevice, NoneIsOpened) {
  if (device_count() > 0) return;
  EXPECT_EQ(Driver::open("", 0).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace stretto::cuda
