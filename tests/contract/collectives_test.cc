// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Every collective by every algorithm against a serial oracle, on ranks that are threads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "stretto/kernel/reduce.h"
#include "stretto/schedule/algorithms.h"
#include "tests/contract/rank_threads.h"

namespace stretto::testing {
namespace {

using Bytes = std::vector<std::byte>;

// Element `index` of rank `rank`: small numbers, none of which is exactly a sum of others in f16.
void fill(View view, int rank) {
  for (std::size_t i = 0; i < view.count; ++i) {
    const double value =
        0.37 * static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 13) % 41) - 5;
    std::byte* at = view.data + i * size_bytes(view.dtype);
    const auto put = [&](auto number) { std::memcpy(at, &number, sizeof(number)); };
    switch (view.dtype) {
      case DType::f32:
        put(static_cast<float>(value));
        break;
      case DType::f64:
        put(value);
        break;
      case DType::f16:  // Any finite pattern will do: the oracle reads the same bits.
        put(static_cast<std::uint16_t>(0x3000 +
                                       (i * 37 + static_cast<std::size_t>(rank) * 101) % 0x0fff));
        break;
      case DType::bf16:
        put(static_cast<std::uint16_t>(0x3f00 +
                                       (i * 37 + static_cast<std::size_t>(rank) * 101) % 0x00ff));
        break;
      case DType::i32:
        put(static_cast<std::int32_t>(value * 1000));
        break;
      case DType::i64:
        put(static_cast<std::int64_t>(value * 1e9));
        break;
      case DType::boolean:
        put((i + static_cast<std::size_t>(rank)) % 3 != 0);
        break;
      default:
        put(static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(rank) * 17));
    }
  }
}

Bytes input_of(int rank, std::size_t count, DType dtype) {
  Bytes bytes(count * size_bytes(dtype));
  fill({bytes.data(), count, dtype}, rank);
  return bytes;
}

// The kernel itself is tested against a scalar serial sum; here it is the serial reduction in the
// promised order, of whole inputs that lie side by side.
Bytes reduced(int ranks, std::size_t count, DType dtype, ReduceOp op) {
  std::vector<Bytes> inputs;
  std::vector<kernel::Input> views;
  for (int r = 0; r < ranks; ++r) inputs.push_back(input_of(r, count, dtype));
  for (const Bytes& input : inputs) views.push_back({input.data(), dtype});
  Bytes result(count * size_bytes(dtype));
  void* output = result.data();
  const Status status = kernel::reduce({.dtype = dtype,
                                        .output_dtype = dtype,
                                        .op = op,
                                        .divisor = op == ReduceOp::mean ? ranks : 1,
                                        .count = count,
                                        .inputs = views,
                                        .outputs = {&output, 1}});
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

struct Case {
  int ranks;
  bool shared_memory;
  bool registered;
  std::string algorithm;
};

std::string describe_case(const Case& c) {
  return std::to_string(c.ranks) + " ranks, " + (c.algorithm.empty() ? "chosen" : c.algorithm) +
         (c.shared_memory ? ", shared memory" : ", messages") +
         (c.registered ? ", registered" : "");
}

// Owns a buffer that is registered or not.
struct Owned {
  Owned(Communicator& comm, const Bytes& content, bool registered) {
    if (registered) {
      memory = comm.allocate_bytes(content.size());
      bytes = memory.bytes();
    } else {
      own.resize(content.size());
      bytes = own;
    }
    std::copy(content.begin(), content.end(), bytes.begin());
  }
  Memory memory;
  Bytes own;
  std::span<std::byte> bytes;
};

Bytes copy_of(std::span<std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

bool exists(Collective collective, const std::string& algorithm) {
  using schedule::Access;
  return algorithm.empty() ||
         schedule::find_algorithm(collective, Access::messages, algorithm) != nullptr ||
         schedule::find_algorithm(collective, Access::mapped, algorithm) != nullptr;
}

void check_all_reduce(Communicator& comm, const Case& c, std::size_t count, DType dtype,
                      ReduceOp op, const Bytes& expected) {
  const Bytes mine = input_of(comm.rank().value(), count, dtype);
  const std::string where = describe_case(c) + " all_reduce " + std::string(name(op)) + " " +
                            std::string(name(dtype)) + " " + std::to_string(count);
  const AllReduceOptions options{.op = op, .algorithm = c.algorithm};
  Owned input(comm, mine, c.registered);
  Owned output(comm, Bytes(mine.size(), std::byte{0x5a}), c.registered);
  comm.all_reduce(ConstView(input.bytes.data(), count, dtype),
                  View(output.bytes.data(), count, dtype), options)
      .wait();
  // A ring combines in another order, so floating point may differ in the last bits.
  const bool exact = c.algorithm != "ring" || !is_floating_point(dtype);
  EXPECT_TRUE(!exact || copy_of(output.bytes) == expected) << where;
  EXPECT_EQ(copy_of(input.bytes), mine) << where << ": the input was changed";
  comm.all_reduce(View(input.bytes.data(), count, dtype), options).wait();
  EXPECT_EQ(copy_of(input.bytes), copy_of(output.bytes)) << where << ": in place differs";
}

void check_shards(Communicator& comm, const Case& c, std::size_t shard) {
  const auto ranks = static_cast<std::size_t>(c.ranks);
  const auto rank = static_cast<std::size_t>(comm.rank());
  const DType dtype = DType::f32;
  const std::size_t bytes = shard * 4;
  if (exists(Collective::reduce_scatter, c.algorithm) && c.algorithm != "ring") {
    const Bytes whole = reduced(c.ranks, shard * ranks, dtype, ReduceOp::sum);
    Owned input(comm, input_of(comm.rank().value(), shard * ranks, dtype), c.registered);
    Owned output(comm, Bytes(bytes), c.registered);
    comm.reduce_scatter(ConstView(input.bytes.data(), shard * ranks, dtype),
                        View(output.bytes.data(), shard, dtype), {.algorithm = c.algorithm})
        .wait();
    EXPECT_TRUE(std::equal(output.bytes.begin(), output.bytes.end(),
                           whole.begin() + static_cast<std::ptrdiff_t>(rank * bytes)))
        << describe_case(c) << " reduce_scatter " << shard;
    EXPECT_EQ(copy_of(input.bytes), input_of(comm.rank().value(), shard * ranks, dtype));
  }
  if (exists(Collective::all_gather, c.algorithm)) {
    Owned input(comm, input_of(comm.rank().value(), shard, dtype), c.registered);
    Owned output(comm, Bytes(bytes * ranks), c.registered);
    comm.all_gather(ConstView(input.bytes.data(), shard, dtype),
                    View(output.bytes.data(), shard * ranks, dtype), {.algorithm = c.algorithm})
        .wait();
    for (std::size_t r = 0; r < ranks; ++r) {
      const Bytes theirs = input_of(static_cast<int>(r), shard, dtype);
      EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(),
                             output.bytes.begin() + static_cast<std::ptrdiff_t>(r * bytes)))
          << describe_case(c) << " all_gather " << shard << " of rank " << r;
    }
  }
}

