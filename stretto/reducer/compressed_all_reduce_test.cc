// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compressed all_reduce without training: residuals are kept under the names of vectors.

#include "stretto/reducer/compressed_all_reduce.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::message_of;
using Floats = std::vector<float>;

Floats random_floats(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(random.uniform()) - 0.5f;
  return values;
}

TEST(CompressedAllReduce, KeepsResidualsByName) {
  run_ranks(2, [](Communicator& communicator) {
    CompressionState state;
    const auto half = top_k({.density = 0.5});
    Floats data = {4, 1, 3, 2};
    const auto cost = all_reduce(communicator, data, {half, &state, "x"});
    EXPECT_EQ(data, (Floats{8, 0, 6, 0}));
    EXPECT_EQ(cost.sent_values, 2u);
    data = {0, 0, 0, 0};
    all_reduce(communicator, data, {half, &state, "y"});
    EXPECT_EQ(data, (Floats{0, 0, 0, 0})) << "another name";
    EXPECT_TRUE(state.residual("z").empty());
    EXPECT_EQ(state.residual("x")[1], 1);
    all_reduce(communicator, data,
               {.codec = top_k({.density = 0.5}), .state = &state, .name = "x"});
    EXPECT_EQ(data, (Floats{0, 2, 0, 4}));
    state.forget("x");
    data = {1, 2};
    all_reduce(communicator, data, {half, &state, "x", ReduceOp::mean});
    EXPECT_EQ(data, (Floats{0, 2}));
  });
}

TEST(CompressedAllReduce, WithoutAStateNothingIsKept) {
  run_ranks(2, [](Communicator& communicator) {
    for (int call = 0; call < 2; ++call) {
      Floats data = {4, 1, 3, 2};
      all_reduce(communicator, data, {.codec = top_k({.density = 0.5})});
      EXPECT_EQ(data, (Floats{8, 0, 6, 0}));
    }
  });
}

// With `gather`, a rank receives 3 whole messages; with `divide`, 3/4 of 2 messages.
TEST(CompressedAllReduce, PartsAreFewerBytesThanWholesOfManyRanks) {
  std::size_t received[2] = {};
  for (const auto exchange : {CompressedExchange::gather, CompressedExchange::divide}) {
    run_ranks(4, [&](Communicator& communicator) {
      Floats data = random_floats(100000, static_cast<std::uint64_t>(communicator.rank().value()));
      const auto cost =
          all_reduce(communicator, data, {.codec = top_k({.density = 0.05}), .exchange = exchange});
      const std::ptrdiff_t few = std::ranges::count_if(data, [](float sum) { return sum != 0; });
      EXPECT_EQ(few <= 5004, exchange == CompressedExchange::divide) << few;
      if (communicator.rank() == 0) {
        received[exchange == CompressedExchange::divide ? 1 : 0] = cost.received_bytes;
      }
    });
  }
  EXPECT_LT(received[1], received[0] * 6 / 10);
}

// Adds rounded values in the order of ranks. If `is_rounded`, the sum travels as a rounded quarter.
template <class Number>
Floats sum_of_rounded(std::size_t count, int ranks, bool is_rounded) {
  Floats sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const Floats values = random_floats(count, static_cast<std::uint64_t>(rank));
    for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<float>(Number(values[i]));
  }
  for (float& value : sum) value = is_rounded ? 4 * static_cast<float>(Number(value / 4)) : value;
  return sum;
}

