// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// stretto's schedules on device memory that all ranks of the host have mapped. The device is a
// double (tests/support/fake_nccl).

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/job/join.h"
#include "tests/device/device_memory.h"
#include "tests/support/device_trial.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using Control = fake_nccl::Control;

// Copies on the default stream, as a program does.
void begin_copy(const Communicator& rank, const Buffer<float>& from, const Buffer<float>& to) {
  Double::get().enqueue(*rank.device(), nullptr, [a = reach(from), b = reach(to), n = from.size()] {
    std::copy_n(a, n, b);
  });
}

// Holds for stretto's kernels on memory that ranks have mapped, and for NCCL.
class DeviceMemoryOnBothBackends : public DeviceMemory, public ::testing::WithParamInterface<bool> {
 protected:
  static DoubleRanks make() { return DoubleRanks({.maps_devices = GetParam()}); }
  // NCCL also accepts memory that the communicator has not made.
  static View given(const Communicator& rank, const Buffer<float>& made) {
    return GetParam() ? as_output(made.span()) : on_device(rank, made.size());
  }
  static int begun() { return Double::get().control().launches + Double::get().control().kernels; }
};
INSTANTIATE_TEST_SUITE_P(, DeviceMemoryOnBothBackends, ::testing::Bool(),
                         [](const auto& maps) { return maps.param ? "kernels" : "nccl"; });

// Parameters: the numbers of ranks and of devices.
class DeviceMemoryOf : public DeviceMemory,
                       public ::testing::WithParamInterface<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(, DeviceMemoryOf,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(1, 8)));

TEST_P(DeviceMemoryOf, CollectivesHaveTheBitsOfTheHost) {
  const auto [size, devices] = GetParam();
  Double::get().reset([d = devices](Control& control) { control.devices = d; });
  DoubleRanks ranks = make(size);
  ranks.on_all([&, d = devices](Communicator& rank) {
    EXPECT_EQ(rank.device(), rank.rank().value() % d);
    EXPECT_EQ(difference_on_device(rank, Double::file()), "");
  });
  EXPECT_GT(Double::get().control().kernels, 0);
}

TEST_F(DeviceMemory, RankThatIsAloneReducesThereToo) {
  const FakeEnvironment environment = nccl_variables();
  const auto alone = join({.rank = 0, .size = 1, .backend = "cuda", .environment = &environment});
  EXPECT_EQ(difference_on_device(*alone, Double::file()), "");
  EXPECT_EQ(alone->device(), 0);
}

TEST_F(DeviceMemory, GroupsOfRanksUseIt) {
  DoubleRanks ranks = make(4);
  ranks.on_all([](Communicator& rank) {
    const auto half = rank.split({.color = rank.rank().value() % 2});
    EXPECT_EQ(difference_on_device(*half, Double::file()), "");
    const auto again = rank.shrink();
    EXPECT_EQ(difference_on_device(*again, Double::file()), "");
  });
}

TEST_F(DeviceMemory, IsZeroedAndKnown) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(100'000, rank.device());
    const std::vector<float> zeros(data.size());
    EXPECT_EQ(std::memcmp(reach(data), zeros.data(), data.size() * sizeof(float)), 0);
    const std::byte* const foreign = Double::get().allocate(8, *rank.device());
    EXPECT_TRUE(rank.is_device_memory(data.data()));
    EXPECT_FALSE(rank.is_device_memory(zeros.data()));
    EXPECT_FALSE(rank.is_device_memory(foreign));
    const Memory whole = rank.allocate_bytes(2 << 20, rank.device());
    EXPECT_TRUE(rank.is_device_memory(whole.bytes().data() + whole.bytes().size() - 1));
    EXPECT_FALSE(rank.is_device_memory(whole.bytes().data() + whole.bytes().size()));
    EXPECT_EQ(rank.device_of(data.data()), rank.device());
    EXPECT_EQ(rank.device_of(zeros.data()), std::nullopt);
    EXPECT_EQ(rank.device_of(foreign), rank.device());
  });
}

