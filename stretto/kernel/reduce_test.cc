// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/reduce.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/kernel/reduce_oracle.h"
#include "stretto/kernel/reduce_test_support.h"

namespace stretto::kernel {
namespace {

class ReduceTest : public ::testing::Test {
 protected:
  ~ReduceTest() override { EXPECT_TRUE(use_target("").ok()); }
};

// Reduces one element per input on every target, and checks that all targets agree.
template <class T, class Out = T>
Out reduce_one(ReduceOp op, const std::vector<T>& values, int divisor = 1) {
  std::vector<Input> inputs;
  for (const T& value : values) inputs.push_back({&value, dtype_of<T>});
  Out first{};
  for (const std::string_view target : available_targets()) {
    EXPECT_TRUE(use_target(target).ok());
    Out result{};
    void* const output = &result;
    const Status status = reduce({.dtype = dtype_of<T>,
                                  .output_dtype = dtype_of<Out>,
                                  .op = op,
                                  .divisor = divisor,
                                  .count = 1,
                                  .inputs = inputs,
                                  .outputs = {&output, 1}});
    EXPECT_TRUE(status.ok()) << status.message();
    if (target == available_targets().front()) first = result;
    EXPECT_EQ(std::memcmp(&result, &first, sizeof(Out)), 0) << target;
  }
  return first;
}

// Converts one input to one output on `target`.
template <class In, class Out>
std::vector<Out> convert(std::string_view target, DType dtype, const std::vector<In>& numbers) {
  EXPECT_TRUE(use_target(target).ok());
  std::vector<Out> result(numbers.size());
  const Input input{numbers.data(), dtype_of<In>};
  void* const output = result.data();
  const Status status = reduce({.dtype = dtype,
                                .output_dtype = dtype_of<Out>,
                                .count = numbers.size(),
                                .inputs = {&input, 1},
                                .outputs = {&output, 1}});
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

Half narrowed(float value, Half) { return oracle::narrow_to_half(value); }
BFloat16 narrowed(float value, BFloat16) { return oracle::narrow_to_bfloat16(value); }

template <class Number>
void check_narrowing(const std::vector<float>& values) {
  for (const std::string_view target : available_targets()) {
    const auto result = convert<float, Number>(target, dtype_of<Number>, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(result[i].bits, narrowed(values[i], Number()).bits) << target << " " << values[i];
    }
  }
}

// Converts every number of the type to f32 and back.
template <class Number>
void check_conversions() {
  std::vector<Number> numbers(65536);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].bits = static_cast<std::uint16_t>(i);
  for (const std::string_view target : available_targets()) {
    const auto wide = convert<Number, float>(target, dtype_of<Number>, numbers);
    const auto back = convert<float, Number>(target, dtype_of<Number>, wide);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
                std::bit_cast<std::uint32_t>(oracle::widen(numbers[i])))
          << target << " " << i;
      ASSERT_EQ(back[i].bits, narrowed(wide[i], Number()).bits) << target;
    }
  }
}

