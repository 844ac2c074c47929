// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/base/random.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/low_rank.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/saved_state.h"

namespace stretto {
namespace {

std::span<float> floats(const View& view) {
  return {reinterpret_cast<float*>(view.data), view.count};
}

constexpr const char* kStateName = "PowerSGD";

bool is_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

}  // namespace

struct PowerSgdReduction::Gradient {
  std::uint64_t key = 0;
  bool is_factored = false;
  codec::MatrixShape shape;
  std::vector<float>
      matrix;               // The residual; between start() and the second half, the gradient too.
  std::vector<float> left;  // Of the last step.
  std::vector<float> right;

  void draw_right() {
    Random random(key);
    for (float& value : right) value = static_cast<float>(random.uniform()) - 0.5f;
  }
  // A column that found nothing in this step would never find anything again.
  void draw_zero_columns(std::size_t rank) {
    const std::size_t columns = right.size() / rank;
    for (std::size_t c = 0; c < rank; ++c) {
      const auto column = std::span(right).subspan(c * columns, columns);
      if (std::ranges::any_of(column, [](float value) { return value != 0; })) continue;
      Random random(key + c);
      for (float& value : column) value = static_cast<float>(random.uniform()) - 0.5f;
    }
  }
};

// A bucket on its way. What it needs of the bucket is copied, so that the next may be started.
struct PowerSgdReduction::Exchange {
  bool is_factored = false;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  std::vector<Gradient*> gradients;
  std::vector<std::uint8_t> silent;
  std::vector<std::size_t> places;  // Of their parts of `left`.
  std::vector<float> left;          // Left factors, and gradients that are not factored.
  std::vector<float> right;         // Right factors.
  Work first;
  Work second;
};

PowerSgdReduction::PowerSgdReduction(const PowerSgdOptions& options) : options_(options) {
  if (options.rank > 0) return;
  refuse("PowerSgdOptions::rank is 0; 1 is the least");
}

PowerSgdReduction::~PowerSgdReduction() = default;

std::string PowerSgdReduction::name() const {
  return fmt::format("PowerSGD of rank {} from {} elements on, seed {}", options_.rank,
                     options_.min_elements, options_.seed);
}

void PowerSgdReduction::attach(Communicator& communicator,
                               std::span<const GradientDescription> gradients) {
  rank_ = communicator.rank().value();
  ranks_ = communicator.size();
  by_index_.clear();
  exchanges_.clear();
  pending_ = nullptr;
  for (const GradientDescription& description : gradients) {
    std::unique_ptr<Gradient>& gradient = gradients_[description.name];
    const codec::MatrixShape shape = codec::matrix_shape(description.count, description.rows);
    const bool is_factored = description.dtype == DType::f32 &&
                             description.count >= options_.min_elements &&
                             options_.rank * (shape.rows + shape.columns) < description.count;
    const std::size_t elements = is_factored ? description.count : 0;
    // One that has changed its shape begins anew.
    if (gradient == nullptr || gradient->matrix.size() != elements) {
      gradient = std::make_unique<Gradient>();
      gradient->key = content_hash(std::as_bytes(std::span(description.name)), options_.seed);
      gradient->is_factored = is_factored;
      gradient->shape = shape;
      gradient->matrix.resize(elements);
      gradient->left.resize(is_factored ? shape.rows * options_.rank : 0);
      gradient->right.resize(is_factored ? shape.columns * options_.rank : 0);
      gradient->draw_right();
    }
    by_index_.push_back(gradient.get());
  }
  const auto take_over = [this] {
    if (loaded_ != nullptr) restore(*loaded_);
    return reducer::ResumePoint();
  };
  (void)reducer::take_over_together(communicator, name(), take_over, timeout());
  loaded_.reset();
}

// Takes `state` over. Gradients that it does not mention begin anew.
void PowerSgdReduction::restore(const reducer::SavedState& state) {
  reducer::check_origin(state.rank, state.ranks, rank_, ranks_);
  for (const auto& [name, gradient] : gradients_) {
    (void)reducer::find(state.residuals, name, gradient->matrix.size());
    (void)reducer::find(state.factors, name, gradient->right.size());
  }
  for (const auto& [name, gradient] : gradients_) {
    const auto* const residual = reducer::find(state.residuals, name, gradient->matrix.size());
    if (residual != nullptr) gradient->matrix = *residual;
    if (residual == nullptr) std::ranges::fill(gradient->matrix, 0.0f);
    const auto* const factor = reducer::find(state.factors, name, gradient->right.size());
    if (factor != nullptr) gradient->right = *factor;
    if (factor == nullptr) gradient->draw_right();
  }
}

std::vector<std::byte> PowerSgdReduction::save() const {
  if (loaded_ != nullptr) return reducer::print(*loaded_);
  reducer::SavedState state{.hook = kStateName,
                            .rank = static_cast<std::uint64_t>(rank_),
                            .ranks = static_cast<std::uint64_t>(ranks_)};
  for (const auto& [name, gradient] : gradients_) {
    if (!gradient->is_factored) continue;
    state.residuals[name] = gradient->matrix;
    state.factors[name] = gradient->right;
  }
  return reducer::print(state);
}

void PowerSgdReduction::load(std::span<const std::byte> bytes) {
  reducer::SavedState state = reducer::parse(bytes, kStateName);
  if (ranks_ == 0) {
    loaded_ = std::make_unique<reducer::SavedState>(std::move(state));
    return;
  }
  restore(state);
  loaded_.reset();
}

std::vector<std::vector<std::byte>> PowerSgdReduction::redistribute(
    std::span<const std::vector<std::byte>> states, std::size_t ranks) {
  return reducer::redistribute(states, ranks, kStateName);
}

Work PowerSgdReduction::start(Communicator& communicator, const FullBucket& bucket) {
  if (bucket.op != ReduceOp::sum && bucket.op != ReduceOp::mean) {
    refuse("{} of factored gradients has no meaning; sum and mean have", stretto::name(bucket.op));
  }
  send_pending(communicator);
  while (exchanges_.size() <= bucket.index) exchanges_.push_back(std::make_unique<Exchange>());
  Exchange& exchange = *exchanges_[bucket.index];
  exchange.is_factored = std::ranges::any_of(
      bucket.gradients, [&](std::size_t index) { return by_index_[index]->is_factored; });
  if (exchange.is_factored && bucket.view.dtype != DType::f32) {
    reducer::refuse_converted(name(), bucket.view.dtype);
  }
  elements_ += bucket.view.count;
  if (!exchange.is_factored) {
    sent_ += bucket.view.count;
    return communicator.all_reduce(bucket.view, {.op = bucket.op, .timeout = bucket.timeout});
  }
  exchange.op = bucket.op;
  exchange.timeout = bucket.timeout;
  find_left_factors(bucket, exchange);
  exchange.first =
      communicator.all_reduce(exchange.left, {.op = exchange.op, .timeout = exchange.timeout});
  pending_ = &exchange;
  if (bucket.is_last()) send_pending(communicator);
  return Work();
}

void PowerSgdReduction::find_left_factors(const FullBucket& bucket, Exchange& exchange) {
  exchange.left.clear();
  exchange.gradients.clear();
  exchange.silent.clear();
  exchange.places.clear();
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[bucket.gradients[i]];
    const std::span<float> values = floats(bucket.gradient_views[i]);
    exchange.gradients.push_back(&gradient);
    exchange.silent.push_back(bucket.is_silent(i) ? 1 : 0);
    exchange.places.push_back(exchange.left.size());
    if (!gradient.is_factored) {
      exchange.left.insert(exchange.left.end(), values.begin(), values.end());
      continue;
    }
    if (bucket.is_silent(i)) {
      std::ranges::fill(gradient.left, 0.0f);
    } else {
      for (std::size_t e = 0; e < values.size(); ++e) gradient.matrix[e] += values[e];
      codec::multiply(gradient.matrix, gradient.shape, options_.rank, gradient.right,
                      gradient.left);
    }
    exchange.left.insert(exchange.left.end(), gradient.left.begin(), gradient.left.end());
  }
  sent_ += exchange.left.size();
}

