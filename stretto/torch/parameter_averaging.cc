// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/parameter_averaging.h"

#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/gradient_description.h"

namespace stretto {
namespace {

// Announces average_all(); after_step() never counts this far.
constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

void check(const std::vector<torch::Tensor>& parameters, const ParameterAveragingOptions& options) {
  if (options.period < 1 || options.partitions < 1) {
    refuse("parameters are averaged every {} steps in {} partitions; both must be 1 or more",
           options.period, options.partitions);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& parameter = parameters[i];
    if (!parameter.defined() || parameter.is_meta() || parameter.layout() != torch::kStrided) {
      refuse("parameter {} is not a dense tensor that has memory", i);
    }
    const auto dtype = ddp::dtype_of_tensor(parameter);
    if (!dtype.ok()) dtype.status().with_context(fmt::format("parameter {}", i)).or_throw();
    if (!supports(ReduceOp::mean, dtype.value())) {
      refuse("parameter {} is of a type that has no mean", i);
    }
  }
}

reducer::ReplicaItem item_of(const ParameterAveragingOptions& options) {
  return {"options",
          "ParameterAveraging",
          {{"period", std::to_string(options.period)},
           {"partitions", std::to_string(options.partitions)},
           {"warm_up_steps", std::to_string(options.warm_up_steps)}}};
}

// A type in which a sum over ranks does not overflow, and is rounded no more than the mean.
torch::ScalarType type_of_sum(const torch::Tensor& parameter) {
  const torch::ScalarType dtype = parameter.scalar_type();
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) return torch::kDouble;
  const bool is_short = c10::isFloatingType(dtype) && parameter.element_size() < 4;
  return is_short ? torch::kFloat : dtype;
}

// Cuts the list into `parts` runs of neighbours, of about as many bytes each.
std::vector<std::vector<torch::Tensor>> cut(std::vector<torch::Tensor> parameters, int parts) {
  std::size_t all = 0;
  for (const torch::Tensor& parameter : parameters) all += parameter.nbytes();
  std::vector<std::vector<torch::Tensor>> result(static_cast<std::size_t>(parts));
  std::size_t before = 0;
  for (torch::Tensor& parameter : parameters) {
    // Parameters without elements may come behind all bytes.
    const std::size_t part = before < all ? before * result.size() / all : result.size() - 1;
    before += parameter.nbytes();
    result[part].push_back(std::move(parameter));
  }
  return result;
}

}  // namespace

ParameterAveraging::ParameterAveraging(std::vector<torch::Tensor> parameters,
                                       Communicator& communicator,
                                       ParameterAveragingOptions options)
    : Joinable(communicator), options_(options) {
  const Status refusal = ddp::refusal_of([&] { check(parameters, options_); });
  parameters = ddp::distinct(std::move(parameters));
  ddp::check_same_parameters(communicator, refusal, item_of(options_), parameters,
                             options_.timeout);
  partitions_ = cut(std::move(parameters), options_.partitions);
  has_news_.assign(partitions_.size(), false);
}

bool ParameterAveraging::after_step() {
  const std::uint64_t step = ++steps_;
  if (step <= options_.warm_up_steps) return false;
  has_news_.assign(partitions_.size(), true);
  if ((step - options_.warm_up_steps) % static_cast<std::uint64_t>(options_.period) != 0) {
    return false;
  }
  announce(step);
  average_in_turn();
  return true;
}

void ParameterAveraging::average_all() {
  announce(kAll);
  average_everything();
}

void ParameterAveraging::follow(std::uint64_t what) {
  if (what == kAll) return average_everything();
  steps_ = what;
  average_in_turn();
}

std::string ParameterAveraging::describe(std::uint64_t what) const {
  if (what == kAll) return "average_all() of the ParameterAveraging";
  return fmt::format("after_step() number {} of the ParameterAveraging", what);
}

// Any rank may have steps that are not averaged yet, `last` as well.
void ParameterAveraging::finish(Rank last) {
  average_everything();
  communicator()
      .broadcast(std::span(&steps_, 1), {.root = last, .timeout = options_.timeout})
      .wait();
}

void ParameterAveraging::average_in_turn() {
  const auto period = static_cast<std::uint64_t>(options_.period);
  const std::uint64_t turn = (steps_ - options_.warm_up_steps) / period - 1;
  const std::size_t partition = turn % partitions_.size();
  if (loop() != nullptr) return average_news({partition});
  has_news_[partition] = false;
  average(partitions_[partition], ReduceOp::mean);
}

void ParameterAveraging::average_everything() {
  if (loop() != nullptr) {
    std::vector<std::size_t> each(partitions_.size());
    std::iota(each.begin(), each.end(), std::size_t{0});
    return average_news(each);
  }
  has_news_.assign(partitions_.size(), false);
  std::vector<torch::Tensor> all;
  for (const auto& part : partitions_) all.insert(all.end(), part.begin(), part.end());
  average(all, ReduceOp::mean);
}

// Averages over the ranks that have stepped since the last average. The values of other ranks are
// those of the last average, or older, and would draw the new one back.
void ParameterAveraging::average_news(const std::vector<std::size_t>& partitions) {
  std::vector<double> contributors;
  for (const std::size_t i : partitions) contributors.push_back(has_news_[i] ? 1 : 0);
  communicator().all_reduce(contributors, {.timeout = options_.timeout}).wait();
  const torch::NoGradGuard no_grad;
  for (std::size_t n = 0; n < partitions.size(); ++n) {
    if (contributors[n] == 0) continue;
    const std::vector<torch::Tensor>& parameters = partitions_[partitions[n]];
    const bool has_news = has_news_[partitions[n]];
    has_news_[partitions[n]] = false;
    if (contributors[n] == communicator().size()) {
      average(parameters, ReduceOp::mean);
      continue;
    }
    average_some(parameters, has_news, contributors[n]);
  }
}

// Takes the mean over the `contributors` ranks that have news. Sends copies: if this fails, each
// rank still has its own parameters.
void ParameterAveraging::average_some(const std::vector<torch::Tensor>& parameters, bool has_news,
                                      double contributors) {
  std::vector<torch::Tensor> sums;
  for (const torch::Tensor& parameter : parameters) {
    const auto options = parameter.options().device(torch::kCPU).dtype(type_of_sum(parameter));
    sums.push_back(torch::zeros_like(parameter, options));
    if (has_news) sums.back().copy_(parameter);
  }
  average(sums, ReduceOp::sum);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    parameters[i].detach().copy_(sums[i] / contributors);
  }
}

void ParameterAveraging::average(const std::vector<torch::Tensor>& parameters, ReduceOp op) {
  if (parameters.empty()) return;
  ddp::TensorBytes bytes(parameters);
  std::vector<View> views;
  for (std::size_t i = 0; i < parameters.size(); ++i) views.push_back(bytes.view(i));
  communicator().all_reduce_coalesced(views, {.op = op, .timeout = options_.timeout}).wait();
  bytes.write_back();
  for (const torch::Tensor& parameter : parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace stretto
