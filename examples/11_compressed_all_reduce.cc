// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What SINGA's DistOpt calls its modes of synchronisation, one by one, on plain vectors:
//   build/release/bin/stretto run -n 2 -- build/release/bin/11_compressed_all_reduce
// The functions below have SINGA's names. For the gradients of a model, DistOpt's
// backward_and_update is DistributedDataParallel, and
//
//   backward_and_update_half       its option {.codec = f16({.clip = 100})}
//   backward_and_sparse_update     {.codec = top_k({.density = spars})}, or threshold()
//     corr = false                 the hook CompressedReduction({..., .error_feedback = false})
//   backward_and_partial_update    ParameterAveraging with partitions

#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "stretto/reducer/compressed_all_reduce.h"
#include "stretto/stretto.h"

namespace {

using Vectors = std::vector<std::vector<float>>;
using Options = stretto::CompressedAllReduceOptions;

void all_reduce(stretto::Communicator& comm, std::vector<float>& vector) {
  comm.all_reduce(vector, {.op = stretto::ReduceOp::mean}).wait();
}

void fused_all_reduce(stretto::Communicator& comm, Vectors& vectors) {
  std::vector<stretto::View> views;
  for (auto& vector : vectors) views.push_back(stretto::view_of(std::span(vector)));
  comm.all_reduce_coalesced(views, {.op = stretto::ReduceOp::mean}).wait();
}

// Ranks' numbers are added in f32, so that sums do not overflow.
Options half(float clip) {
  return {.codec = stretto::f16({.clip = clip}), .op = stretto::ReduceOp::mean};
}

// With a state (corr = true) what is not sent now is sent later.
Options sparsification(float spars, bool top_k, stretto::CompressionState* state) {
  return {
      .codec = top_k ? stretto::top_k({.density = spars}) : stretto::threshold({.limit = spars}),
      .state = state,
      .name = "weight",
      .op = stretto::ReduceOp::mean};
}

// The fused forms of these: all vectors are on their way together.
void fused(stretto::Communicator& comm, Vectors& vectors, const Options& options) {
  std::vector<stretto::CompressedWork> works;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    Options each = options;
    each.name += std::to_string(i);
    works.push_back(stretto::start_all_reduce(comm, vectors[i], each));
  }
  for (stretto::CompressedWork& work : works) work.wait();
}

// Each rank has stepped by itself; in each step one part of the parameters becomes their mean.
void partial_update(stretto::Communicator& comm, Vectors& parameters, std::size_t step) {
  all_reduce(comm, parameters[step % parameters.size()]);
}

float sum(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0f);
}

}  // namespace

int main() {
  auto comm = stretto::join();
  const std::vector<float> gradient = {0.125f, -0.5f, 0.25f, 0.375f};  // The same on all ranks.

  // By itself, the call is this.
  stretto::CompressionState state;
  std::vector<float> reduced = gradient;
  stretto::all_reduce(*comm, reduced,
                      {.codec = stretto::top_k({.density = 0.25}),
                       .state = &state,
                       .name = "weight",
                       .op = stretto::ReduceOp::mean});

  const int rank = comm->rank().value();
  std::printf("rank %d: the greatest of four: %g\n", rank, static_cast<double>(sum(reduced)));
  // What two steps of a call make of two vectors: the sum of the second's elements, at last.
  const auto show = [&](const std::string& call, const auto& run) {
    Vectors vectors;
    for (int step = 0; step < 2; ++step) run(vectors = {gradient, gradient});
    std::printf("rank %d: %s: %g\n", rank, call.c_str(), static_cast<double>(sum(vectors[1])));
  };
  show("all_reduce", [&](Vectors& two) { all_reduce(*comm, two[1]); });
  show("fused_all_reduce", [&](Vectors& two) { fused_all_reduce(*comm, two); });
  show("all_reduce_half", [&](Vectors& two) { stretto::all_reduce(*comm, two[1], half(0.375f)); });
  show("fused_all_reduce_half", [&](Vectors& two) { fused(*comm, two, half(0.375f)); });
  for (const bool top_k : {false, true}) {
    for (const bool corr : {false, true}) {
      const std::string form = std::string("sparsification, ") + (top_k ? "top K" : "threshold") +
                               (corr ? ", corrected" : "");
      stretto::CompressionState single, of_list;
      const float spars = top_k ? 0.25f : 0.3f;
      show(form, [&](Vectors& two) {
        stretto::all_reduce(*comm, two[1], sparsification(spars, top_k, corr ? &single : nullptr));
      });
      show("fused " + form, [&](Vectors& two) {
        fused(*comm, two, sparsification(spars, top_k, corr ? &of_list : nullptr));
      });
    }
  }
  Vectors parameters(2, std::vector<float>(3, static_cast<float>(rank)));
  partial_update(*comm, parameters, 0);
  std::printf("rank %d: partial_update: %g and %g\n", rank, static_cast<double>(sum(parameters[0])),
              static_cast<double>(sum(parameters[1])));
}
