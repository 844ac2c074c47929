// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// PowerSGD: ranks add up the factors of gradients, in two halves with an all_reduce each.

#include <algorithm>
#include <limits>

#include "stretto/base/random.h"
#include "stretto/codec/finite.h"
#include "stretto/reducer/compressed_exchange.h"

namespace stretto {
namespace {

using codec::are_finite;

void draw(std::uint64_t key, std::span<float> values) {
  Random random(key);
  for (float& value : values) value = static_cast<float>(random.uniform()) - 0.5f;
}

bool is_zero(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return value == 0; });
}

// Moves the next numbers of `from` to `to`, as many as fit.
void take(std::span<const float>& from, std::span<float> to) {
  std::ranges::copy(from.first(to.size()), to.begin());
  from = from.subspan(to.size());
}

void append(std::span<const float> values, std::vector<float>& out) {
  out.insert(out.end(), values.begin(), values.end());
}

// Some rows of a gradient, as a matrix of their own.
struct Rows {
  std::size_t first;  // First element, and number of elements.
  std::size_t count;
  codec::MatrixShape shape;
  std::span<float> left;  // Their left factors.
};

// Visits so few rows at a time that they stay in the first-level cache between the loops of
// `visit`.
template <class Visit>
void visit_rows(Factors& factors, std::size_t count, const Visit& visit) {
  constexpr std::size_t kElements = 2048;
  const auto [rows, columns] = factors.shape;
  const std::size_t step = columns < kElements ? kElements / std::max<std::size_t>(columns, 1) : 1;
  for (std::size_t row = 0; row < rows; row += step) {
    const codec::MatrixShape some{std::min(step, rows - row), columns};
    const std::size_t first = std::min(count, row * columns);
    const auto left = std::span(factors.left).subspan(row * factors.rank);
    visit(Rows{first, std::min(some.rows * columns, count - first), some,
               left.first(some.rows * factors.rank)});
  }
}

}  // namespace

bool Factors::found_nothing() const { return is_zero(left); }

bool Factors::is_finite() const { return are_finite(left) && are_finite(right); }

void Factors::draw_right(std::uint64_t key) { draw(key, right); }

bool Factors::draw_zero_columns(std::uint64_t key) {
  bool has_drawn = false;
  for (std::size_t c = 0; c < rank; ++c) {
    const auto column = std::span(right).subspan(c * shape.columns, shape.columns);
    if (!is_zero(column)) continue;
    draw(key + c, column);
    has_drawn = true;
  }
  return has_drawn;
}

void CompressedReduction::count_factors(std::span<const float> factors) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  this_step_.sent_values += factors.size();
  this_step_.message_bytes += factors.size_bytes();
  this_step_.received_bytes += 2 * (ranks - 1) * factors.size_bytes() / ranks;
}

void CompressedReduction::find_left_factors(Exchange& exchange) {
  exchange.left.clear();
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    Factors& factors = exchange.gradients[i]->factors;
    const std::span<float> matrix = exchange.gradients[i]->residual;
    if (exchange.silent[i] != 0) {
      std::ranges::fill(factors.left, 0.0f);
    } else {
      const std::span<const float> values = exchange.values[i];
      visit_rows(factors, matrix.size(), [&](const Rows& rows) {
        const std::span<float> some = matrix.subspan(rows.first, rows.count);
        if (!options_.error_feedback) std::ranges::fill(some, 0.0f);
        for (std::size_t e = 0; e < some.size(); ++e) some[e] += values[rows.first + e];
        if (options_.non_finite == NonFinite::zero) codec::clear_non_finite(some);
        codec::multiply(some, rows.shape, factors.rank, factors.right, rows.left);
      });
      // The factors carry infinity and NaN to all ranks. The residual must not keep them, even if
      // another bucket stops the step.
      if (!are_finite(factors.left)) codec::clear_non_finite(matrix);
    }
    append(factors.left, exchange.left);
  }
  count_factors(exchange.left);
  exchange.next = Exchange::Next::left_factors;
  exchange.encoded = Clock::now();
}

void CompressedReduction::find_right_factors(Exchange& exchange) {
  const TimePoint begin = Clock::now();
  this_step_.exchange_seconds += seconds(begin - exchange.encoded);
  exchange.right.clear();
  std::span<const float> sums = exchange.left;
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    Factors& factors = exchange.gradients[i]->factors;
    const std::span<float> matrix = exchange.gradients[i]->residual;
    take(sums, factors.left);
    codec::orthonormalize(factors.shape.rows, factors.rank, factors.left);
    if (factors.found_nothing()) {
      // No right factors: their place says whether a rank has a gradient that the left factors
      // miss.
      exchange.right.insert(exchange.right.end(), factors.right.size(), 0.0f);
      const bool has_more = exchange.silent[i] == 0 && !is_zero(matrix);
      exchange.right.back() = has_more ? 1 : 0;
      continue;
    }
    if (exchange.silent[i] != 0) {
      std::ranges::fill(factors.right, 0.0f);
    } else {
      codec::multiply_transposed(matrix, factors.shape, factors.rank, factors.left, factors.right);
      // This rank's part of the product is sent; the residual keeps the rest of the gradient.
      if (are_finite(factors.right)) {
        codec::add_product(matrix, factors.shape, factors.rank, factors.left, factors.right, -1);
      }
    }
    append(factors.right, exchange.right);
  }
  count_factors(exchange.right);
  exchange.encoded = Clock::now();
  this_step_.encode_seconds += seconds(exchange.encoded - begin);
  exchange.codec_seconds += seconds(exchange.encoded - begin);
}

void CompressedReduction::multiply_factors(Exchange& exchange) {
  std::span<const float> sums = exchange.right;
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    Gradient& gradient = *exchange.gradients[i];
    Factors& factors = gradient.factors;
    const std::span<float> values = exchange.values[i];
    if (factors.found_nothing()) {
      std::ranges::fill(values, 0.0f);
      // If the gradient is zero, or unused on all ranks, the right factors stay.
      if (sums[factors.right.size() - 1] != 0) factors.draw_right(gradient.key);
      sums = sums.subspan(factors.right.size());
      continue;
    }
    take(sums, factors.right);
    bool is_finite = factors.is_finite();
    visit_rows(factors, values.size(), [&](const Rows& rows) {
      const std::span<float> some = values.subspan(rows.first, rows.count);
      std::ranges::fill(some, 0.0f);
      codec::add_product(some, rows.shape, factors.rank, rows.left, factors.right, 1);
      is_finite = is_finite && are_finite(some);
    });
    if (is_finite) {
      factors.draw_zero_columns(gradient.key);
      continue;
    }
    // All ranks have the same factors, and start anew together.
    const bool counts_as_zero = options_.non_finite == NonFinite::zero;
    std::ranges::fill(values, counts_as_zero ? 0.0f : std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(gradient.residual, 0.0f);
    factors.draw_right(gradient.key);
  }
}

}  // namespace stretto
