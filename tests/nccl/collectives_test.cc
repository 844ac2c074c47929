// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compares every collective on device memory with the same program on host memory. NCCL and the
// device are a double (fake_nccl/fake.h).

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <complex>
#include <cstring>
#include <memory>
#include <optional>

#include "stretto/base/rank_vector.h"
#include "tests/support/double_ranks.h"
#include "tests/support/run_ranks.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

// Buffers in one kind of memory, and their content at the end of a program.
class Buffers {
 public:
  explicit Buffers(std::optional<int> device, Communicator* maker = nullptr)
      : device_(device), maker_(maker) {}

  template <class T>
  View make(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    std::byte* data = nullptr;
    if (!device_) {
      host_.push_back(std::make_unique<std::byte[]>(bytes + 1));
      data = host_.back().get();
    } else if (bytes > 0 && maker_ != nullptr) {
      made_.push_back(maker_->allocate_bytes(bytes, device_));
      data = made_.back().bytes().data();
    } else if (bytes > 0) {  // Empty buffers have no address.
      data = Double::get().allocate(bytes, *device_);
    }
    if (bytes > 0) std::memcpy(reach(data), values.data(), bytes);
    views_.emplace_back(data, values.size(), dtype_of<T>);
    return views_.back();
  }
  View numbers(std::size_t count, int rank) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7 + rank) % 11);
    return make(values);
  }
  View zeros(std::size_t count) { return make(std::vector<float>(count)); }

  // The content of all buffers, in the order in which they were made.
  std::vector<std::string> contents() const {
    std::vector<std::string> all;
    for (const View& view : views_) {
      if (view.bytes() == 0) continue;
      all.emplace_back(reinterpret_cast<const char*>(reach(view.data)), view.bytes());
    }
    return all;
  }

 private:
  std::byte* reach(std::byte* data) const { return device_ ? Double::get().reach(data) : data; }
  std::optional<int> device_;  // Empty: the host.
  Communicator* maker_;        // Makes the device memory; null: the program does.
  std::vector<Memory> made_;
  std::vector<std::unique_ptr<std::byte[]>> host_;
  std::vector<View> views_;
};

using Program = void (*)(Communicator&, Buffers&);

enum class MadeBy { program, communicator };

// Runs `program` on both kinds of memory, and compares the content that it leaves.
void expect_same(Program program, int size = 3, MadeBy made_by = MadeBy::program) {
  RankVector<std::vector<std::string>> on_host(size);
  RankVector<std::vector<std::string>> on_device(size);
  run_ranks(size, [&](Communicator& ranks) {
    Buffers buffers(ranks.device());
    program(ranks, buffers);
    on_host[ranks.rank()] = buffers.contents();
  });
  Double::get().reset();
  {
    DoubleRanks ranks({.size = size});
    ranks.on_all([&](Communicator& rank) {
      Buffers buffers(rank.device(), made_by == MadeBy::communicator ? &rank : nullptr);
      program(rank, buffers);
      on_device[rank.rank()] = buffers.contents();
    });
  }
  EXPECT_EQ(on_host, on_device);
  EXPECT_EQ(Double::get().control().misuse, "");
  EXPECT_GT(Double::get().control().launches, 0);
  EXPECT_EQ(Double::get().control().aborts, 0);
}

template <class T>
void reduce_dtype(Communicator& ranks, Buffers& buffers, std::initializer_list<ReduceOp> ops) {
  for (const ReduceOp op : ops) {
    const int rank = ranks.rank().value();
    std::vector<T> values;
    for (int i = 0; i < 9; ++i) values.push_back(T(static_cast<float>((i + rank) % 3 + 1)));
    const View view = buffers.make(values);
    ranks.all_reduce(view, {.op = op}).wait();
  }
}

TEST(NcclDouble, ReducesEveryDtypeThatNcclHas) {
  expect_same(
      [](Communicator& ranks, Buffers& buffers) {
        using enum ReduceOp;
        reduce_dtype<float>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<double>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<Half>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<BFloat16>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::int8_t>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::uint8_t>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::int32_t>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::uint32_t>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::int64_t>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::uint64_t>(ranks, buffers, {sum, mean, product, min, max});
        reduce_dtype<std::complex<float>>(ranks, buffers, {sum, mean});
        reduce_dtype<std::complex<double>>(ranks, buffers, {sum, mean});
        const auto flag = static_cast<std::uint8_t>(ranks.rank() == 1);
        for (const ReduceOp op : {sum, product, min, max, bit_and, bit_or}) {
          View flags = buffers.make(std::vector<std::uint8_t>{1, flag, 0});
          flags.dtype = DType::boolean;
          ranks.all_reduce(flags, {.op = op}).wait();
        }
      },
      4);
}