// With four ranks, gathering messages of half the size would receive as many bytes as an all_reduce
// without a codec. So they are divided.
TEST(CompressedAllReduce, HalvesAreRoundedOnceForEachTimeTheyTravel) {
  constexpr std::size_t kCount = 30000;
  for (const int ranks : {2, 3, 4}) {
    const bool is_divided = ranks == 4;
    run_ranks(ranks, [&](Communicator& communicator) {
      const Floats own =
          random_floats(kCount, static_cast<std::uint64_t>(communicator.rank().value()));
      Floats data = own;
      const auto cost = all_reduce(communicator, data, {.codec = f16()});
      EXPECT_EQ(data, sum_of_rounded<Half>(kCount, ranks, is_divided)) << ranks;
      const std::size_t one = 2 * kCount;
      const std::size_t received =
          is_divided ? one * 3 / 2 : one * static_cast<std::size_t>(ranks - 1);
      EXPECT_NEAR(static_cast<double>(cost.received_bytes), static_cast<double>(received), 1000);
      data = own;
      all_reduce(communicator, data, {.codec = bf16()});
      EXPECT_EQ(data, sum_of_rounded<BFloat16>(kCount, ranks, is_divided)) << ranks;
    });
  }
}

TEST(CompressedAllReduce, WhatHalvesLackOrClipComesLater) {
  run_ranks(2, [](Communicator& communicator) {
    CompressionState state;
    float sum = 0;
    for (int call = 0; call < 4; ++call) {
      Floats data = {1 + 0x1p-12f};
      all_reduce(communicator, data, {.codec = f16(), .state = &state, .name = "x"});
      sum += data[0];
    }
    EXPECT_EQ(sum, 8 + 0x1p-9f);
    for (const Floats& expected : {Floats{100, 0.5f}, Floats{100, 0}, Floats{50, 0}}) {
      Floats data = {expected[1] > 0 ? 250.0f : 0.0f, expected[1]};
      all_reduce(communicator, data, {f16({.clip = 100}), &state, "clipped", ReduceOp::mean});
      EXPECT_EQ(data, expected);
    }
  });
  EXPECT_THROW((void)bf16({.clip = 0}), InvalidArgument);
  EXPECT_THROW((void)f16({.clip = 1e-9f}), InvalidArgument) << "zero in this type";
  EXPECT_EQ(bf16({.clip = 2})->name(), "bf16, clipped at 2");
}

// bfloat16 has no 0.1; the nearest number is greater.
TEST(CompressedAllReduce, ALimitThatTheTypeDoesNotHaveIsRoundedDown) {
  run_ranks(2, [](Communicator& communicator) {
    Floats data = {100};
    all_reduce(communicator, data, {.codec = bf16({.clip = 0.1f})});
    EXPECT_LE(data[0], 0.2f);
    EXPECT_GT(data[0], 0.199f);
  });
}

// With four ranks, gradients in half precision are divided.
TEST(CompressedAllReduce, LimitsAreOfRanksAndNotOfTheirSums) {
  run_ranks(4, [](Communicator& communicator) {
    const auto expect = [&](const std::shared_ptr<const Codec>& codec, float each, ReduceOp op,
                            float expected) {
      Floats data(4000, each);
      const auto cost = all_reduce(communicator, data, {.codec = codec, .op = op});
      EXPECT_EQ(data, Floats(4000, expected)) << codec->name();
      EXPECT_LT(cost.received_bytes, 16000u) << "not divided";
    };
    for (const auto& codec : {f16({.clip = 1.5f}), bf16({.clip = 1.5f})}) {
      expect(codec, 1, ReduceOp::sum, 4);
      expect(codec, 100, ReduceOp::sum, 6);
      expect(codec, 100, ReduceOp::mean, 1.5f);
    }
    expect(f16(), 20000, ReduceOp::sum, 80000);
    expect(f16(), 20000, ReduceOp::mean, 20000);
    expect(bf16(), 0x1p100f, ReduceOp::sum, 0x1p102f);
  });
}

