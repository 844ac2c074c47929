// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/job/join.h"
#include "stretto/job/threads.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/allocation/counter.h"
#include "tests/contract/process_resources.h"
#include "tests/support/on_threads.h"

namespace stretto::testing {
namespace {

// A program that makes ever new calls does not grow for ever: neither by plans nor by the scratch
// memory of their executions.

constexpr long kMiB = 1024 * 1024;

void call_all(Communicator& comm, std::vector<float>& data, std::size_t bytes_step, int calls) {
  for (int i = 0; i < calls; ++i) {
    const std::size_t count = bytes_step / sizeof(float) + static_cast<std::size_t>(i);
    comm.all_reduce(std::span(data).first(count), {.algorithm = "ring"}).wait();
  }
}

void call_on_both(std::vector<std::unique_ptr<Communicator>>& ranks, std::size_t bytes, int calls) {
  on_threads(2, [&](std::size_t rank) {
    std::vector<float> data(bytes / sizeof(float) + static_cast<std::size_t>(calls), 1);
    call_all(*ranks[rank], data, bytes, calls);
  });
}

TEST(Cache, OfPlansIsBounded) {
  auto ranks = make_thread_ranks({.size = 2, .shared_memory = false});
  call_on_both(ranks, 8192, 1);
  const long bytes = bytes_in_use();
  // A plan takes 8 KiB or more on each rank: all plans together would take 50 MiB or more.
  call_on_both(ranks, 8192, 3000);
  EXPECT_LT(bytes_in_use() - bytes, 16 * kMiB);
}

TEST(Cache, OfScratchMemoryIsBounded) {
  auto ranks = make_thread_ranks({.size = 2, .shared_memory = false});
  call_on_both(ranks, 8 * kMiB, 1);
  const long bytes = bytes_in_use();
  // Each has 4 MiB or more of scratch: all together would be 400 MiB or more on two ranks.
  call_on_both(ranks, 8 * kMiB, 50);
  EXPECT_LT(bytes_in_use() - bytes, (2 * 64 + 16) * kMiB);
}

TEST(Messages, OfEverNewTagsLeaveNothing) {
  auto ranks = make_thread_ranks({.size = 2});
  std::array<float, 10> sent{}, received{};
  const auto call = [&](int first, int last) {
    for (int tag = first; tag < last; ++tag) {
      Work receive =
          ranks[1]->recv(received, {.from = tag % 2 == 0 ? Rank(0) : kAnyRank, .tag = tag});
      ranks[0]->send(sent, {.to = 1, .tag = tag}).wait();
      receive.wait();
    }
  };
  call(0, 1000);
  const long bytes = bytes_in_use();
  call(1000, 5000);
  EXPECT_LT(bytes_in_use() - bytes, 16 * 1024);
}

// Once a reducer has done enough steps, further steps allocate nothing.

constexpr int kRanks = 2;
constexpr std::size_t kGradients = 40;

class ReducerSteps {
 public:
  // `options` is called for each rank, since a hook has state.
  explicit ReducerSteps(const std::function<ReducerOptions()>& options) {
    std::vector<GradientDescription> gradients;
    for (std::size_t i = 0; i < kGradients; ++i) {
      gradients.push_back({std::to_string(i), DType::f32, 100});
    }
    // All ranks at once: hooks compare what the ranks use.
    reducers_.resize(ranks_.size());
    on_threads(ranks_.size(), [&](std::size_t r) {
      reducers_[r] = std::make_unique<Reducer>(*ranks_[r], gradients, options());
    });
  }

  // Returns whether a hundred steps pass without an allocation, within a thousand. If one rank
  // falls far behind, more operations are under way than ever before, and their places are kept.
  bool settle(std::size_t unused = kGradients) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      if (run(100, unused) == 0) return true;
    }
    return false;
  }

