// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// When the kernel copies private buffers once, and when they pass through shared memory. The
// results are the same, so the tests count who has read or written whose memory.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "stretto/base/huge_pages.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/group/engine.h"
#include "stretto/kernel/copy.h"
#include "stretto/transport/shm/host.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/connect_pairs.h"
#include "tests/support/failures.h"
#include "tests/support/may_copy_from.h"
#include "tests/support/on_threads.h"
#include "tests/support/socket_pairs.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using transport::Endpoint;
using transport::RemoteAddress;
using transport::SharedMemory;

constexpr std::size_t kHugeBytes = 2 * 1024 * 1024;
constexpr std::size_t kCount = 2 * kHugeBytes / sizeof(float);

// Counts the copies of another memory, and can put it out of reach or break it.
class CountedMemory : public SharedMemory {
 public:
  explicit CountedMemory(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  Result<transport::Region> allocate(std::size_t bytes) override {
    return memory_->allocate(bytes);
  }
  RemoteAddress locate(const void* data, std::size_t bytes) const override {
    return memory_->locate(data, bytes);
  }
  std::byte* resolve(Rank peer, RemoteAddress address, std::size_t bytes) override {
    return memory_->resolve(peer, address, bytes);
  }
  std::shared_ptr<void> hold(Rank peer, RemoteAddress address) override {
    return memory_->hold(peer, address);
  }
  bool reaches(Rank peer) const override { return memory_->reaches(peer); }
  std::uint64_t generation() const override { return memory_->generation(); }
  std::size_t mapped_bytes() const override { return memory_->mapped_bytes(); }
  void service() override { memory_->service(); }
  bool reaches_private(Rank peer) const override {
    return can_reach && memory_->reaches_private(peer);
  }
  Status get(Rank peer, RemoteAddress from, ByteSpan to) const override {
    ++copies;
    const Status status = is_broken ? broken(peer) : memory_->get(peer, from, to);
    if (after_get) after_get();
    return status;
  }
  Status put(Rank peer, ConstByteSpan from, RemoteAddress to) const override {
    ++copies;
    if (before_put) before_put();
    const Status status = is_broken ? broken(peer) : memory_->put(peer, from, to);
    ++puts;
    return status;
  }

  mutable std::atomic<int> copies{0};
  mutable std::atomic<int> puts{0};  // Those that have ended.
  std::atomic<bool> can_reach{true};
  std::atomic<bool> is_broken{false};
  // Called within get() and put(). May be empty.
  std::function<void()> after_get;
  std::function<void()> before_put;

 private:
  static Status broken(Rank peer) { return {StatusCode::system, "the memory is broken", peer}; }
  std::shared_ptr<SharedMemory> memory_;
};

// Private memory of floats, in pages of one kind or the other.
class Floats {
 public:
  Floats(std::size_t count, bool huge) : count_(count) {
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = mapping_ + (kHugeBytes - address % kHugeBytes) % kHugeBytes;
    EXPECT_EQ(::madvise(data_, bytes(), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE), 0);
  }
  ~Floats() { ::munmap(mapping_, bytes() + kHugeBytes); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  std::span<float> span() const { return {reinterpret_cast<float*>(data_), count_}; }
  void fill(float value) { std::ranges::fill(span(), value); }

 private:
  std::size_t bytes() const { return count_ * sizeof(float); }
  std::size_t count_;
  std::byte* mapping_ =
      static_cast<std::byte*>(::mmap(nullptr, count_ * sizeof(float) + kHugeBytes,
                                     PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::byte* data_ = nullptr;
};

class SingleCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!may_copy_from(::getpid())) GTEST_SKIP() << "the system forbids process_vm_readv()";
  }
  // `wanted`: one value per rank. The ranks are threads that share memory as processes do.
  void make(const std::vector<SingleCopy>& wanted, std::size_t unreached = kNobody) {
    const std::size_t size = wanted.size();
    auto sockets = testing::connect_pairs(
        static_cast<int>(size), [](int, int) { return testing::make_unix_pair(SOCK_STREAM); });
    memories_.resize(size);
    ranks_.resize(size);
    on_threads(size, [&](std::size_t r) {
      auto parts = transport::shm::attach(static_cast<int>(r), std::move(sockets[r]),
                                          Deadline::after(std::chrono::seconds(10)))
                       .or_throw();
      memories_[r] = std::make_shared<CountedMemory>(parts.memory);
      memories_[r]->can_reach = r != unreached;
      parts.memory = memories_[r];
      auto engine = group::Engine::create(Endpoint::create(std::move(parts)).or_throw(),
                                          {.local_ranks = static_cast<int>(size)})
                        .or_throw();
      ranks_[r] =
          communicator::ScheduledBackend::make_world(
              std::move(engine), {.timeout = std::chrono::seconds(30), .single_copy = wanted[r]})
              .or_throw();
    });
    ASSERT_EQ(memories_[0]->reaches_private(1), unreached != 0);
  }
  // How many copies between processes all ranks together make in an all-reduce of `count` floats,
  // in place.
  int copies_of_all_reduce(std::size_t count, bool huge) {
    const auto ranks = static_cast<float>(ranks_.size());
    const int before = copies();
    on_all(ranks_, [&](Communicator& comm) {
      Floats data(count, huge);
      data.fill(static_cast<float>(comm.rank().value()));
      comm.all_reduce(data.span()).wait();
      const float expected = ranks * (ranks - 1) / 2;
      EXPECT_EQ(std::ranges::count(data.span(), expected), static_cast<long>(count));
    });
    return copies() - before;
  }
  int copies() const {
    int all = 0;
    for (const auto& memory : memories_) all += memory->copies;
    return all;
  }
  static bool has_huge_pages() {
    Floats data(kCount, true);
    data.fill(1);
    return lies_in_huge_pages(data.span().data(), kCount * sizeof(float));
  }

