// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/cuda/kernels.h"

namespace stretto::cuda {

struct Kernels {
  Probe probe = nullptr;
  Reduce reduce = nullptr;
};

// Loads our kernels: the file that STRETTO_CUDA_KERNELS names, or libstretto_cuda_kernels.so from
// the folder of this library or program, or from where the system looks for libraries. It stays
// loaded. Fails with invalid_argument, saying what to do.
Result<Kernels> load_kernels(const Environment& environment);

struct CodecKernels {
  Probe probe = nullptr;
  Select select = nullptr;
  Round round = nullptr;
  Add add = nullptr;
};

// The same for the kernels of codecs.
Result<CodecKernels> load_codec_kernels(const Environment& environment);

}  // namespace stretto::cuda