// Pairs of pages, each between two pages that cannot be accessed.
class GuardedPages {
 public:
  explicit GuardedPages(std::size_t count) : bytes_((3 * count + 1) * kPage) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(::mprotect(memory_ + (3 * i + 1) * kPage, kRoom, PROT_READ | PROT_WRITE), 0);
    }
  }
  ~GuardedPages() { ::munmap(memory_, bytes_); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  // Returns a place of `bytes` bytes at the start or the end of pair `index`.
  void* place(std::size_t index, std::size_t bytes, bool at_end) const {
    return memory_ + (3 * index + 1) * kPage + (at_end ? kRoom - bytes : 0);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kRoom = 2 * kPage;

  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

// All ways to load and store.
constexpr Store kStores[] = {Store::automatic, Store::cached, Store::non_temporal, Store::shared};

constexpr std::pair<DType, ReduceOp> kKindsOfLoops[] = {
    {DType::i8, ReduceOp::sum},      {DType::i16, ReduceOp::sum},     {DType::bf16, ReduceOp::sum},
    {DType::f16, ReduceOp::sum},     {DType::f32, ReduceOp::sum},     {DType::f64, ReduceOp::sum},
    {DType::c64, ReduceOp::product}, {DType::c128, ReduceOp::product}};

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST_F(ReduceTest, MatchesTheOracleForEveryDtypeOpAndTarget) {
  Random random(1);
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    for (int op_number = 0; op_number < kReduceOpCount; ++op_number) {
      const auto op = static_cast<ReduceOp>(op_number);
      if (!supports(op, dtype)) continue;
      for (int inputs = 1; inputs <= 17; ++inputs) {
        for (const std::size_t count : {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1013}) {
          if (random.below(3) != 0) continue;  // All of these take ten seconds under a sanitizer.
          const Case one = random_case(dtype, op, inputs, count, random);
          ASSERT_EQ(problem_with(one, random), "") << describe(one);
        }
      }
    }
  }
}

TEST_F(ReduceTest, ManyInputsAreGroupsOfGroups) {
  Random random(2);
  for (const int inputs : {63, 64, 65, 100, 513, 600}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::c64}) {
      const Case one = random_case(dtype, ReduceOp::sum, inputs, 37, random);
      ASSERT_EQ(problem_with(one, random), "") << describe(one);
    }
  }
}

// The buffers have several pieces, which are copied to further outputs or to shared memory.
TEST_F(ReduceTest, OutputsThatAreCopied) {
  Random random(9);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f64, DType::c64}) {
    for (const Store store : {Store::automatic, Store::shared}) {
      for (const int in_place : {0, 1}) {
        const auto count = static_cast<std::size_t>(40003) / size_bytes(dtype);
        Case one = random_case(dtype, ReduceOp::sum, 3, count, random);
        one.store = store;
        one.outputs = 3;
        one.in_place = in_place;
        ASSERT_EQ(problem_with(one, random), "") << describe(one);
      }
    }
  }
}

// The buffers have two or more blocks of the general case, and non-temporal stores go to outputs
// with different offsets in a cache line.
TEST_F(ReduceTest, LongBuffers) {
  Random random(3);
  for (const DType dtype : {DType::u8, DType::i64, DType::f32, DType::bf16, DType::f16}) {
    for (const int inputs : {2, 8, 11}) {
      for (const Store store : kStores) {
        Case one = random_case(dtype, ReduceOp::sum, inputs, 5003, random);
        one.store = store;
        ASSERT_EQ(problem_with(one, random), "") << describe(one);
      }
    }
  }
}

TEST_F(ReduceTest, LongBuffersOfComplexNumbers) {
  Random random(6);
  for (const DType dtype : {DType::c64, DType::c128}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product}) {
      for (const int inputs : {2, 11}) {
        for (const Store store : kStores) {
          Case one = random_case(dtype, op, inputs, 2503, random);
          one.store = store;
          ASSERT_EQ(problem_with(one, random), "") << describe(one);
        }
      }
    }
  }
}

TEST_F(ReduceTest, ReadsAndWritesNothingOutsideOfTheBuffers) {
  const GuardedPages from(2), to(2);
  for (const std::string_view target : available_targets()) {
    ASSERT_TRUE(use_target(target).ok());
    for (const auto& [dtype, op] : kKindsOfLoops) {
      for (const std::size_t count : {1, 5, 31, 77, 300}) {
        const std::size_t bytes = count * size_bytes(dtype);
        for (const bool at_end : {false, true}) {
          const std::array inputs{Input{from.place(0, bytes, at_end), dtype},
                                  Input{from.place(1, bytes, at_end), dtype}};
          const std::array<void*, 2> outputs{to.place(0, bytes, at_end),
                                             to.place(1, bytes, at_end)};
          ASSERT_TRUE(reduce({.dtype = dtype,
                              .output_dtype = dtype,
                              .op = op,
                              .count = count,
                              .inputs = inputs,
                              .outputs = outputs,
                              .store = Store::non_temporal})
                          .ok());
        }
      }
    }
  }
}