TEST_P(DeviceMemoryOnBothBackends, WhatTheProgramHasBegunIsWaitedFor) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& rank) {
    const auto from = rank.allocate<float>(1000, rank.device());
    const auto data = rank.allocate<float>(1000, rank.device());
    std::fill_n(reach(from), 1000, 1.0f);
    rank.barrier().wait();  // allocate() waits for all streams of the double: both have.
    if (rank.rank() == 1) Double::get().delay_program(*rank.device(), milliseconds(200));
    begin_copy(rank, from, data);
    rank.all_reduce(data.span()).wait();
    // Each rank reduces half of the elements of both.
    EXPECT_EQ(std::vector<float>(reach(data), reach(data) + 1000), std::vector<float>(1000, 2.0f));
  });
}

TEST_F(DeviceMemory, IsNotFreedBeforeTheProgramIsDoneWithIt) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    {
      const auto from = rank.allocate<float>(8, rank.device());
      reach(from)[3] = 1;
      Double::get().delay_program(*rank.device(), milliseconds(50));
      begin_copy(rank, from, data);
    }
    EXPECT_EQ(reach(data)[3], 1);
  });
}

// No rank is told that an operation is done before its kernels have ended.
TEST_F(DeviceMemory, LateKernelsAreWaitedForByAllRanks) {
  DoubleRanks ranks = make(3);
  std::atomic<int> ended{0};
  Double::get().change([](Control& control) { control.holds_kernels = true; });
  OnceTrue lets_go([] { return Double::get().control().kernels >= 3; },
                   [&] {
                     std::this_thread::sleep_for(milliseconds(100));
                     EXPECT_EQ(ended, 0);
                     Double::get().change([](Control& control) { control.holds_kernels = false; });
                   });
  ranks.on_all([&](Communicator& rank) {
    const auto data = rank.allocate<float>(3000, rank.device());
    reach(data)[2000] = 1;
    rank.all_reduce(data.span()).wait();
    ++ended;
    EXPECT_EQ(reach(data)[2000], 3);
  });
  lets_go.join();
}

// The program may capture its own work while operations are in flight. After one is refused, it
// goes on.
TEST_P(DeviceMemoryOnBothBackends, GraphThatIsCapturedIsNotSpoiledByOperations) {
  DoubleRanks ranks = make();
  Double::get().change([](Control& control) { control.holds_kernels = control.stalls = true; });
  OnceTrue captures([] { return begun() >= 2; },
                    [] {
                      Double::get().change([](Control& control) { control.captures = true; });
                      std::this_thread::sleep_for(milliseconds(20));
                      Double::get().change(
                          [](Control& control) { control.holds_kernels = control.stalls = false; });
                    });
  ranks.on_all([](Communicator& rank) {
    const auto made = rank.allocate<float>(1000, rank.device());
    const View data = given(rank, made);
    auto freed = rank.allocate<float>(8, rank.device());
    rank.all_reduce(data).wait();
    EXPECT_TRUE(Double::get().control().captures);
    expect_contains(error_of<InvalidArgument>([&] { rank.all_reduce(data).wait(); }),
                    "all_reduce: a CUDA graph is being captured");
    expect_contains(
        error_of<InvalidArgument>([&] { (void)rank.allocate<float>(8, rank.device()); }),
        "call this before the capture or after it");
    const auto bytes_and_blocks = [] {
      const Control control = Double::get().control();
      return std::pair(control.exported_bytes, control.made_blocks);
    };
    const auto before = bytes_and_blocks();
    rank.barrier().wait();
    freed = {};  // It is freed once the device can be waited for.
    rank.barrier().wait();
    EXPECT_EQ(bytes_and_blocks(), before);
    EXPECT_LE(Double::get().control().launches, 2);
    rank.barrier().wait();
    Double::get().change([](Control& control) { control.captures = false; });
    rank.barrier().wait();
    rank.all_reduce(data).wait();
  });
  captures.join();
  EXPECT_FALSE(Double::get().control().has_spoiled_capture);
}

TEST_F(DeviceMemory, KernelsThatFailFailTheGroupWithWhatTheDriverSays) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();
    Double::get().change([](Control& control) { control.kernel_error = 700; });
    const std::string said = error_of<Error>([&] { rank.all_reduce(data.span()).wait(); });
    expect_contains(said, "the reduction's kernel: an error of the double's device (700)");
    expect_contains(said, "all_reduce(sum f32 [8]) #2");
    expect_contains(said, "rank ");
  });
}

