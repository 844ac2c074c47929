// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// stretto's kernels on the double's device: the host runs the arithmetic of their threads one after
// the other.

#include "stretto/cuda/kernels.h"

#include "stretto/cuda/visit_reduction.h"
#include "tests/support/fake_nccl/fake.h"

using namespace stretto::fake_nccl;
using namespace stretto::cuda;

namespace {

int error_of_launch() {
  const std::lock_guard held(shared().mutex);
  return shared().control.kernel_error;
}

void begin_kernel() {
  std::unique_lock held(shared().mutex);
  ++shared().control.kernels;
  shared().changed.wait(held, [] { return !shared().control.holds_kernels; });
}

}  // namespace

extern "C" int STRETTO_CUDA_PROBE() {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  return shared().control.probe_error;
}

extern "C" int STRETTO_CUDA_REDUCE(stretto::DType dtype, stretto::DType output,
                                   stretto::ReduceOp op, const Operands* operands, void* stream) {
  if (!has_context()) return kInvalidContext;
  if (const int error = error_of_launch()) return error;
  Operands reached = *operands;
  for (int i = 0; i < reached.input_count; ++i) reached.inputs[i] = reach(reached.inputs[i]);
  for (int i = 0; i < reached.output_count; ++i) reached.outputs[i] = reach(reached.outputs[i]);
  const auto launch = [&]<class Format, class Op>(Format, Op, int parts) {
    reached.count *= static_cast<std::size_t>(parts);
    enqueue(static_cast<StreamHandle>(stream), [reached] {
      begin_kernel();
      for (std::size_t i = 0; i < reached.count; ++i) {
        auto result = reduce_pack<Format, Op>(reached, i);
        if constexpr (kTakesFactor<Format, Op>) {
          if (reached.factor != 1) result = scaled_pack<Format>(reached, i);
        }
        for (int k = 0; k < reached.output_count; ++k) {
          static_cast<typename Format::Out*>(reached.outputs[k])[i] = result.values[0];
        }
      }
    });
  };
  return visit_reduction(dtype, output, op, launch) ? 0 : kNoKernel;
}
