// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>

namespace stretto::bench {
namespace {

// By how many elements the numbers shift from rank to rank, and from iteration to iteration.
constexpr std::size_t kRankShift = 11;
constexpr std::size_t kIterationShift = 5;

// Encodes a non-negative number as a normal floating point number of few bits; exactly if possible.
std::uint32_t small_float(double value, int exponent_bits, int mantissa_bits) {
  if (value <= 0) return 0;
  const int exponent = std::ilogb(value);
  const double fraction = std::ldexp(value, -exponent) - 1;
  const auto mantissa =
      static_cast<std::uint32_t>(std::nearbyint(std::ldexp(fraction, mantissa_bits)));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  // If rounding carries the mantissa to the next power of two, the sum increments the exponent.
  return (static_cast<std::uint32_t>(exponent + bias) << mantissa_bits) + mantissa;
}

template <class T>
void store(std::byte* target, T value) {
  std::memcpy(target, &value, sizeof(value));
}

void store_element(std::byte* target, DType dtype, std::int64_t value, int divisor) {
  const double quotient = static_cast<double>(value) / divisor;
  switch (dtype) {
    case DType::f32:
      return store(target, static_cast<float>(quotient));
    case DType::f64:
      return store(target, quotient);
    case DType::c64:
      return store(target, std::complex<float>(static_cast<float>(quotient), 0));
    case DType::c128:
      return store(target, std::complex<double>(quotient, 0));
    case DType::f16:
      return store(target, static_cast<std::uint16_t>(small_float(quotient, 5, 10)));
    case DType::bf16:
      return store(target, static_cast<std::uint16_t>(small_float(quotient, 8, 7)));
    case DType::f8_e4m3:
      return store(target, static_cast<std::uint8_t>(small_float(quotient, 4, 3)));
    case DType::f8_e5m2:
      return store(target, static_cast<std::uint8_t>(small_float(quotient, 5, 2)));
    case DType::boolean:
      return store(target, static_cast<std::uint8_t>(value != 0));
    default: {
      // Integers wrap: this stores the low bytes, which come first on a little-endian machine.
      static_assert(std::endian::native == std::endian::little);
      const std::int64_t whole = value / divisor;
      std::memcpy(target, &whole, size_bytes(dtype));
    }
  }
}

std::int64_t combine(ReduceOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ReduceOp::product:
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) *
                                       static_cast<std::uint64_t>(b));
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::bit_and:
      return a & b;
    case ReduceOp::bit_or:
      return a | b;
    case ReduceOp::bit_xor:
      return a ^ b;
    default:
      return a + b;
  }
}

// Products grow fast, so their factors are 1 and 2; bool has only two values.
std::int64_t value_at(std::size_t index, DType dtype, ReduceOp op) {
  const std::size_t mixed = (index * 2654435761U >> 7) % 7;
  if (dtype == DType::boolean) return static_cast<std::int64_t>(mixed % 2);
  if (op == ReduceOp::product) return static_cast<std::int64_t>(1 + mixed % 2);
  return static_cast<std::int64_t>(mixed);
}

}  // namespace

Pattern::Pattern(DType dtype, ReduceOp op, int ranks)
    : dtype_(dtype), ranks_(ranks), element_bytes_(size_bytes(dtype)) {
  // A quotient by a power of two is exact, and so is a product of few factors of two.
  if (op == ReduceOp::mean) exact_ = std::has_single_bit(static_cast<unsigned>(ranks));
  if (op == ReduceOp::product) exact_ = ranks < 16;
  const int divisor = op == ReduceOp::mean ? ranks : 1;
  // For bool a sum and a maximum are "or", a product and a minimum are "and".
  if (dtype == DType::boolean && op == ReduceOp::sum) op = ReduceOp::max;
  if (dtype == DType::boolean && op == ReduceOp::product) op = ReduceOp::min;
  std::array<std::int64_t, kPeriod> values{};
  std::array<std::int64_t, kPeriod> results{};
  for (std::size_t i = 0; i < kPeriod; ++i) values[i] = value_at(i, dtype, op);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    results[i] = values[i];
    for (int rank = 1; rank < ranks; ++rank) {
      results[i] = combine(op, results[i], values[phase(i, rank, 0)]);
    }
  }
  inputs_ = encode(values, 1);
  reductions_ = encode(results, divisor);
}

std::size_t Pattern::phase(std::size_t first, int rank, std::uint64_t iteration) {
  const std::size_t shift = static_cast<std::size_t>(rank) * kRankShift +
                            static_cast<std::size_t>(iteration) * kIterationShift;
  return (first + shift) % kPeriod;
}