// The second half of the bucket whose left factors are there by now, or will be soon: so all ranks
// submit operations in the same order.
void PowerSgdReduction::send_pending(Communicator& communicator) {
  if (pending_ == nullptr) return;
  Exchange& exchange = *std::exchange(pending_, nullptr);
  exchange.first.wait();
  find_right_factors(exchange);
  exchange.second =
      communicator.all_reduce(exchange.right, {.op = exchange.op, .timeout = exchange.timeout});
}

void PowerSgdReduction::find_right_factors(Exchange& exchange) {
  exchange.right.clear();
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    Gradient& gradient = *exchange.gradients[i];
    if (!gradient.is_factored) continue;
    const auto sum = exchange.left.begin() + static_cast<std::ptrdiff_t>(exchange.places[i]);
    std::copy_n(sum, gradient.left.size(), gradient.left.begin());
    codec::orthonormalize(gradient.shape.rows, options_.rank, gradient.left);
    if (exchange.silent[i] != 0) {
      std::ranges::fill(gradient.right, 0.0f);
    } else {
      codec::multiply_transposed(gradient.matrix, gradient.shape, options_.rank, gradient.left,
                                 gradient.right);
      // What this rank's part of the product says of its gradient is sent; the rest is kept.
      codec::add_product(gradient.matrix, gradient.shape, options_.rank, gradient.left,
                         gradient.right, -1);
    }
    exchange.right.insert(exchange.right.end(), gradient.right.begin(), gradient.right.end());
  }
  sent_ += exchange.right.size();
}

void PowerSgdReduction::finish(const FullBucket& bucket) {
  Exchange& exchange = *exchanges_[bucket.index];
  STRETTO_CHECK(pending_ != &exchange, "bucket {} ends before its second half", bucket.index);
  if (exchange.is_factored) exchange.second.wait();
  std::size_t at = 0;  // In the right factors.
  for (std::size_t i = 0; exchange.is_factored && i < exchange.gradients.size(); ++i) {
    Gradient& gradient = *exchange.gradients[i];
    const std::span<float> values = floats(bucket.gradient_views[i]);
    if (!gradient.is_factored) {
      std::copy_n(exchange.left.begin() + static_cast<std::ptrdiff_t>(exchange.places[i]),
                  values.size(), values.begin());
      continue;
    }
    std::copy_n(exchange.right.begin() + static_cast<std::ptrdiff_t>(at), gradient.right.size(),
                gradient.right.begin());
    at += gradient.right.size();
    std::ranges::fill(values, 0.0f);
    codec::add_product(values, gradient.shape, options_.rank, gradient.left, gradient.right, 1);
    // All ranks have the same factors, and begin anew together.
    if (is_finite(gradient.left) && is_finite(gradient.right)) {
      gradient.draw_zero_columns(options_.rank);
      continue;
    }
    std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
    std::ranges::fill(gradient.matrix, 0.0f);
    gradient.draw_right();
  }
  if (!bucket.is_last()) return;
  last_sent_ = std::exchange(sent_, 0);
  last_elements_ = std::exchange(elements_, 0);
}

std::span<const float> PowerSgdReduction::residual(const std::string& name) const {
  const auto found = gradients_.find(name);
  if (found == gradients_.end()) return {};
  return found->second->matrix;
}

}  // namespace stretto
