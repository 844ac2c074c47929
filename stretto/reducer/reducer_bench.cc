// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What the reducer's bookkeeping costs: a step of one rank, where nothing has to be reduced.

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "stretto/job/threads.h"
#include "stretto/reducer/reducer.h"

namespace stretto {
namespace {

// Argument 0: gradients. Of 64 elements each, as those of many small layers.
void BM_StepPerGradient(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const auto ranks = make_thread_ranks({.size = 1});
  std::vector<GradientDescription> gradients;
  for (std::size_t i = 0; i < count; ++i) gradients.push_back({std::to_string(i), DType::f32, 64});
  Reducer reducer(*ranks.front(), gradients);
  for (auto _ : state) {
    for (std::size_t i = count; i-- > 0;) reducer.mark_ready(i);
    reducer.finalize();
    benchmark::DoNotOptimize(reducer.rebuild());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(count));
}
BENCHMARK(BM_StepPerGradient)->Arg(10)->Arg(160)->Arg(2000);

}  // namespace
}  // namespace stretto