// In a job of one rank, the only input is also the output. It is not even read, and this memory is
// read-only.
TEST_F(ReduceTest, OneInputInItsOwnPlaceIsLeftAlone) {
  constexpr std::size_t kBytes = 1 << 20;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  ASSERT_NE(memory, MAP_FAILED);
  for (const std::size_t outputs : {1, 2}) {
    const Input input{memory, DType::f16};
    const std::vector<void*> places(outputs, memory);
    EXPECT_TRUE(reduce({.dtype = DType::f16,
                        .output_dtype = DType::f16,
                        .count = kBytes / 2,
                        .inputs = {&input, 1},
                        .outputs = places})
                    .ok());
  }
  ASSERT_EQ(munmap(memory, kBytes), 0);
}

TEST_F(ReduceTest, SevenInputsAreACanonicalTree) {
  // Of the 132 ways to put parentheses around these, only ((0 1)(2 3))((4 5)6) gives this number.
  const std::vector<float> values{0x1.ab1b58p+15f,  -0x1.e1c2aap+22f, 0x1.c14386p+20f,
                                  -0x1.fa50dep+29f, 0x1.da63bap+29f,  0x1.e47312p+21f,
                                  -0x1.59a0fep+21f};
  EXPECT_EQ(reduce_one(ReduceOp::sum, values), -0x1.11f43p+26f);
}

TEST_F(ReduceTest, AnAlignedGroupIsAPartialResult) {
  Random random(4);
  std::vector<float> values;
  for (int i = 0; i < 12; ++i) values.push_back(static_cast<float>(random.uniform()));
  const auto part = [&](int first, int count) {
    return reduce_one(ReduceOp::sum,
                      std::vector<float>(values.begin() + first, values.begin() + first + count));
  };
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<float>{part(0, 8), part(8, 4)}),
            reduce_one(ReduceOp::sum, values));
}

TEST_F(ReduceTest, HalfPrecisionRoundsOnce) {
  // 2049 is not an f16; rounding after the first sum would give 2048 + 1 = 2048, then 2048 + 1.
  const Half two_thousand(2048), one(1);
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<Half>{two_thousand, one, one}).bits, 0x6801);
  const BFloat16 large(256), small(1);
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<BFloat16>{large, small, small}).bits, 0x4381);
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<BFloat16>{large, small}).bits, 0x4380);
  EXPECT_EQ((reduce_one<BFloat16, float>(ReduceOp::sum, {large, small})), 257.0f);
}

TEST_F(ReduceTest, OverflowAndWrap) {
  const Half greatest = Half::from_bits(0x7BFF);
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<Half>{greatest, greatest}).bits, 0x7C00);
  const BFloat16 greatest_bfloat16 = BFloat16::from_bits(0x7F7F);
  EXPECT_EQ(reduce_one(ReduceOp::product, std::vector<BFloat16>(3, greatest_bfloat16)).bits,
            0x7F80);
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<std::int8_t>{100, 100}), -56);
  EXPECT_EQ(reduce_one(ReduceOp::mean, std::vector<std::int8_t>{100, 100}, 3), -18);
  EXPECT_EQ(reduce_one(ReduceOp::product, std::vector<std::uint8_t>{255, 255}), 1);
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<std::int16_t>{30000, 30000}), -5536);
  EXPECT_EQ(reduce_one(ReduceOp::mean, std::vector<std::int16_t>{-30000, -30000}, 3), 1845);
  EXPECT_EQ(reduce_one(ReduceOp::product, std::vector<std::uint16_t>{65535, 65535}), 1);
  EXPECT_EQ(reduce_one(ReduceOp::mean, std::vector<std::uint32_t>{3000000000, 3}, 2), 1500000001u);
  EXPECT_EQ(reduce_one(ReduceOp::max, std::vector<std::uint32_t>{1, 3000000000}), 3000000000u);
  constexpr std::uint64_t kGreatestUnsigned = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(reduce_one(ReduceOp::mean, std::vector<std::uint64_t>{kGreatestUnsigned}, 3),
            kGreatestUnsigned / 3);
  EXPECT_EQ(reduce_one(ReduceOp::min, std::vector<std::uint64_t>{kGreatestUnsigned, 1}), 1u);
  constexpr std::int64_t kGreatest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce_one(ReduceOp::sum, std::vector<std::int64_t>{kGreatest, 2}), -kGreatest);
  EXPECT_EQ(reduce_one(ReduceOp::product, std::vector<std::int64_t>{kGreatest, kGreatest}), 1);
}

