// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What SINGA's DistOpt calls its modes of synchronisation, one by one, on plain vectors:
//   build/release/bin/stretto run -n 2 -- build/release/bin/11_compressed_all_reduce
//
//   all_reduce, fused_all_reduce                all_reduce, all_reduce_coalesced
//   all_reduce_half, fused_all_reduce_half      all_reduce with f16(), clipped if asked; sums are
//   f32 sparsification, topK = false, corr = true   all_reduce with threshold() and a state
//   sparsification, topK = true, corr = true    all_reduce with top_k() and a state
//   sparsification, corr = false                the same without a state
//   backward_and_partial_update                 partial_update(), below
// The fused forms are the same calls for each vector of a list.

#include <cstdio>
#include <numeric>
#include <vector>

#include "stretto/reducer/compressed_all_reduce.h"
#include "stretto/stretto.h"

namespace {

// backward_and_partial_update: each rank has stepped by itself; in each step one part of the
// parameters becomes their mean.
void partial_update(stretto::Communicator& comm, std::vector<std::vector<float>>& parameters,
                    std::size_t step) {
  std::vector<float>& part = parameters[step % parameters.size()];
  comm.all_reduce(part, {.op = stretto::ReduceOp::mean}).wait();
}

float sum(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0f);
}

}  // namespace

int main() {
  auto comm = stretto::join();
  const std::vector<float> gradient = {0.01f, -0.04f, 0.02f, 0.03f};  // The same on all ranks.

  // corr = true: what is not sent now is sent later.
  stretto::CompressionState state;
  std::vector<float> reduced = gradient;
  stretto::all_reduce(*comm, reduced,
                      {.codec = stretto::top_k({.density = 0.25}),
                       .state = &state,
                       .name = "weight",
                       .op = stretto::ReduceOp::mean});

  std::vector<float> above = gradient;
  stretto::all_reduce(
      *comm, above,
      {.codec = stretto::threshold({.limit = 0.025f}), .op = stretto::ReduceOp::mean});

  std::vector<float> halved = {1000.0f, 0.5f};
  stretto::all_reduce(*comm, halved,
                      {.codec = stretto::f16({.clip = 100}), .op = stretto::ReduceOp::mean});

  std::vector<std::vector<float>> parameters(2, std::vector<float>(3));
  for (auto& part : parameters) part[0] = static_cast<float>(comm->rank().value());
  partial_update(*comm, parameters, 0);

  std::printf("rank %d: top k %g, threshold %g, half %g, partial %g\n", comm->rank().value(),
              static_cast<double>(reduced[1]), static_cast<double>(sum(above)),
              static_cast<double>(sum(halved)), static_cast<double>(parameters[0][0]));
}