TEST(NcclDouble, SaysWhichMemoryItReaches) {
  DoubleRanks ranks({.size = 2});
  const std::byte* const on_device = Double::get().allocate(4, 0);
  const std::byte on_host{};
  ranks.on_all([&](Communicator& rank) {
    EXPECT_EQ(rank.device(), rank.rank().value());
    EXPECT_TRUE(rank.is_device_memory(on_device));
    EXPECT_FALSE(rank.is_device_memory(&on_host));
    EXPECT_FALSE(rank.is_device_memory(nullptr));
  });
  run_ranks(2, [&](Communicator& rank) {
    EXPECT_EQ(rank.device(), std::nullopt);
    EXPECT_FALSE(rank.is_device_memory(on_device));
  });
}

// Without a progress thread, rank 0 may go on only when it waits for its device.
TEST(NcclDouble, BeginsWhenTheLastRankSubmits) {
  DoubleRanks ranks(
      {.size = 2, .heartbeat = std::chrono::seconds(30), .progress_thread = ProgressThread::never});
  std::atomic<int> turn = 0;
  const auto wait_for_turn = [&](int number) {
    EXPECT_TRUE(comes_true([&] { return turn == number; }));
  };
  ranks.on_all([&](Communicator& rank) {
    const View mine = on_device(rank, 8);
    if (rank.rank() == 0) wait_for_turn(1);
    const int before = Double::get().control().launches;
    Work work = rank.all_reduce(mine);
    EXPECT_EQ(Double::get().control().launches, before + (rank.rank() == 0 ? 1 : 0));
    ++turn;
    wait_for_turn(2);
    work.wait();
  });
}

TEST(NcclDouble, MultipliesBeforeSums) {
  expect_same(
      [](Communicator& ranks, Buffers& buffers) {
        const int rank = ranks.rank().value();
        const double factor = 1 << rank;  // Differs between ranks.
        ranks.all_reduce(buffers.numbers(40, rank), {.factor = factor}).wait();
        ranks.all_reduce(buffers.numbers(40, rank), {.op = ReduceOp::mean, .factor = 2}).wait();
        ranks.all_reduce(buffers.numbers(40, rank), buffers.zeros(40), {.factor = factor}).wait();
        ranks.reduce(buffers.numbers(40, rank), buffers.zeros(40), {.root = 2, .factor = 0.5})
            .wait();
        ranks.reduce_scatter(buffers.numbers(16, rank), buffers.zeros(4), {.factor = 0.25}).wait();
        const std::array list = {buffers.numbers(3, rank), buffers.numbers(5, rank)};
        ranks.all_reduce_coalesced(list, {.factor = factor}).wait();
      },
      4);
}

TEST(NcclDouble, MovesSharesOfAnyLength) {
  expect_same([](Communicator& ranks, Buffers& buffers) {
    const int rank = ranks.rank().value();
    const RankVector<std::size_t> counts = {4, 0, 3};  // Rank 1 has no elements.
    const std::size_t own = counts[rank];
    const auto at_root = [&](std::size_t count) { return rank == 2 ? count : 0; };
    ranks.all_gather(buffers.numbers(5, rank), buffers.zeros(15)).wait();
    ranks.all_gather(buffers.numbers(own, rank), buffers.zeros(7), {.counts = counts}).wait();
    ranks.reduce_scatter(buffers.numbers(6, rank), buffers.zeros(2)).wait();
    ranks.reduce_scatter(buffers.numbers(7, rank), buffers.zeros(own), {.counts = counts}).wait();
    ranks.gather(buffers.numbers(2, rank), buffers.zeros(at_root(6)), {.root = 2}).wait();
    ranks
        .gather(buffers.numbers(own, rank), buffers.zeros(at_root(7)),
                {.root = 2, .counts = counts})
        .wait();
    ranks.scatter(buffers.numbers(at_root(6), rank), buffers.zeros(2), {.root = 2}).wait();
    ranks
        .scatter(buffers.numbers(at_root(7), rank), buffers.zeros(own),
                 {.root = 2, .counts = counts})
        .wait();
    ranks.broadcast(buffers.numbers(9, rank), {.root = 1}).wait();
    ranks.broadcast(buffers.make(std::vector<Float8E4M3>(5)), {.root = 1}).wait();
    ranks.reduce(buffers.numbers(9, rank), {.op = ReduceOp::max, .root = 1}).wait();
    ranks.barrier().wait();
  });
}

TEST(NcclDouble, ExchangesBetweenAllPairs) {
  expect_same([](Communicator& ranks, Buffers& buffers) {
    const int rank = ranks.rank().value();
    ranks.all_to_all(buffers.numbers(6, rank), buffers.zeros(6)).wait();
    const View in_place = buffers.numbers(6, rank);
    ranks.all_to_all(in_place, in_place).wait();
    // Rank s sends (s + d) % 3 elements to rank d: no two ranks send the same numbers, and some are
    // 0.
    std::vector<std::size_t> counts;
    for (int d = 0; d < 3; ++d) counts.push_back(static_cast<std::size_t>((rank + d) % 3));
    ranks
        .all_to_all(buffers.numbers(3, rank), buffers.zeros(3),
                    {.send_counts = counts, .recv_counts = counts})
        .wait();
    // Only rank 0 sends elements, to itself and to rank 2. The other ranks' buffers do not tell
    // that there is a device.
    const std::vector<std::size_t> sent =
        rank == 0 ? std::vector<std::size_t>{1, 0, 2} : std::vector<std::size_t>{0, 0, 0};
    const std::vector<std::size_t> received = {rank == 0 ? 1u : rank == 2 ? 2u : 0u, 0, 0};
    ranks
        .all_to_all(buffers.numbers(rank == 0 ? 3 : 0, rank), buffers.zeros(received[0]),
                    {.send_counts = sent, .recv_counts = received})
        .wait();
  });
}