TEST_F(ReduceTest, TheLeftNanWins) {
  const float a = float_of(0x7FC00001), b = float_of(0xFFC00002), one = 1.0f;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    EXPECT_EQ(bits_of(reduce_one<float>(op, {a, b})), 0x7FC00001u) << name(op);
    EXPECT_EQ(bits_of(reduce_one<float>(op, {b, a})), 0xFFC00002u) << name(op);
    EXPECT_EQ(bits_of(reduce_one<float>(op, {one, a})), 0x7FC00001u) << name(op);
    EXPECT_EQ(bits_of(reduce_one<float>(op, {a, infinity})), 0x7FC00001u) << name(op);
  }
  EXPECT_TRUE(std::isnan(reduce_one<float>(ReduceOp::sum, {infinity, -infinity})));
  const std::vector<Half> halves{Half(1), Half::from_bits(0x7E01), Half::from_bits(0xFE02)};
  EXPECT_EQ(reduce_one(ReduceOp::max, halves).bits, 0x7E01);
}

TEST_F(ReduceTest, ComplexNumbersAreTextbook) {
  using C64 = std::complex<float>;
  EXPECT_EQ(reduce_one<C64>(ReduceOp::sum, {{1, 2}, {3, -5}}), C64(4, -3));
  EXPECT_EQ(reduce_one<C64>(ReduceOp::mean, {{1, 2}, {3, -5}}, 2), C64(2, -1.5));
  EXPECT_EQ(reduce_one<C64>(ReduceOp::product, {{1, 2}, {3, -5}}), C64(13, 1));
  EXPECT_EQ(reduce_one<C64>(ReduceOp::product, {{1, 2}, {3, -5}, {0, 1}}, 2), C64(-0.5, 6.5));
  // The square of 1 + 2^-12, minus 1 + 2^-11, is 2^-24 only if the product was not rounded.
  const float above_one = 1 + 0x1p-12f;
  EXPECT_EQ(reduce_one<C64>(ReduceOp::product, {{above_one, 1}, {above_one, 1 + 0x1p-11f}}).real(),
            0.0f);
  EXPECT_EQ(reduce_one<C64>(ReduceOp::product, {{above_one, -1}, {1 + 0x1p-11f, above_one}}).imag(),
            0.0f);
}

TEST_F(ReduceTest, AComplexProductHasNoSpecialCases) {
  using C64 = std::complex<float>;
  const float infinity = std::numeric_limits<float>::infinity();
  // By Annex G of the C standard, the product is an infinity.
  const C64 infinite = reduce_one<C64>(ReduceOp::product, {{infinity, infinity}, {1, 1}});
  EXPECT_TRUE(std::isnan(infinite.real()));
  EXPECT_EQ(infinite.imag(), infinity);
  // Of two NaN, the left term of the sum wins: ac for real parts, ad for imaginary parts.
  const float a = float_of(0x7FC00001), b = float_of(0xFFC00002);
  const C64 both = reduce_one<C64>(ReduceOp::product, {{a, b}, {1, 1}});
  EXPECT_EQ(bits_of(both.real()), 0x7FC00001u);
  EXPECT_EQ(bits_of(both.imag()), 0x7FC00001u);
  const C64 right = reduce_one<C64>(ReduceOp::product, {{1, b}, {1, 1}});
  EXPECT_EQ(bits_of(right.real()), 0xFFC00002u);
  EXPECT_EQ(bits_of(right.imag()), 0xFFC00002u);
}

TEST_F(ReduceTest, TheLeftOfEqualZerosWins) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_EQ(bits_of(reduce_one<float>(op, {-0.0f, 0.0f})), 0x80000000u);
    EXPECT_EQ(bits_of(reduce_one<float>(op, {0.0f, -0.0f})), 0u);
  }
}