Pattern::Table Pattern::encode(const std::array<std::int64_t, kPeriod>& values, int divisor) const {
  Table table(2 * kPeriod * element_bytes_);
  for (std::size_t i = 0; i < 2 * kPeriod; ++i) {
    store_element(table.data() + i * element_bytes_, dtype_, values[i % kPeriod], divisor);
  }
  return table;
}

void Pattern::fill(View target, std::size_t first, int rank, std::uint64_t iteration) const {
  const std::byte* source = inputs_.data() + phase(first, rank, iteration) * element_bytes_;
  const std::size_t period_bytes = kPeriod * element_bytes_;
  const std::size_t bytes = target.bytes();
  for (std::size_t at = 0; at < bytes; at += period_bytes) {
    std::memcpy(target.data + at, source, std::min(period_bytes, bytes - at));
  }
}

bool Pattern::is_input(ConstView data, std::size_t first, int rank, std::uint64_t iteration) const {
  return equals(data, inputs_, phase(first, rank, iteration));
}

bool Pattern::is_reduction(ConstView data, std::size_t first, std::uint64_t iteration) const {
  return equals(data, reductions_, phase(first, 0, iteration));
}

bool Pattern::is_output(Collective operation, ConstView output, std::size_t share, int rank,
                        std::uint64_t iteration, int root) const {
  const std::size_t own_share = static_cast<std::size_t>(rank) * share;
  switch (operation) {
    case Collective::all_reduce:
      return is_reduction(output, 0, iteration);
    case Collective::reduce:
      return rank != root || is_reduction(output, 0, iteration);
    case Collective::reduce_scatter:
      return is_reduction(output, own_share, iteration);
    case Collective::scatter:
      return is_input(output, own_share, root, iteration);
    case Collective::broadcast:
      return is_input(output, 0, root, iteration);
    case Collective::point_to_point:
      return rank > 1 || is_input(output, 0, 0, iteration);
    case Collective::barrier:
      return true;
    case Collective::gather:
      if (rank != root) return true;
      break;
    default:
      break;
  }
  // Share s of the output comes from rank s: its whole input, or its part for this rank.
  const std::size_t first = operation == Collective::all_to_all ? own_share : 0;
  for (int source = 0; source < ranks_; ++source) {
    const std::size_t begin = static_cast<std::size_t>(source) * share;
    if (!is_input(output.slice(begin, share), first, source, iteration)) return false;
  }
  return true;
}

bool Pattern::equals(ConstView data, const Table& table, std::size_t phase) const {
  const std::byte* expected = table.data() + phase * element_bytes_;
  const std::size_t period_bytes = kPeriod * element_bytes_;
  const std::size_t bytes = data.bytes();
  for (std::size_t at = 0; at < bytes; at += period_bytes) {
    if (std::memcmp(data.data + at, expected, std::min(period_bytes, bytes - at)) != 0)
      return false;
  }
  return true;
}

Shape shape_of(Collective operation, int ranks, std::size_t bytes, std::size_t element_bytes) {
  const auto shares = static_cast<std::size_t>(ranks);
  const std::size_t count = std::max<std::size_t>(1, bytes / element_bytes);
  const std::size_t share = std::max<std::size_t>(1, count / shares);
  Shape shape;
  switch (operation) {
    case Collective::barrier:
      return shape;
    case Collective::reduce_scatter:
    case Collective::scatter:
      shape = {.input = share * shares, .output = share, .share = share, .bytes = 0};
      break;
    case Collective::all_gather:
    case Collective::gather:
      shape = {.input = share, .output = share * shares, .share = share, .bytes = 0};
      break;
    case Collective::all_to_all:
      shape = {.input = share * shares, .output = share * shares, .share = share, .bytes = 0};
      break;
    default:
      shape = {.input = count, .output = count, .share = count, .bytes = 0};
  }
  shape.bytes = std::max(shape.input, shape.output) * element_bytes;
  return shape;
}

double bus_factor(Collective operation, int ranks) {
  const double p = ranks;
  switch (operation) {
    case Collective::all_reduce:
      return 2 * (p - 1) / p;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter:
      return (p - 1) / p;
    case Collective::barrier:
      return 0;
    default:
      return 1;
  }
}

bool usually_in_place(Collective operation) {
  return operation == Collective::all_reduce || operation == Collective::reduce ||
         operation == Collective::broadcast || operation == Collective::point_to_point;
}

}  // namespace stretto::bench