TEST_F(DeviceMemory, NobodyIsToldOfWhatAStreamHasFailedToDo) {
  DoubleRanks ranks = make(2);
  Double::get().change([](Control& control) { control.holds_kernels = true; });
  // All ranks have begun their last kernels.
  OnceTrue breaks([] { return Double::get().control().kernels >= 2; },
                  [] {
                    Double::get().change([](Control& control) {
                      control.stream_error = 700;
                      control.holds_kernels = false;
                    });
                  });
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(1000, rank.device());
    expect_contains(error_of<Error>([&] { rank.all_reduce(data.span()).wait(); }),
                    "the stream: an error of the double's device (700)");
  });
  breaks.join();
}

// For example, a kernel of the program has failed: the device then returns the error to all calls.
// The memory must not be taken for host memory, which the host would access.
TEST_P(DeviceMemoryOnBothBackends, ADeviceThatHasFailedIsToldInItsWords) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& rank) {
    const auto made = rank.allocate<float>(8, rank.device());
    const View data = given(rank, made);
    rank.barrier().wait();
    Double::get().change([](Control& control) { control.stream_error = 700; });
    const std::string said = "the default stream: an error of the double's device (700)";
    expect_contains(error_of<SystemError>([&] { rank.all_reduce(data).wait(); }),
                    fmt::format("rank {}: all_reduce: {}", rank.rank().value(), said));
    expect_contains(error_of<SystemError>([&] { (void)rank.allocate<float>(8, rank.device()); }),
                    said);
  });
}

TEST_F(DeviceMemory, DevicesWithoutAWayToEachOtherAreNamed) {
  DoubleRanks ranks = make(2);
  Double::get().change([](Control& control) { control.refuses_peers = true; });
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    const std::string said = error_of<Error>([&] { rank.all_reduce(data.span()).wait(); });
    expect_contains(said, "cannot map 0.1 MiB of shared memory of rank ");
    expect_contains(said, "cuMemSetAccess: an error of the double's device (217)");
  });
}

TEST_F(DeviceMemory, TimeIsUpForThoseWhoWaitAndKernelsGoOn) {
  DoubleRanks ranks = make(2);
  std::atomic<bool> told{false};
  ranks.on_all([&](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    if (rank.rank() == 1) {
      while (!told) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    expect_contains(error_of<Timeout>([&] {
                      rank.all_reduce(data.span(), {.timeout = milliseconds(300)}).wait();
                    }),
                    "rank 1");
    told = true;
  });
}

TEST_F(DeviceMemory, WhatCannotBeIsRefusedWithASentence) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto refused = [](const auto& call) { return error_of<InvalidArgument>(call); };
    const auto data = rank.allocate<float>(8, rank.device());
    std::vector<float> host(8);
    const int other = 1 - *rank.device();
    expect_contains(refused([&] { (void)rank.allocate<float>(8, other); }),
                    fmt::format("rank {}: allocate: device {} of this process is not the one",
                                rank.rank().value(), other));
    expect_contains(refused([&] { rank.all_reduce(host, data.span()).wait(); }),
                    "some buffers lie in memory of a device and some in memory of the host");
    expect_contains(refused([&] { rank.all_reduce(data.span(), {.algorithm = "ring"}).wait(); }),
                    "where no algorithm can be named");
    expect_contains(refused([&] { rank.send(data.span(), {.to = other}).wait(); }),
                    "messages are not moved to or from memory of a device");
    const View foreign(Double::get().allocate(32, *rank.device()), 8, DType::f32);
    expect_contains(refused([&] { rank.all_reduce(foreign).wait(); }),
                    "Communicator::allocate makes them, in memory of a device if it is told which");
    auto* const first = reinterpret_cast<std::byte*>(data.data());
    const View misaligned(first + 1, 4, DType::f32);
    expect_contains(refused([&] { rank.all_reduce(misaligned).wait(); }),
                    "a buffer in memory of a device is not aligned to its elements");
    // Nothing has begun, so the group goes on.
    rank.all_reduce(data.span()).wait();
    rank.all_reduce(host).wait();
    rank.all_reduce(View(first + sizeof(float), 3, DType::c64)).wait();
  });
}