  static constexpr std::size_t kNobody = 99;
  std::vector<std::shared_ptr<CountedMemory>> memories_;
  RankList ranks_;
};

constexpr SingleCopy kOff = SingleCopy::off;
constexpr SingleCopy kAutomatic = SingleCopy::automatic;
constexpr SingleCopy kAlways = SingleCopy::always;

TEST_F(SingleCopyTest, AutomaticallyOfMuchMemoryInHugePages) {
  make({kAutomatic, kAutomatic});
  EXPECT_EQ(copies_of_all_reduce(kCount, false), 0) << "small pages";
  EXPECT_EQ(copies_of_all_reduce(1000, true), 0) << "little memory";
  if (!has_huge_pages()) GTEST_SKIP() << "there are no huge pages here, or the kernel is silent";
  EXPECT_GT(copies_of_all_reduce(kCount, true), 0);
}

// Each of two ranks takes half of the buffer.
TEST_F(SingleCopyTest, AReduceScatterIsStagedWhileItStaysInTheCacheOfThisMachine) {
  make({kAutomatic, kAutomatic});
  on_all(ranks_, [](Communicator& comm) {
    const auto runs_on_huge_pages = [&](std::size_t bytes) {
      return comm.explain(Collective::reduce_scatter, DType::u8, bytes).algorithm_huge_pages;
    };
    const std::size_t cache_bytes = kernel::last_level_cache_bytes();
    EXPECT_EQ(runs_on_huge_pages(cache_bytes - 2), "staged_mapped");
    EXPECT_EQ(runs_on_huge_pages(cache_bytes), "direct_mapped");
  });
}

TEST_F(SingleCopyTest, AlwaysWherePossible) {
  make({kAlways, kAlways, kAlways});
  EXPECT_GT(copies_of_all_reduce(kCount, false), 0);
  EXPECT_GT(copies_of_all_reduce(kCount + 1, true), 0);
  EXPECT_GT(copies_of_all_reduce(30000, false), 0);
}

TEST_F(SingleCopyTest, NotIfOneRankWantsNone) {
  make({kAlways, kOff, kAlways});
  EXPECT_EQ(copies_of_all_reduce(kCount, true), 0);
}

TEST_F(SingleCopyTest, NotIfOneRankMayNot) {
  make({kAlways, kAlways}, 1);
  EXPECT_EQ(copies_of_all_reduce(kCount, true), 0);
}

// All ranks follow the one that allows least: single copy with huge pages only.
TEST_F(SingleCopyTest, AlwaysAndAutomaticIsAutomatic) {
  make({kAlways, kAutomatic});
  EXPECT_EQ(copies_of_all_reduce(kCount, false), 0);
  if (!has_huge_pages()) GTEST_SKIP() << "there are no huge pages here, or the kernel is silent";
  EXPECT_GT(copies_of_all_reduce(kCount, true), 0);
}

// Where one rank's buffer is in huge pages and the other's is not, both must find that out.
TEST_F(SingleCopyTest, PagesOfBothKindsAreStaged) {
  make({kAutomatic, kAutomatic});
  on_all(ranks_, [&](Communicator& comm) {
    Floats huge(kCount, true);
    Floats small(kCount, false);
    for (int i = 0; i < 8; ++i) {
      Floats& data = (comm.rank().value() + i) % 2 == 0 ? huge : small;
      data.fill(1);
      comm.all_reduce(data.span()).wait();
      EXPECT_EQ(std::ranges::count(data.span(), 2.0f), static_cast<long>(kCount));
    }
  });
  EXPECT_EQ(copies(), 0);
}

// Registered buffers are mapped, so the kernel never copies them; it does copy private ones beside
// them.
TEST_F(SingleCopyTest, RegisteredAndPrivateBuffersMix) {
  make({kAlways, kAlways, kAlways});
  on_all(ranks_, [&](Communicator& comm) {
    const auto registered = comm.allocate<float>(kCount);
    Floats data(kCount, false);
    for (int i = 0; i < 8; ++i) {
      const bool is_registered = (i >> comm.rank().value() & 1) != 0;
      const std::span<float> mine = is_registered ? registered.span() : data.span();
      std::ranges::fill(mine, static_cast<float>(i));
      comm.all_reduce(mine).wait();
      EXPECT_EQ(std::ranges::count(mine, 3.0f * static_cast<float>(i)), static_cast<long>(kCount));
    }
  });
  EXPECT_GT(copies(), 0);
  const int before = copies();
  on_all(ranks_, [&](Communicator& comm) {
    const auto registered = comm.allocate<float>(kCount);
    comm.all_reduce(registered.span()).wait();
  });
  EXPECT_EQ(copies(), before);
}

// An output that nobody has written yet has no pages, but will have them in the next calls.
TEST_F(SingleCopyTest, FreshMemoryIsLookedAtAgain) {
  make({kAutomatic, kAutomatic});
  if (!has_huge_pages()) GTEST_SKIP() << "there are no huge pages here, or the kernel is silent";
  on_all(ranks_, [&](Communicator& comm) {
    Floats input(kCount, true);
    Floats output(kCount, true);
    input.fill(1);
    comm.all_reduce(input.span(), output.span()).wait();
    EXPECT_EQ(copies(), 0);
    comm.barrier().wait();
    for (int i = 0; i < 3; ++i) comm.all_reduce(input.span(), output.span()).wait();
    EXPECT_EQ(std::ranges::count(output.span(), 2.0f), static_cast<long>(kCount));
  });
  EXPECT_GT(copies(), 0);
}

// How an all-reduce of private buffers, in place, fails.
Status failed_all_reduce(Communicator& comm, std::span<float> data) {
  return failure_of([&] { comm.all_reduce(data).wait(); });
}

TEST_F(SingleCopyTest, AFailedCopyFailsTheGroup) {
  make({kAlways, kAlways});
  memories_[1]->is_broken = true;
  on_all(ranks_, [&](Communicator& comm) {
    Floats data(kCount, false);
    data.fill(1);
    const Status status = failed_all_reduce(comm, data.span());
    const std::string text(status.message());
    if (comm.rank() == 1) {
      EXPECT_EQ(status.code(), StatusCode::system);
      EXPECT_EQ(text, "all_reduce(sum f32 [1048576]) #1 on rank 1: the memory is broken");
    } else {  // It hears of rank 1's failure, not of what its own copies ran into.
      expect_contains(text, "rank 1 abandoned the group");
    }
    EXPECT_THROW(comm.barrier().wait(), Error);
  });
}

// Rank 1 abandons the operation after rank 0 has read its data, and its caller takes the buffer
// back.
TEST_F(SingleCopyTest, WhoHasAbandonedItIsNotWrittenTo) {
  make({kAlways, kAlways});
  std::atomic<bool> is_abandoned{false};
  memories_[0]->after_get = [&] {
    ranks_[1]->abort("a test");
    while (!is_abandoned) std::this_thread::yield();
  };
  on_all(ranks_, [&](Communicator& comm) {
    Floats data(kCount, false);
    data.fill(1);
    EXPECT_EQ(failed_all_reduce(comm, data.span()).code(), StatusCode::aborted);
    if (comm.rank() == 1) is_abandoned = true;
  });
  EXPECT_EQ(memories_[0]->puts, 0);
}

// Rank 1 abandons the operation while rank 0 writes to its buffer. Rank 1's caller does not get the
// buffer back before the write is over, but the thread that aborts does not wait for the write.
TEST_F(SingleCopyTest, WhoAbandonsItWaitsForTheLastWrite) {
  make({kAlways, kAlways});
  std::atomic<bool> is_aborted{false};
  std::atomic<bool> has_returned{false};
  std::thread aborts;
  memories_[0]->before_put = [&] {
    if (is_aborted.exchange(true)) return;
    aborts = std::thread([&] {
      ranks_[1]->abort("a test");
      has_returned = true;
    });
    EXPECT_TRUE(comes_true([&] { return has_returned.load(); },
                           Deadline::after(std::chrono::milliseconds(800))));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  on_all(ranks_, [&](Communicator& comm) {
    Floats data(kCount, false);
    data.fill(1);
    EXPECT_EQ(failed_all_reduce(comm, data.span()).code(), StatusCode::aborted);
    if (comm.rank() == 1) {
      EXPECT_EQ(memories_[0]->puts, 1);
    }
  });
  aborts.join();
}

// Rank 0 abandons the operation when 0 and 2 of three ranks have done their parts, but 1 has not.
// So rank 1 will not do the rest, and rank 2 must not believe that it has.
TEST_F(SingleCopyTest, NobodyEndsWellWithoutTheRest) {
  make({kAlways, kAlways, kAlways});
  std::atomic<int> waiting{0};
  std::atomic<bool> is_over{false};
  memories_[1]->after_get = [&] {
    while (waiting < 2) std::this_thread::yield();
    while (!is_over) std::this_thread::yield();
  };
  on_all(ranks_, [&](Communicator& comm) {
    Floats data(kCount, false);
    data.fill(1);
    if (comm.rank() == 1) {
      (void)failed_all_reduce(comm, data.span());
      return;
    }
    Work work = comm.all_reduce(data.span());
    // By then all is done that can be done without rank 1.
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
    while (!deadline.passed()) EXPECT_FALSE(work.done());
    ++waiting;
    if (comm.rank() == 0) {
      while (waiting < 2) std::this_thread::yield();
      comm.abort("a test");
      is_over = true;
    }
    // It looks only now and then, like a program that computes meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(work.wait_status().ok());
    EXPECT_NE(std::ranges::count(data.span(), 3.0f), static_cast<long>(kCount));
  });
}

// Nobody is told that a communicator is gone; a rank that still needs it finds out.
TEST_F(SingleCopyTest, ADestroyedCommunicatorIsNoticedByWhoCopiesOfIt) {
  make({kAlways, kAlways});
  std::atomic<bool> is_destroyed{false};
  memories_[1]->after_get = [&] {
    while (!is_destroyed) std::this_thread::yield();
  };
  on_each(ranks_, [&](std::unique_ptr<Communicator>& comm) {
    Floats data(kCount, false);
    data.fill(1);
    if (comm->rank() == 1) {
      const TimePoint begin = Clock::now();
      (void)failed_all_reduce(*comm, data.span());
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
      return;
    }
    {
      Work work = comm->all_reduce(data.span());
      const Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
      while (!deadline.passed()) EXPECT_FALSE(work.done());
      comm.reset();
    }
    is_destroyed = true;
  });
}

// A rank that is slow to read finds that the others have abandoned the operation, and leaves their
// memory alone.
TEST_F(SingleCopyTest, WhoHasAbandonedItIsNotReadFrom) {
  make({kAlways, kAlways});
  std::atomic<bool> is_gone{false};
  on_each(ranks_, [&](std::unique_ptr<Communicator>& comm) {
    auto data = std::make_unique<Floats>(kCount, false);
    data->fill(1);
    if (comm->rank() == 0) {
      EXPECT_THROW(
          comm->all_reduce(data->span(), {.timeout = std::chrono::milliseconds(100)}).wait(),
          Timeout);
      data.reset();
      is_gone = true;
      return;
    }
    EXPECT_TRUE(comes_true([&] { return is_gone.load(); }));
    (void)failed_all_reduce(*comm, data->span());
  });
  EXPECT_EQ(copies(), 0);
}

}  // namespace
}  // namespace stretto::testing
