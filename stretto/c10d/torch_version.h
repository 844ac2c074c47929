// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

// Differences between versions of PyTorch, from 2.11 on.
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

// Types that came with 2.14 or 2.15. The substitutes for earlier versions are never used there.
#ifdef C10D_BACKEND_HAS_RECONFIGURE
using ReconfigureHandle = ::c10d::ReconfigureHandle;
using ReconfigureOptions = ::c10d::ReconfigureOptions;
#else
using ReconfigureHandle = std::string;
struct ReconfigureOptions {
  int64_t uuid = 0;
  std::variant<std::unordered_set<ReconfigureHandle>, std::vector<ReconfigureHandle>> handles;
  std::optional<std::chrono::milliseconds> timeout;
};
#endif
#ifdef C10D_BACKEND_HAS_HOOKS
using AbortHook = ::c10d::AbortHook;
#else
using AbortHook = std::function<void()>;
#endif

// c10d::Backend with the functions that the newest version has.
class NewestBackend : public ::c10d::Backend {
 public:
  using Backend::Backend;
#ifndef C10D_BACKEND_HAS_RECONFIGURE
  virtual bool supportsReconfigure() const = 0;
  virtual ReconfigureHandle get_reconfigure_handle() const = 0;
  virtual c10::intrusive_ptr<::c10d::Work> reconfigure(const ReconfigureOptions& options) = 0;
#endif
#ifndef C10D_BACKEND_HAS_HOOKS
  virtual void registerAbortHook(int64_t hook_id, AbortHook hook) = 0;
  virtual void unregisterAbortHook(int64_t hook_id) = 0;
#endif
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  virtual bool supportsAbortHooks() const = 0;
  virtual bool isInitialized() = 0;
#endif

 protected:
  void set_rank_and_size(int rank, int size) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    rank_ = rank;
    size_ = size;
#else
    TORCH_CHECK(rank == getRank() && size == getSize(),
                "before PyTorch 2.14 a group keeps its rank and its size");
#endif
  }
};

}  // namespace stretto::c10d_backend