 private:
  // Returns how often memory was allocated in `steps` steps of all ranks. Rank 1 leaves out
  // gradient `unused`.
  long run(int steps, std::size_t unused) {
    const auto step = [&](std::size_t r) {
      for (std::size_t i = kGradients; i-- > 0;) {
        if (r == 0 || i != unused) reducers_[r]->mark_ready(i);
      }
      reducers_[r]->finalize();
      (void)reducers_[r]->rebuild();
    };
    std::thread other([&] {
      for (int i = 0; i < steps; ++i) step(1);
    });
    step(0);  // By then the thread has begun, which allocates.
    long count = 0;
    {
      const AllocationCount counted;
      for (int i = 1; i < steps; ++i) step(0);
      other.join();
      count = counted.value();
    }
    return count;
  }

  std::vector<std::unique_ptr<Communicator>> ranks_ = make_thread_ranks({.size = kRanks});
  std::vector<std::unique_ptr<Reducer>> reducers_;
};

TEST(ReducerAllocation, StepsAllocateNothing) {
  ReducerSteps steps([] { return ReducerOptions{.bucket_bytes = {2000}}; });
  EXPECT_TRUE(steps.settle());
}

TEST(ReducerAllocation, StepsWithUnusedGradientsAllocateNothing) {
  ReducerSteps steps([] { return ReducerOptions{.bucket_bytes = {2000}, .find_unused = true}; });
  EXPECT_TRUE(steps.settle(7));
}

TEST(ReducerAllocation, HalvedGradientsAllocateNothing) {
  ReducerSteps steps([] {
    return ReducerOptions{.bucket_bytes = {2000}, .hook = std::make_shared<Bf16Reduction>()};
  });
  EXPECT_TRUE(steps.settle());
}

void expect_no_allocations(const std::shared_ptr<const Compressor>& codec,
                           CompressedExchange exchange = CompressedExchange::gather) {
  const CompressionOptions options{
      .codec = codec, .rules = {{"7", dense()}}, .min_elements = 1, .exchange = exchange};
  ReducerSteps steps([&] {
    return ReducerOptions{.bucket_bytes = {2000},
                          .hook = std::make_shared<CompressedReduction>(options)};
  });
  EXPECT_TRUE(steps.settle()) << CompressedReduction(options).name();
}

TEST(ReducerAllocation, CompressedGradientsAllocateNothing) {
  for (const auto& codec :
       {top_k({.density = 0.1}), threshold({.limit = 0.1f}), f16(), int8(), one_bit()}) {
    expect_no_allocations(codec);
  }
  expect_no_allocations(power_sgd());
}

// Nor does the transport allocate where messages come before they are asked for.
TEST(ReducerAllocation, DividedAndCombinedGradientsAllocateNothing) {
  for (const auto exchange : {CompressedExchange::divide, CompressedExchange::combine}) {
    for (const auto& codec : {top_k({.density = 0.1}), threshold({.limit = 0.1f}), int8()}) {
      expect_no_allocations(codec, exchange);
    }
  }
}

// Beyond the gradients, compression needs a residual for each gradient and, in proportion to the
// density, room for what is chosen of the longest gradient and for the ranks' messages.
TEST(ReducerMemory, OfCompressionIsAResidualAndWhatRanksSay) {
  constexpr std::size_t kLong = 1 << 20, kShort = 1 << 18;
  const auto bytes_of = [&](const std::function<std::shared_ptr<CommunicationHook>()>& hook) {
    auto ranks = make_thread_ranks({.size = kRanks});
    std::vector<std::unique_ptr<Reducer>> reducers(ranks.size());
    const auto train = [&](std::size_t rank) {
      reducers[rank] = std::make_unique<Reducer>(
          *ranks[rank],
          std::vector<GradientDescription>{{"a", DType::f32, kLong}, {"b", DType::f32, kShort}},
          ReducerOptions{.hook = hook()});
      for (int step = 0; step < 4; ++step) {
        for (const std::size_t i : {1, 0}) {
          auto* const values = reinterpret_cast<float*>(reducers[rank]->gradient_bytes(i).data());
          for (std::size_t e = 0; e < (i == 0 ? kLong : kShort); ++e) {
            values[e] = static_cast<float>(e * 7919 % 104729 + static_cast<std::size_t>(step));
          }
          reducers[rank]->mark_ready(i);
        }
        reducers[rank]->finalize();
      }
    };
    const long before = bytes_in_use();
    on_threads(kRanks, train);
    return static_cast<double>(bytes_in_use() - before) / kRanks;
  };
  const double plain = bytes_of([] { return std::make_shared<PlainReduction>(); });
  const double gradients = (kLong + kShort) * sizeof(float);
  const auto beyond = [&](const std::shared_ptr<const Compressor>& codec) {
    const auto hook = [&] {
      return std::make_shared<CompressedReduction>(CompressionOptions{codec});
    };
    return (bytes_of(hook) - plain) / gradients;
  };
  for (const auto& [codec, most] :
       std::vector<std::pair<std::shared_ptr<const Compressor>, double>>{
           {top_k(), 1.2}, {one_bit(), 1.15}, {int8(), 1.9}, {power_sgd(), 1.05}}) {
    const double found = beyond(codec);
    EXPECT_GE(found, 1) << codec->name();
    EXPECT_LT(found, most) << codec->name();
  }
}