// What a rank has clipped stays with that rank, and does not travel with the sum.
TEST(CompressedAllReduce, WhatOneRankClipsComesLaterWhereItIsDivided) {
  run_ranks(4, [](Communicator& communicator) {
    CompressionState state;
    const bool is_first = communicator.rank() == Rank(0);
    for (const float left : {8.5f, 7.0f, 5.5f}) {
      Floats data(4000, is_first && left == 8.5f ? 10.0f : 0.0f);
      all_reduce(communicator, data, {bf16({.clip = 1.5f}), &state, "x"});
      EXPECT_EQ(data, Floats(4000, 1.5f));
      EXPECT_EQ(state.residual("x")[0], is_first ? left : 0);
      EXPECT_EQ(state.residual("x")[3999], is_first ? left : 0);
    }
  });
}

TEST(CompressedAllReduce, WhatRanksDoNotAgreeAboutIsRefusedAndBothAreNamed) {
  run_ranks(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == Rank(0);
    CompressionState state;
    Floats data(5000, 1.0f);
    const auto text_of = [&](const CompressedAllReduceOptions& options, std::size_t count) {
      return message_of<Mismatch>(
          [&] { all_reduce(communicator, std::span(data).first(count), options); });
    };
    for (CompressionState* const where : {&state, static_cast<CompressionState*>(nullptr)}) {
      std::string text = text_of({top_k({.density = first ? 0.1 : 0.2}), where, "x"}, 5000);
      expect_contains(text, "version 2: top_k(0.1) from");
      expect_contains(text, "version 2: top_k(0.2) from");
      expect_contains(text, "on rank 1; give all ranks the same options");
      text = text_of({int8(), where, "x"}, first ? 5000 : 4999);
      expect_contains(text, "sum of 'x', 5000 elements' on rank 0 and by");
      expect_contains(text, "sum of 'x', 4999 elements' on rank 1");
    }
    // The calls that were refused have left nothing behind.
    EXPECT_EQ(text_of({int8(), &state, "x"}, 5000), "");
    EXPECT_EQ(data[0], 2);
  });
}

TEST(CompressedAllReduce, ANameStandsForOneVectorAndOneCodec) {
  run_ranks(2, [](Communicator& communicator) {
    CompressionState state;
    Floats data(4000, 1.0f);
    const auto text_of = [&](const CompressedAllReduceOptions& options, std::size_t count) {
      return message_of<InvalidArgument>(
          [&] { all_reduce(communicator, std::span(data).first(count), options); });
    };
    EXPECT_EQ(text_of({int8(), &state, "x"}, 4000), "");
    std::string text = text_of({int8(), &state, "x"}, 3000);
    expect_contains(text, "4000 elements' before, and now is");
    expect_contains(text, "3000 elements'; use another name");
    text = text_of({top_k(), &state, "x"}, 4000);
    expect_contains(text, ": int8 from");
    expect_contains(text, ": top_k(0.01) from");
    EXPECT_NE(text_of({int8(), &state, ""}, 4000), "");
    EXPECT_NE(text_of({nullptr, nullptr, ""}, 4000), "");
    EXPECT_NE(text_of({int8(), nullptr, "", ReduceOp::max}, 4000), "");
    EXPECT_EQ(text_of({int8(), &state, "x"}, 4000), "");
  });
}

// Reduces two vectors, one of them more often, with a codec whose rounding depends on the call.
std::vector<Floats> calls(Communicator& communicator, CompressionState& state, int begin, int end) {
  std::vector<Floats> results;
  const auto rank = static_cast<std::uint64_t>(communicator.rank().value());
  for (int call = begin; call < end; ++call) {
    const auto seed = static_cast<std::uint64_t>(10 * call) + rank;
    for (const char* const name : {"x", "y"}) {
      if (call % 2 == 1 && *name == 'y') continue;
      results.push_back(random_floats(1000, seed));
      all_reduce(communicator, results.back(), {int8({.stochastic = true}), &state, name});
    }
  }
  return results;
}