TEST_F(ReduceTest, BooleansAreZeroOrOne) {
  const std::vector<std::uint8_t> bytes{2, 1};
  std::uint8_t result = 9;
  void* const output = &result;
  const std::array inputs{Input{&bytes[0], DType::boolean}, Input{&bytes[1], DType::boolean}};
  for (const ReduceOp op : {ReduceOp::bit_and, ReduceOp::sum, ReduceOp::min, ReduceOp::bit_xor}) {
    ASSERT_TRUE(reduce({.dtype = DType::boolean,
                        .output_dtype = DType::boolean,
                        .op = op,
                        .count = 1,
                        .inputs = inputs,
                        .outputs = {&output, 1}})
                    .ok());
    EXPECT_EQ(result, op == ReduceOp::bit_xor ? 0 : 1) << name(op);
  }
}

TEST_F(ReduceTest, EveryNumberOf16BitsSurvivesWidening) {
  ASSERT_NO_FATAL_FAILURE(check_conversions<Half>());
  ASSERT_NO_FATAL_FAILURE(check_conversions<BFloat16>());
}

TEST_F(ReduceTest, NarrowingRoundsToNearestEven) {
  Random random(5);
  std::vector<float> values;
  // Values around the halfway points of each 16-bit number, and arbitrary ones.
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low : {0x7FFFu, 0x8000u, 0x8001u}) {
      values.push_back(float_of(high << 16 | low));
      values.push_back(float_of(high << 16 | (high & 7) << 13 | (low >> 3)));
    }
    values.push_back(float_of(static_cast<std::uint32_t>(random.next())));
  }
  ASSERT_NO_FATAL_FAILURE(check_narrowing<Half>(values));
  ASSERT_NO_FATAL_FAILURE(check_narrowing<BFloat16>(values));
}

TEST_F(ReduceTest, RefusesWhatHasNoMeaning) {
  float value = 1;
  void* const output = &value;
  const std::array inputs{Input{&value, DType::f32}};
  const Reduction valid{.count = 1, .inputs = inputs, .outputs = {&output, 1}};
  ASSERT_TRUE(reduce(valid).ok());
  const auto refusal = [](Reduction reduction) {
    const Status status = reduce(reduction);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    return std::string(status.message());
  };
  Reduction wrong = valid;
  wrong.op = ReduceOp::bit_and;
  EXPECT_EQ(refusal(wrong),
            "bit_and has no meaning for f32, which supports sum, mean, product, min, max");
  wrong = valid;
  wrong.dtype = DType::c64;
  wrong.op = ReduceOp::max;
  EXPECT_EQ(refusal(wrong), "max has no meaning for c64, which supports sum, mean, product");
  wrong.dtype = DType::f8_e5m2;
  EXPECT_EQ(refusal(wrong),
            "max has no meaning for f8_e5m2, which supports " + supported_ops(DType::f8_e5m2));
  wrong = valid;
  wrong.dtype = wrong.output_dtype = DType::i32;
  EXPECT_EQ(refusal(wrong), "reduction of i32: an input is f32");
  wrong = valid;
  wrong.output_dtype = DType::f16;
  EXPECT_EQ(refusal(wrong), "reduction of f32: the output is f16");
  wrong = valid;
  wrong.divisor = 0;
  EXPECT_EQ(refusal(wrong), "sum of f32 with divisor 0");
  wrong = valid;
  wrong.outputs = {};
  EXPECT_EQ(refusal(wrong), "reduction of 1 inputs into 0 outputs");
  wrong = valid;
  wrong.inputs = {};
  EXPECT_EQ(refusal(wrong), "reduction of 0 inputs into 1 outputs");
  EXPECT_EQ(value, 1.0f);
}

TEST_F(ReduceTest, TargetsAreNamed) {
  ASSERT_FALSE(available_targets().empty());
  EXPECT_EQ(use_target("ABACUS").code(), StatusCode::invalid_argument);
  for (const std::string_view target : available_targets()) EXPECT_TRUE(use_target(target).ok());
}

}  // namespace
}  // namespace stretto::kernel
