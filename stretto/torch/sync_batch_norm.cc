// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sync_batch_norm.h"

#include <utility>
#include <vector>

#include <torch/custom_class.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/tensors.h"

namespace stretto {
namespace {

// A tensor of one value per channel, to be combined with `input`.
torch::Tensor per_channel(const torch::Tensor& values, const torch::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// All dimensions except that of the channels.
std::vector<std::int64_t> others(const torch::Tensor& input) {
  std::vector<std::int64_t> dimensions;
  for (std::int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) dimensions.push_back(d);
  }
  return dimensions;
}

// On the CPU, wherever the input is: ranks exchange few values, for which the host waits anyway.
struct Moments {
  torch::Tensor mean;      // [C], f64.
  torch::Tensor variance;  // [C], f64, biased.
  double count = 0;        // Elements of a channel, on all ranks.
};

// What a node of a graph keeps, since the graph may outlive the module.
struct NormRanks : torch::CustomClassHolder {
  NormRanks(std::shared_ptr<Communicator> own, std::optional<Duration> limit)
      : communicator(std::move(own)), timeout(limit) {}
  std::shared_ptr<Communicator> communicator;
  std::optional<Duration> timeout;
};
using NormRanksPointer = c10::intrusive_ptr<NormRanks>;

// Each rank's count, mean and sum of squared deviations are combined in the order of ranks, so that
// all get the same bits.
Moments moments_of_all(const NormRanks& group, const torch::Tensor& input) {
  Communicator& communicator = *group.communicator;
  const std::int64_t channels = input.size(1);
  const double count = static_cast<double>(input.numel()) / static_cast<double>(channels);
  torch::Tensor own = torch::zeros({2 * channels + 1}, torch::kDouble);
  if (count > 0) {
    const torch::Tensor wide = input.to(torch::kDouble);
    const torch::Tensor mean = wide.mean(others(input));
    const torch::Tensor apart = (wide - per_channel(mean, input)).square().sum(others(input));
    own.slice(0, 0, 2 * channels).copy_(torch::cat({mean, apart}));
    own[2 * channels] = count;
  }
  torch::Tensor all = torch::empty({communicator.size(), 2 * channels + 1}, torch::kDouble);
  communicator.all_gather(view_of(own), view_of(all), {.timeout = group.timeout}).wait();
  Moments sum{torch::zeros({channels}, torch::kDouble), torch::zeros({channels}, torch::kDouble)};
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const double more = all[rank][2 * channels].item<double>();
    if (more == 0) continue;
    const torch::Tensor apart = all[rank].slice(0, 0, channels) - sum.mean;
    const double total = sum.count + more;
    sum.mean = sum.mean + apart * (more / total);
    sum.variance = sum.variance + all[rank].slice(0, channels, 2 * channels) +
                   apart.square() * (sum.count * more / total);
    sum.count = total;
  }
  if (sum.count > 0) sum.variance = sum.variance / sum.count;
  return sum;
}

std::shared_ptr<Communicator> group_of_all(Communicator& communicator) {
  std::vector<Rank> ranks(static_cast<std::size_t>(communicator.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<std::int32_t>(i);
  return communicator.new_group(std::move(ranks), {.is_for_host_memory = true});
}

struct Normalise : torch::autograd::Function<Normalise> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input, const torch::Tensor& mean,
                               const torch::Tensor& scale, double count,
                               const NormRanksPointer& group) {
    context->save_for_backward({input, mean, scale});
    context->saved_data["count"] = count;
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    return (input - per_channel(mean, input)) * per_channel(scale, input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor& input = saved[0];
    const torch::Tensor& scale = saved[2];
    const auto group =
        c10::static_intrusive_pointer_cast<NormRanks>(context->saved_data["group"].toCapsule());
    const torch::Tensor normal = (input - per_channel(saved[1], input)) * per_channel(scale, input);
    torch::Tensor sums =
        torch::stack({gradients[0].sum(others(input)), (gradients[0] * normal).sum(others(input))});
    // Sums of other ranks are not in this rank's graph, so it has no second derivatives of them.
    if (sums.requires_grad()) {
      refuse(
          "SyncBatchNorm has no second derivatives (create_graph = true); use "
          "torch::nn::BatchNorm where a gradient is differentiated");
    }
    sums = sums.cpu();
    group->communicator->all_reduce(sums, {.timeout = group->timeout}).wait();
    const torch::Tensor means = sums.to(input.device()) / context->saved_data["count"].toDouble();
    const torch::Tensor result =
        (gradients[0] - per_channel(means[0], input) - normal * per_channel(means[1], input)) *
        per_channel(scale, input);
    return {result, torch::Tensor(), torch::Tensor(), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(Communicator& communicator, std::int64_t features,
                                     const torch::nn::BatchNormOptions& settings)
    : SyncBatchNormImpl(group_of_all(communicator), features, settings) {}

SyncBatchNormImpl::SyncBatchNormImpl(std::shared_ptr<Communicator> own, std::int64_t features,
                                     const torch::nn::BatchNormOptions& settings)
    : options(settings) {
  options.num_features(features);
  set_communicator(std::move(own));
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::reset() {
  const std::int64_t features = options.num_features();
  if (options.affine()) {
    weight = register_parameter("weight", torch::empty({features}));
    bias = register_parameter("bias", torch::empty({features}));
  }
  if (options.track_running_stats()) {
    running_mean = register_buffer("running_mean", torch::empty({features}));
    running_var = register_buffer("running_var", torch::empty({features}));
    num_batches_tracked = register_buffer("num_batches_tracked", torch::empty({}, torch::kLong));
  }
  reset_parameters();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  torch::nn::init::ones_(weight);
  torch::nn::init::zeros_(bias);
}

void SyncBatchNormImpl::set_communicator(Communicator& communicator) {
  set_communicator(group_of_all(communicator));
}

void SyncBatchNormImpl::set_communicator(std::shared_ptr<Communicator> own) {
  if (own == nullptr) refuse("SyncBatchNorm without a communicator");
  communicator_ = std::move(own);
}

void SyncBatchNormImpl::track(const torch::Tensor& mean, const torch::Tensor& variance,
                              double count) {
  num_batches_tracked += 1;
  if (count == 0) return;
  const double momentum = options.momentum().has_value() ? *options.momentum()
                                                         : 1.0 / num_batches_tracked.item<double>();
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  running_mean.mul_(1 - momentum).add_(mean.to(running_mean), momentum);
  running_var.mul_(1 - momentum).add_((variance * unbiased).to(running_var), momentum);
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    refuse(
        "SyncBatchNorm takes inputs [N, {}, ...]; this one has {} dimensions or another number of "
        "channels",
        options.num_features(), input.dim());
  }
  if (!is_training()) {
    const bool own_moments = !options.track_running_stats();
    return torch::batch_norm(input, weight, bias, running_mean, running_var, own_moments, 0,
                             options.eps(), false);
  }
  const torch::ScalarType dtype = input.scalar_type();
  if (dtype == torch::kHalf || dtype == torch::kBFloat16) {
    return forward(input.to(torch::kFloat)).to(dtype);
  }
  const auto group = c10::make_intrusive<NormRanks>(communicator_, timeout_);
  Moments moments;
  {
    const torch::NoGradGuard no_grad;
    moments = moments_of_all(*group, input);
    if (options.track_running_stats()) track(moments.mean, moments.variance, moments.count);
  }
  const torch::Tensor scale = (moments.variance + options.eps()).rsqrt().to(input.options());
  torch::Tensor output =
      Normalise::apply(input, moments.mean.to(input.options()), scale, moments.count, group);
  if (!options.affine()) return output;
  return output * per_channel(weight, input) + per_channel(bias, input);
}

std::vector<SyncBatchNormImpl*> ddp::sync_batch_norms_of(torch::nn::Module& module) {
  std::vector<SyncBatchNormImpl*> found;
  const auto add = [&](torch::nn::Module& part) {
    auto* const layer = dynamic_cast<SyncBatchNormImpl*>(&part);
    if (layer != nullptr) found.push_back(layer);
  };
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) add(*part);
  return found;
}

}  // namespace stretto