TEST(CompressedAllReduce, GoesOnBitForBitWhereItWasSaved) {
  run_ranks(2, [](Communicator& communicator) {
    CompressionState through, saved, restored;
    (void)calls(communicator, through, 0, 3);
    (void)calls(communicator, saved, 0, 3);
    restored.load(saved.save());
    EXPECT_EQ(restored.save(), saved.save()) << "before it is used";
    EXPECT_TRUE(std::ranges::equal(restored.residual("x"), saved.residual("x")));
    EXPECT_EQ(calls(communicator, restored, 3, 6), calls(communicator, through, 3, 6));
    for (std::size_t i = 0; i < saved.save().size(); i += 1 + i / 40 * 97) {
      std::vector<std::byte> damaged = saved.save();
      damaged[i] ^= std::byte{1};
      EXPECT_THROW(restored.load(damaged), InvalidArgument) << "byte " << i;
    }
    EXPECT_EQ(restored.save(), through.save()) << "after more calls, or by what was refused";
  });
}

TEST(CompressedAllReduce, ResidualsOfAnotherNumberOfRanksAreAddedUp) {
  RankVector<std::vector<std::byte>> states(3);
  Floats sums(1000);
  std::mutex mutex;
  const auto add_up = [&](CompressionState& state, const char* name, float sign) {
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < 1000; ++i) sums[i] += sign * state.residual(name)[i];
  };
  run_ranks(3, [&](Communicator& communicator) {
    CompressionState state;
    (void)calls(communicator, state, 0, 2);
    add_up(state, "x", 1);
    states[communicator.rank()] = state.save();
  });
  EXPECT_GT(std::ranges::count_if(sums, [](float sum) { return sum != 0; }), 500);
  const RankVector<std::vector<std::byte>> made = CompressionState::redistribute(states, 2);
  ASSERT_EQ(made.size(), 2u);
  run_ranks(2, [&](Communicator& communicator, int rank) {
    CompressionState state;
    Floats zeros(1000);
    state.load(states[rank]);
    const CompressedAllReduceOptions options{int8({.stochastic = true}), &state, "x"};
    EXPECT_THROW(all_reduce(communicator, zeros, options), InvalidArgument) << "of three ranks";
  });
  run_ranks(2, [&](Communicator& communicator) {
    CompressionState state;
    Floats data(1000);
    state.load(made[communicator.rank()]);
    all_reduce(communicator, data, {top_k({.density = 1}), &state, "x"});
    if (communicator.rank() != Rank(0)) return;
    for (std::size_t i = 0; i < 1000; ++i) EXPECT_NEAR(data[i], sums[i], 1e-6f);
  });
  EXPECT_THROW((void)CompressionState::redistribute({states.data(), 2}, 2), InvalidArgument);
  EXPECT_THROW((void)CompressionState::redistribute({}, 2), InvalidArgument);
}

TEST(CompressedAllReduce, AStateThatOneRankCannotUseIsRefusedOnAll) {
  std::vector<std::byte> of_rank_0;
  run_ranks(2, [&](Communicator& communicator) {
    const bool is_first = communicator.rank() == Rank(0);
    CompressionState state;
    (void)calls(communicator, state, 0, 2);
    if (is_first) of_rank_0 = state.save();
    communicator.barrier().wait();
    state.load(of_rank_0);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::string text =
          message_of<InvalidArgument>([&] { (void)calls(communicator, state, 2, 3); });
      expect_contains(text, is_first ? "rank 1 cannot use the hook" : "saved by rank 0");
    }
    state.forget("x");
    state.forget("y");
    (void)calls(communicator, state, 0, 2);
  });
}

// Two of three ranks go on in a smaller communicator, each with its own residual.
TEST(CompressedAllReduce, ResidualsStayWhereRanksBecomeFewer) {
  run_ranks(3, [](Communicator& communicator) {
    CompressionState state;
    const auto half = top_k({.density = 0.5});
    Floats data = {4, 1};
    all_reduce(communicator, data, {half, &state, "x"});
    EXPECT_EQ(data, (Floats{12, 0}));
    const bool goes_on = communicator.rank().value() < 2;
    const auto fewer = communicator.split({.color = goes_on ? std::optional(0) : std::nullopt});
    if (!goes_on) return;
    data = {0, 0};
    all_reduce(*fewer, data, {half, &state, "x"});
    EXPECT_EQ(data, (Floats{0, 2}));
  });
}