// The buffers belong to the program when the time is up, because nothing of the operation has begun
// on the device.
TEST_F(DeviceMemory, TimeIsUpForWhatTheProgramNeverLetsBegin) {
  DoubleRanks ranks = make(2);
  std::promise<void> goes_on;
  ranks.on_all([&](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();  // allocate() waits for all streams of the double: both have.
    if (rank.rank() == 0) {
      const auto waits_for = goes_on.get_future().share();
      Double::get().enqueue(*rank.device(), nullptr, [waits_for] { waits_for.wait(); });
    }
    Work work = rank.all_reduce(data.span(), {.timeout = milliseconds(300)});
    const Deadline late = Deadline::after(std::chrono::seconds(5));
    while (!work.done() && !late.passed()) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_FALSE(late.passed());
    if (rank.rank() == 0) goes_on.set_value();
    EXPECT_EQ(work.wait_status().code(), StatusCode::timeout);
  });
}

// The first group makes as many events as the operations in flight together need; further calls
// must leave no more behind.
TEST_F(DeviceMemory, CallsThatNeverBeginLeaveNoEventBehind) {
  DoubleRanks ranks = make(2);
  std::atomic<bool> told{false};
  ranks.on_all([&](Communicator& rank) {
    const std::unique_ptr<Communicator> groups[] = {rank.split({.color = 0}),
                                                    rank.split({.color = 0})};
    const auto data = rank.allocate<float>(8, rank.device());
    while (rank.rank() == 1 && !told) std::this_thread::sleep_for(milliseconds(5));
    if (rank.rank() == 1) return;
    int before = 0;
    for (const auto& group : groups) {
      before = Double::get().control().events;
      std::vector<Work> works;
      for (int i = 0; i < 20; ++i) {
        works.push_back(group->all_reduce(data.span(), {.timeout = milliseconds(200)}));
      }
      for (Work& work : works) EXPECT_EQ(work.wait_status().code(), StatusCode::timeout);
    }
    const View foreign(Double::get().allocate(32, *rank.device()), 8, DType::f32);
    for (int i = 0; i < 100; ++i) {
      error_of<InvalidArgument>([&] { rank.all_reduce(foreign).wait(); });
    }
    EXPECT_LT(Double::get().control().events - before, 5);
    told = true;
  });
}

// Only pairs of ranks know these counts, but all ranks are told, as with messages.
TEST_F(DeviceMemory, CountsThatDifferBetweenTwoRanksAreToldByAll) {
  DoubleRanks ranks = make(3);
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(12, rank.device());
    const std::vector<std::size_t> two(3, 2);
    std::vector<std::size_t> sent = two;
    if (rank.rank() == 2) sent[0] = 3;
    const auto from = data.span().first(rank.rank() == 2 ? 7 : 6);
    expect_contains(
        error_of<Mismatch>([&] {
          const auto to = rank.allocate<float>(6, rank.device());
          rank.all_to_all(from, to.span(), {.send_counts = sent, .recv_counts = two}).wait();
        }),
        "rank 2 sends 3 elements to rank 0, which expects 2");
  });
}

// A rank with only empty buffers derives from them where the other ranks' buffers lie. Here they
// have no address.
TEST_F(DeviceMemory, RankThatHasNothingAnywhereIsFoundOut) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    const bool has_some = rank.rank() == 0;
    const std::vector<std::size_t> counts = {has_some ? 8u : 0u, 0};
    const View view = has_some ? view_of(data.span()) : View(nullptr, 0, DType::f32);
    const auto to = rank.allocate<float>(8, rank.device());
    const View output = has_some ? view_of(to.span()) : view;
    expect_contains(
        error_of<Mismatch>([&] {
          rank.all_to_all(view, output, {.send_counts = counts, .recv_counts = counts}).wait();
        }),
        "what is for memory of devices");
  });
}

