// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

// What differs between versions of PyTorch, from 2.11 on.
namespace stretto::c10d_backend {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PreMulSumSupplement = ::c10d::NCCLPreMulSumSupplement;
#else
using PreMulSumSupplement = ::c10d::PreMulSumSupplement;
#endif

// The tool that reads flight records knows a fixed list of libraries: before 2.12, none for CPUs.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
inline constexpr const char* kRecordedLibrary = "nccl";
inline constexpr auto kReduceScatterTensorCoalesced = ::c10d::OpType::UNKNOWN;
#else
inline constexpr const char* kRecordedLibrary = "gloo";
inline constexpr auto kReduceScatterTensorCoalesced =
    ::c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif

}  // namespace stretto::c10d_backend