// This happens after a failure in a call that one rank had begun and the other had not.
TEST(CompressedAllReduce, RanksThatHaveBegunAnotherNumberOfCallsGoOn) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    CompressionState state;
    const auto half = top_k({.density = 0.5});
    Floats data = {4, 1};
    all_reduce(communicator, data, {half, &state, "x"});
    const auto alone = communicator.split({.color = rank});
    if (rank == 0) all_reduce(*alone, data, {half, &state, "x"});
    const auto again = communicator.split({.color = 0});
    data = {0, 5};
    EXPECT_NO_THROW(all_reduce(*again, data, {half, &state, "x"}));
    EXPECT_EQ(data[0], 0);
    EXPECT_GE(data[1], 10);
  });
}

// Rank 1 starts its operations only after rank 0 has started both of its own and said so.
void expect_starts_do_not_wait(const std::shared_ptr<const Codec>& codec) {
  run_ranks(2, [&](Communicator& communicator, int rank) {
    CompressionState state, blocking;
    std::map<std::string, Floats> data, expected;
    for (int call = 0; call < 3; ++call) {
      for (const char* const name : {"x", "y"}) {
        data[name] = random_floats(3000, static_cast<std::uint64_t>(10 * call + rank));
        expected[name] = data[name];
        all_reduce(communicator, expected[name], {codec, &blocking, name});
        if (call == 0) all_reduce(communicator, data[name], {codec, &state, name});
      }
      if (call == 0) continue;
      int token = 0;
      if (rank == 1) communicator.recv(std::span(&token, 1), {.from = 0}).wait();
      CompressedWork x = start_all_reduce(communicator, data["x"], {codec, &state, "x"});
      CompressedWork y = start_all_reduce(communicator, data["y"], {codec, &state, "y"});
      if (rank == 0) communicator.send(std::span(&token, 1), {.to = 1}).wait();
      expect_contains(message_of<InvalidArgument>([&] {
                        (void)start_all_reduce(communicator, data["x"], {codec, &state, "x"});
                      }),
                      "'x' is on its way");
      for (CompressedWork* const work : {rank == 0 ? &x : &y, rank == 0 ? &y : &x}) {
        EXPECT_GT(work->wait().sent_values, 0u);
        EXPECT_THROW(work->wait(), InvalidArgument);
      }
      EXPECT_EQ(data, expected) << codec->name();
    }
    EXPECT_EQ(state.save(), blocking.save());
  });
}

TEST(CompressedAllReduce, WhatIsStartedIsWaitedForInAnyOrder) {
  for (const auto& codec : {top_k({.density = 0.1}), f16()}) expect_starts_do_not_wait(codec);
}

TEST(CompressedAllReduce, WhatIsStartedAndForgottenEndsAll) {
  run_ranks(2, [](Communicator& communicator) {
    CompressionState state;
    const auto few = threshold({.limit = 0.1f});
    const CompressedAllReduceOptions options[] = {
        {.codec = int8()},
        {.codec = few},
        {.codec = few, .state = &state, .name = "x"},
        {.codec = int8(), .state = &state, .name = "y", .exchange = CompressedExchange::divide}};
    for (const CompressedAllReduceOptions& each : options) {
      Floats data(3000, 1.0f);
      (void)start_all_reduce(communicator, data, each);
      data.assign(3000, 2.0f);
      all_reduce(communicator, data, each);
      EXPECT_EQ(data, Floats(3000, 4.0f));
    }
  });
}