// A thousand groups that are made and destroyed leave no descriptor and no memory behind: between
// threads, and between processes by shared memory and by TCP.

constexpr int kGroups = 1000;
// What a thousand groups may leave, as queues have grown. A few bytes per group would be more.
constexpr long kBytesLeftMax = 16 * 1024;
// The files of the last regions, which the other rank has not yet said that it has.
constexpr int kDescriptorsLeftMax = 4;

void make_groups(Communicator& comm, int count) {
  for (int i = 0; i < count; ++i) {
    auto group = i % 2 == 0 ? comm.new_group({1, 0})
                            : comm.split({.color = i % 3 == 0 ? comm.rank().value() : 0, .key = i});
    std::vector<std::int32_t> data(100, 1);
    if (i % 10 == 0) group->all_reduce(data).wait();
    if (i % 10 == 5) group->all_reduce(data, {.factor = 1, .algorithm = "ring"}).wait();
  }
  comm.barrier().wait();
}

TEST(AThousandGroups, OfThreadsLeaveNothing) {
  for (const bool shared_memory : {false, true}) {
    auto ranks = make_thread_ranks({.size = 2, .shared_memory = shared_memory});
    const auto on_both = [&](int count) {
      on_threads_of(ranks, [&](auto& rank) { make_groups(*rank, count); });
    };
    on_both(100);
    const long bytes = bytes_in_use();
    const int open = transport::open_descriptors();
    on_both(kGroups);
    EXPECT_LE(bytes_in_use() - bytes, kBytesLeftMax) << "shared memory: " << shared_memory;
    EXPECT_EQ(transport::open_descriptors(), open) << "shared memory: " << shared_memory;
  }
}

// Runs in a process of its own. Returns whether all is well.
bool process_rank(int rank, const std::string& place, bool tcp) {
  auto comm = join({.rank = rank, .size = 2, .rendezvous = place, .disable_shared_memory = tcp});
  make_groups(*comm, 100);
  const long bytes = bytes_in_use();
  const int open = transport::open_descriptors();
  const int mapped = transport::shared_mappings();
  make_groups(*comm, kGroups);
  const long bytes_left = bytes_in_use() - bytes;
  const int open_left = transport::open_descriptors() - open;
  const int mapped_left = transport::shared_mappings() - mapped;
  comm->barrier().wait();
  if (bytes_left <= kBytesLeftMax && open_left <= kDescriptorsLeftMax && mapped_left <= 10)
    return true;
  std::fprintf(stderr, "rank %d, %s: %ld bytes, %d descriptors, %d mappings are left\n", rank,
               tcp ? "tcp" : "shared memory", bytes_left, open_left, mapped_left);
  return false;
}

TEST(AThousandGroups, OfProcessesLeaveNothing) {
  for (const bool tcp : {false, true}) {
    const std::string path = ::testing::TempDir() + "stretto_groups_" + std::to_string(::getpid()) +
                             (tcp ? "_tcp" : "_shm");
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        bool well = false;
        try {
          well = process_rank(rank, "file://" + path, tcp);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        }
        ::_exit(well ? 0 : 1);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
  }
}

}  // namespace
}  // namespace stretto::testing