TEST(NcclDouble, TakesListsWithoutPackingThem) {
  expect_same([](Communicator& ranks, Buffers& buffers) {
    const int rank = ranks.rank().value();
    const auto own = static_cast<std::size_t>(rank);
    const std::array list = {buffers.numbers(3, rank), buffers.numbers(0, rank),
                             buffers.make(std::vector<double>(4, rank + 1))};
    ranks.all_reduce_coalesced(list).wait();
    ranks.broadcast_coalesced(list, {.root = 2}).wait();
    const std::vector<std::size_t> counts = {2, 1, 3};
    std::vector<View> parts;
    std::vector<View> other_parts;
    for (const std::size_t count : counts) {
      parts.push_back(buffers.zeros(count));
      other_parts.push_back(buffers.numbers(count, rank));
    }
    const std::vector<ConstView> inputs(other_parts.begin(), other_parts.end());
    ranks.all_gather_list(buffers.numbers(counts[own], rank), parts).wait();
    ranks.reduce_scatter_list(inputs, buffers.zeros(counts[own])).wait();
    const bool is_root = rank == 1;
    ranks
        .gather_list(buffers.numbers(counts[own], rank),
                     is_root ? std::span<const View>(parts) : std::span<const View>(),
                     {.root = 1, .counts = counts})
        .wait();
    ranks
        .scatter_list(is_root ? std::span<const ConstView>(inputs) : std::span<const ConstView>(),
                      buffers.zeros(counts[own]), {.root = 1, .counts = counts})
        .wait();
    std::vector<ConstView> sent;
    std::vector<View> received;
    for (int other = 0; other < 3; ++other) {
      sent.emplace_back(buffers.numbers(static_cast<std::size_t>(rank + other), rank));
      received.push_back(buffers.zeros(static_cast<std::size_t>(rank + other)));
    }
    ranks.all_to_all_list(sent, received).wait();
  });
}

TEST(NcclDouble, RunsOnMemoryThatItHasMade) {
  expect_same(
      [](Communicator& ranks, Buffers& buffers) {
        const int rank = ranks.rank().value();
        const RankVector<std::size_t> counts = {4, 0, 3};
        ranks.all_reduce(buffers.numbers(40, rank), {.factor = 2}).wait();
        ranks.all_reduce(buffers.numbers(40, rank), buffers.zeros(40)).wait();
        ranks.reduce(buffers.numbers(9, rank), {.op = ReduceOp::max, .root = 1}).wait();
        ranks.broadcast(buffers.numbers(9, rank), {.root = 1}).wait();
        ranks.all_gather(buffers.numbers(counts[rank], rank), buffers.zeros(7), {.counts = counts})
            .wait();
        ranks.reduce_scatter(buffers.numbers(6, rank), buffers.zeros(2)).wait();
        ranks.gather(buffers.numbers(2, rank), buffers.zeros(rank == 2 ? 6 : 0), {.root = 2})
            .wait();
        ranks.scatter(buffers.numbers(rank == 2 ? 6 : 0, rank), buffers.zeros(2), {.root = 2})
            .wait();
        ranks.all_to_all(buffers.numbers(6, rank), buffers.zeros(6)).wait();
        const std::array list = {buffers.numbers(3, rank), buffers.make(std::vector<double>(4, 1))};
        ranks.all_reduce_coalesced(list).wait();
      },
      3, MadeBy::communicator);
  EXPECT_EQ(Double::get().control().registrations, 0);
  EXPECT_EQ(Double::get().control().made_blocks, 0);
}

TEST(NcclDouble, RunsForARankThatIsAlone) {
  expect_same(
      [](Communicator& ranks, Buffers& buffers) {
        ranks.all_reduce(buffers.numbers(4, 0), buffers.zeros(4)).wait();
        ranks.all_to_all(buffers.numbers(4, 0), buffers.zeros(4)).wait();
      },
      1);
}

TEST(NcclDouble, SeveralOperationsAreInFlightAndKeepTheirOrder) {
  expect_same([](Communicator& ranks, Buffers& buffers) {
    const int rank = ranks.rank().value();
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(ranks.all_reduce(buffers.numbers(100, rank + i)));
      works.push_back(ranks.broadcast(buffers.numbers(10, rank + i), {.root = i % 3}));
    }
    for (Work& work : works) work.wait();
  });
}

}  // namespace
}  // namespace stretto::testing
