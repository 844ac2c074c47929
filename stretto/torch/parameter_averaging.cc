// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/parameter_averaging.h"

#include <utility>

#include <fmt/format.h>

#include "stretto/base/reduce_op.h"
#include "stretto/base/refuse.h"
#include "stretto/torch/distinct.h"
#include "stretto/torch/tensor_bytes.h"

namespace stretto {
namespace {

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

// Neighbours together, in parts of about as many bytes.
std::vector<std::vector<torch::Tensor>> cut(std::vector<torch::Tensor> parameters, int parts) {
  std::size_t all = 0;
  for (const torch::Tensor& parameter : parameters) all += parameter.nbytes();
  std::vector<std::vector<torch::Tensor>> result(static_cast<std::size_t>(parts));
  std::size_t before = 0;
  for (torch::Tensor& parameter : parameters) {
    // Those without elements may come behind all bytes.
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
    : communicator_(communicator), options_(options) {
  check(parameters, options_);
  partitions_ = cut(ddp::distinct(std::move(parameters)), options_.partitions);
}

bool ParameterAveraging::after_step() {
  const std::uint64_t step = ++steps_;
  if (step <= options_.warm_up_steps) return false;
  const std::uint64_t own = step - options_.warm_up_steps;
  const auto period = static_cast<std::uint64_t>(options_.period);
  if (own % period != 0) return false;
  average(partitions_[(own / period - 1) % partitions_.size()]);
  return true;
}

void ParameterAveraging::average_all() {
  std::vector<torch::Tensor> all;
  for (const auto& part : partitions_) all.insert(all.end(), part.begin(), part.end());
  average(all);
}

void ParameterAveraging::average(const std::vector<torch::Tensor>& parameters) {
  if (parameters.empty()) return;
  ddp::TensorBytes bytes(parameters);
  std::vector<View> views;
  for (std::size_t i = 0; i < parameters.size(); ++i) views.push_back(bytes.view(i));
  communicator_.all_reduce_coalesced(views, {.op = ReduceOp::mean, .timeout = options_.timeout})
      .wait();
  bytes.write_back();
  for (const torch::Tensor& parameter : parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace stretto