TEST_F(DeviceMemory, ProductThatFailsFailsTheGroup) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();
    Double::get().change([](Control& control) { control.kernel_error = 700; });
    expect_contains(error_of<Error>([&] { rank.all_reduce(data.span(), {.factor = 2}).wait(); }),
                    "the kernel of a product: an error of the double's device (700)");
  });
}

TEST_P(DeviceMemoryOnBothBackends, RanksOnOtherMemoryAreFoundOut) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& rank) {
    const auto made = rank.allocate<float>(8, rank.device());
    std::vector<float> host(8);
    const View data = rank.rank() == 0 ? as_output(host) : given(rank, made);
    expect_contains(error_of<Mismatch>([&] { rank.all_reduce(data).wait(); }),
                    "what is for memory of devices");
  });
  EXPECT_EQ(begun(), 0);
}

TEST_F(DeviceMemory, RanksThatCannotMapItAllAreToldWhatTheyLack) {
  for (const bool shares_memory : {false, true}) {
    DoubleRanks ranks(
        {.size = shares_memory ? 17 : 2, .maps_devices = true, .shares_memory = shares_memory});
    ranks.on_all([](Communicator& rank) {
      EXPECT_EQ(rank.device(), std::nullopt);
      const auto data = rank.allocate<float>(8, rank.rank().value() % 8);
      EXPECT_FALSE(rank.is_device_memory(data.data()));
      expect_contains(error_of<InvalidArgument>([&] { rank.all_reduce(data.span()).wait(); }),
                      "up to 16 ranks, which are all on one host and share its memory");
    });
  }
}

TEST_F(DeviceMemory, WithoutADeviceThereIsNone) {
  run_ranks(2, [](Communicator& rank) {
    expect_contains(error_of<InvalidArgument>([&] { (void)rank.allocate<float>(8, 0); }),
                    "allocate: only a job with the backend \"cuda\" or \"nccl\" gives memory of "
                    "devices");
  });
  const auto join_error = [](const FakeEnvironment& environment) {
    return error_of([&] {
      (void)join({.rank = 0, .size = 1, .backend = "cuda", .environment = &environment});
    });
  };
  expect_contains(join_error(nccl_variables({{"STRETTO_CUDA_DRIVER", "/nowhere/libcuda.so.1"}})),
                  "rank 0 of 1 could not join: the backend \"cuda\" needs a GPU, and there is no "
                  "driver of a GPU here: /nowhere/libcuda.so.1");
  expect_contains(join_error(nccl_variables({{"STRETTO_CUDA_KERNELS", "/nowhere/kernels.so"}})),
                  "needs stretto's kernels for GPUs, which cannot be loaded (/nowhere/kernels.so");
}

TEST_F(DeviceMemory, WhereKernelsDoNotRunARankDoesNotJoin) {
  Double::get().change([](Control& control) { control.probe_error = 35; });
  const FakeEnvironment environment = nccl_variables();
  expect_contains(
      error_of<InvalidArgument>([&] {
        (void)join({.rank = 0, .size = 1, .backend = "cuda", .environment = &environment});
      }),
      "stretto's kernels do not run on device 0: CUDA's error 35 (35: the driver");
}

TEST_F(DeviceMemory, TooMuchIsToldWithRankAndCause) {
  DoubleRanks ranks = make(2);
  Double::get().change([](Control& control) { control.exportable_bytes = 1 << 20; });
  ranks.on_all([](Communicator& rank) {
    const auto group = rank.new_group({1, 0});  // The rank has another number in it.
    if (rank.rank() == 1) return;
    expect_contains(
        error_of<OutOfMemory>([&] { (void)group->allocate<float>(1 << 20, rank.device()); }),
        "rank 0: allocate 4194304 bytes on device 0: cuMemCreate: ");
  });
}

// The owner may free the memory when its operation has ended; others unmap it when they hear of
// that.
TEST_F(DeviceMemory, IsFreedWhileOthersGoOn) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    for (int i = 0; i < 20; ++i) {
      const auto data = rank.allocate<float>(50'000, rank.device());
      reach(data)[49'999] = static_cast<float>(i);
      rank.all_reduce(data.span()).wait();
      EXPECT_EQ(reach(data)[49'999], static_cast<float>(2 * i));
    }
  });
}

}  // namespace
}  // namespace stretto::testing