void check_broadcast(Communicator& comm, const Case& c, std::size_t count) {
  if (!exists(Collective::broadcast, c.algorithm)) return;
  for (int root = 0; root < c.ranks; ++root) {
    Owned data(comm, input_of(comm.rank().value(), count, DType::i32), c.registered);
    comm.broadcast(View(data.bytes.data(), count, DType::i32),
                   {.root = root, .algorithm = c.algorithm})
        .wait();
    EXPECT_EQ(copy_of(data.bytes), input_of(root, count, DType::i32))
        << describe_case(c) << " broadcast " << count << " from " << root;
  }
}

class Collectives : public ::testing::TestWithParam<Case> {};

TEST_P(Collectives, EqualTheSerialOracle) {
  const Case& c = GetParam();
  auto ranks = make_thread_ranks({.size = c.ranks, .shared_memory = c.shared_memory});
  const auto p = static_cast<std::size_t>(c.ranks);
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, std::size_t{97}}) {
    for (int d = 0; d < kDTypeCount; ++d) {
      for (int o = 0; o < kReduceOpCount; ++o) {
        const auto dtype = static_cast<DType>(d);
        const auto op = static_cast<ReduceOp>(o);
        if (!supports(op, dtype) || !exists(Collective::all_reduce, c.algorithm)) continue;
        const Bytes expected = reduced(c.ranks, count, dtype, op);
        on_all_ranks(ranks, [&](Communicator& comm) {
          check_all_reduce(comm, c, count, dtype, op, expected);
        });
      }
    }
    on_all_ranks(ranks, [&](Communicator& comm) {
      check_shards(comm, c, count);
      check_broadcast(comm, c, count);
      comm.barrier().wait();
    });
  }
}

TEST_P(Collectives, LargerThanASegment) {
  const Case& c = GetParam();
  if (c.ranks > 5 || !exists(Collective::all_reduce, c.algorithm)) return;
  auto ranks = make_thread_ranks({.size = c.ranks, .shared_memory = c.shared_memory});
  const std::size_t count = 700001;  // Several segments, an odd tail.
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    const Bytes expected = reduced(c.ranks, count, dtype, ReduceOp::sum);
    on_all_ranks(ranks, [&](Communicator& comm) {
      check_all_reduce(comm, c, count, dtype, ReduceOp::sum, expected);
    });
  }
  on_all_ranks(ranks, [&](Communicator& comm) {
    check_shards(comm, c, 300007);
    check_broadcast(comm, c, 300007);
  });
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
    list.push_back({ranks, false, false, ""});
    list.push_back({ranks, true, false, ""});
    list.push_back({ranks, true, true, ""});
    for (const char* algorithm : {"ring", "direct", "recursive_doubling", "binomial_tree"}) {
      list.push_back({ranks, false, false, algorithm});
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(, Collectives, ::testing::ValuesIn(cases()), [](const auto& tested) {
  const Case& c = tested.param;
  return "ranks" + std::to_string(c.ranks) + (c.algorithm.empty() ? "_chosen" : "_" + c.algorithm) +
         (c.shared_memory ? "_mapped" : "_messages") + (c.registered ? "_registered" : "");
});

}  // namespace
}  // namespace stretto::testing