TEST(CompressedAllReduce, WhatOneRankForgetsItKnowsTheLengthsOf) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    CompressionState state;
    const CompressedAllReduceOptions options{threshold({.limit = 0.1f}), &state, "x"};
    Floats data(3000, 1.0f);
    if (CompressedWork work = start_all_reduce(communicator, data, options); rank > 0) work.wait();
    data.assign(3000, 2.0f);
    all_reduce(communicator, data, options);
    EXPECT_EQ(data, Floats(3000, 6.0f));
  });
}

// Rank 1 exchanges lengths by hand and takes no part in what follows, so that only rank 0
// can end the operation, by abandoning it.
TEST(CompressedAllReduce, WhatAnExceptionUnwindsIsAbandoned) {
  run_ranks(2, [](Communicator& communicator) {
    CompressionState state;
    const CompressedAllReduceOptions options{threshold({.limit = 0.1f}), &state, "x"};
    Floats data(3000, 1.0f);
    all_reduce(communicator, data, options);
    if (communicator.rank() == Rank(1)) {
      // Each rank sends two lengths: of the announced message, and of the encoded one.
      std::vector<std::uint64_t> lengths = {100, 100, 100, 100};
      const auto bytes = std::as_writable_bytes(std::span(lengths));
      communicator.all_gather(bytes.last(16), bytes).wait();
      EXPECT_THROW(communicator.recv(data, {.from = 0}).wait(), Aborted);
      return;
    }
    const auto fail = [&] {
      const CompressedWork work = start_all_reduce(communicator, data, options);
      throw std::logic_error("no more data");
    };
    EXPECT_THROW(fail(), std::logic_error);
    EXPECT_THROW(communicator.send(data, {.to = 1}).wait(), Aborted);
  });
}

// Returns how many operations a rank submits in `calls` calls. It reads the number of a barrier
// behind the calls, which the other rank does not join.
int operations_of(int calls, const CompressedAllReduceOptions& options) {
  std::string number;
  run_ranks(2, [&](Communicator& communicator) {
    Floats data(3000, 1.0f);
    for (int call = 0; call < calls; ++call) all_reduce(communicator, data, options);
    if (communicator.rank() == Rank(1)) {
      EXPECT_THROW(communicator.recv(data, {.from = 0}).wait(), Error);
      return;
    }
    const std::string text = message_of<Timeout>(
        [&] { communicator.barrier({.timeout = std::chrono::milliseconds(20)}).wait(); });
    const std::size_t place = text.find("barrier() #");
    ASSERT_NE(place, std::string::npos) << text;
    number = text.substr(place + 11);
  });
  return std::stoi(number);
}

// Ranks agree in one operation; messages without a fixed length need another for their lengths.
TEST(CompressedAllReduce, WithoutAStateOneOperationMoreLetsRanksAgree) {
  const auto each = [](const CompressedAllReduceOptions& options) {
    return (operations_of(7, options) - operations_of(2, options)) / 5.0;
  };
  EXPECT_EQ(each({.codec = int8()}), 2);
  EXPECT_EQ(each({.codec = threshold({.limit = 0.1f})}), 3);
  EXPECT_EQ(each({.codec = int8(), .exchange = CompressedExchange::divide}), 3);
  EXPECT_EQ(each({.codec = int8(), .exchange = CompressedExchange::automatic}), 3);
}

// A communicator at the address of a destroyed one is not taken for that one.
TEST(CompressedAllReduce, EachCommunicatorAgreesAnew) {
  run_ranks(3, [](Communicator& communicator) {
    CompressionState state;
    const auto half = top_k({.density = 0.5});
    for (const int other : {1, 2}) {
      const auto pair = communicator.new_group({0, other});
      if (pair == nullptr) continue;
      Floats data = {4, 1};
      EXPECT_NO_THROW(all_reduce(*pair, data, {half, &state, "x"})) << other;
    }
  });
}

}  // namespace
}  // namespace stretto
