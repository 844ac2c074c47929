// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/reproducible_gradients.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "stretto/base/refuse.h"
#include "stretto/torch/parameters.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 20;

bool has_type(const torch::Tensor& parameter) {
  const torch::ScalarType type = parameter.scalar_type();
  return type == torch::kFloat || type == torch::kHalf || type == torch::kBFloat16;
}

std::span<const float> values_of(const torch::Tensor& gradient) {
  return {gradient.const_data_ptr<float>(), static_cast<std::size_t>(gradient.numel())};
}

}  // namespace

ReproducibleGradients::ReproducibleGradients(std::vector<torch::Tensor> parameters,
                                             Communicator& communicator,
                                             const std::optional<Duration>& timeout)
    : communicator_(communicator),
      timeout_(timeout),
      parameters_(ddp::distinct(std::move(parameters))) {
  // Compares first: then ranks have equal parameters, and refuse them alike below.
  ddp::check_same_parameters(communicator, {}, {"options", "ReproducibleGradients", {}},
                             parameters_, timeout_);
  std::size_t count = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& parameter = parameters_[i];
    if (!parameter.defined() || !parameter.device().is_cpu() ||
        parameter.layout() != torch::kStrided || !has_type(parameter)) {
      refuse("parameter {} is not a dense tensor of f32, f16 or bf16 on the CPU", i);
    }
    begins_.push_back(count);
    count += static_cast<std::size_t>(parameter.numel());
  }
  added_.resize(parameters_.size() + 1);
  made_.resize(parameters_.size());
  sum_.emplace(communicator, count, timeout_);
}

void ReproducibleGradients::add() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != torch::kStrided) {
      refuse("the gradient of parameter {} is sparse; ReproducibleGradients takes dense ones", i);
    }
    if (gradient.is_same(made_[i])) {
      refuse(
          "the gradient of parameter {} is that of the last reduce(), perhaps with another one "
          "added: call zero_grad(), which sets gradients to none, before the first backward pass "
          "of a step",
          i);
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].mutable_grad();
    if (!gradient.defined()) continue;
    sum_->add(values_of(gradient.to(torch::kFloat).contiguous()), begins_[i]);
    gradient = torch::Tensor();
    ++added_[i + 1];
  }
  ++added_[0];
}

std::int64_t ReproducibleGradients::reduce() {
  communicator_.all_reduce(added_, {.timeout = timeout_}).wait();
  const std::int64_t micro_batches = added_[0];
  const bool fit = micro_batches <= kMostMicroBatches;
  const auto divisor = static_cast<double>(std::max<std::int64_t>(micro_batches, 1));
  const auto sums = sum_->reduce(fit ? 1 / divisor : std::numeric_limits<double>::quiet_NaN());
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& parameter = parameters_[i];
    parameter.mutable_grad() = torch::Tensor();
    if (added_[i + 1] == 0) continue;
    const auto values = torch::from_blob(const_cast<float*>(sums.data() + begins_[i]),
                                         parameter.sizes(), torch::kFloat);
    made_[i] = torch::empty_like(parameter).copy_(values);
    parameter.mutable_grad() = made_[i];
  }
  std::ranges::fill(added_, 0);
  return micro_batches;
}

}  // namespace stretto
