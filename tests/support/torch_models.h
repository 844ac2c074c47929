// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/distributed_data_parallel.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

// Small models and batches for tests of DistributedDataParallel.
namespace stretto::testing {

inline constexpr int kRanks = 2;
inline constexpr int kInputs = 6;

// A small model, but with several buckets, a shared parameter and a frozen one.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int hidden = 8) {
    first = register_module("first", torch::nn::Linear(kInputs, hidden));
    shared = register_module("shared", torch::nn::Linear(hidden, hidden));
    last = register_module("last", torch::nn::Linear(hidden, 3));
    scale = register_parameter("scale", torch::full({1}, 0.5), /*requires_grad=*/false);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(first(x));
    x = torch::tanh(shared(torch::tanh(shared(x))));
    return torch::log_softmax(last(x) * scale, 1);
  }
  torch::nn::Linear first{nullptr}, shared{nullptr}, last{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Net);

inline DistributedDataParallelOptions small_buckets() { return {.bucket_bytes = {64, 256}}; }

// Ranks that are threads share torch's one generator, so random models are made from a seed, under
// this mutex.
inline std::mutex generator_mutex;
template <class Build>
auto with_seed(std::uint64_t seed, Build build) {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(seed);
  return build();
}

template <class Model>
Model seeded(std::uint64_t seed) {
  return with_seed(seed, [] { return Model(); });
}

inline Net net(std::uint64_t seed = 1) { return seeded<Net>(seed); }

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
};

// Returns a global batch, the same on all ranks; part() cuts out a rank's share.
inline Batch global_batch(int step) {
  return with_seed(static_cast<std::uint64_t>(step) + 100, [] {
    return Batch{torch::randn({4 * kRanks, kInputs}), torch::randint(0, 3, {4 * kRanks})};
  });
}
inline Batch part(const Batch& batch, int rank) {
  return {batch.data.narrow(0, rank * 4, 4), batch.target.narrow(0, rank * 4, 4)};
}

template <class Model>
torch::Tensor loss_of(Model& model, const Batch& batch) {
  return torch::nll_loss(model.forward(batch.data), batch.target);
}

// Sets gradients that are drawn from the step's number, plus the parameters. With equal parameters
// they have the same bits on all ranks. backward() does not promise that: products of matrices may
// be rounded differently on another thread, or in memory with another alignment.
inline void set_gradients(torch::nn::Module& model, int step) {
  const torch::NoGradGuard no_grad;
  with_seed(static_cast<std::uint64_t>(step) + 200, [&] {
    for (torch::Tensor& parameter : model.parameters()) {
      if (!parameter.requires_grad()) continue;
      parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.device()) + parameter;
    }
  });
}

inline void expect_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  EXPECT_TRUE(torch::allclose(a, b, 1e-5, 1e-6)) << what << "\n" << a << "\n" << b;
}

inline void expect_equal_parameters(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    expect_close(item.value(), b.named_parameters()[item.key()], item.key());
  }
}

inline void expect_same_bits(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    const torch::Tensor other = b.named_parameters()[item.key()];
    EXPECT_TRUE(torch::equal(item.value().cpu(), other.cpu())) << item.key();
  }
}

// Expects that `own` has the gradients of `reference`, and no others.
template <class Own>
void expect_gradients_of(const torch::nn::Module& reference, Own& own) {
  for (const auto& item : reference.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const auto& gradient = own.named_parameters()[item.key()].grad();
    ASSERT_EQ(gradient.defined(), item.value().grad().defined()) << item.key();
    if (gradient.defined()) expect_close(gradient, item.value().grad(), item.key());
  }
}

// Runs a step with `ddp` on this rank's part of a batch, and expects the gradients that `reference`
// has for the whole batch.
template <class Ddp>
void expect_step_like_one_process(Ddp& ddp, Net& reference, int rank, int step,
                                  torch::ScalarType dtype = torch::kFloat) {
  Batch batch = global_batch(step);
  batch.data = batch.data.to(dtype);
  reference->zero_grad();
  loss_of(*reference, batch).backward();
  ddp.zero_grad();
  loss_of(ddp, part(batch, rank)).backward();
  expect_gradients_of(*reference, ddp);
}

// A model that uses one of its parts only if told to.
struct BranchesImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool both) { return both ? a(x) + b(x) : a(x); }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kInputs, 2));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kInputs, 2));
};
TORCH_MODULE(Branches);

// Runs `module` again in backward, as gradient checkpointing does: backward inside of backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::Linear* module) {
    context->save_for_backward({x});
    context->saved_data["module"] = reinterpret_cast<std::int64_t>(module);
    return (*module)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* module =
        reinterpret_cast<torch::nn::Linear*>(context->saved_data["module"].toInt());  // NOLINT
    const torch::AutoGradMode enable(true);
    auto x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    (*module)(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

struct CheckpointedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return last(Checkpoint::apply(Checkpoint::apply(first(x), &middle), &inner)).pow(2).mean();
  }
  torch::Tensor plain(const torch::Tensor& x) {
    return last(inner(middle(first(x)))).pow(2).mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kInputs, 4));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(4, 4));
  torch::nn::Linear inner = register_module("inner", torch::nn::Linear(4, 4));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 2));
};
TORCH_MODULE(Checkpointed);

}  // namespace stretto::testing
