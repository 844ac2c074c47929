// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

#include <torch/torch.h>

namespace stretto::ddp {

// A module of libtorch that a DistributedDataParallel can stand for, with the signature of its
// forward().
template <class Wrapped, class Return, class... Arguments>
class AsModule : public torch::nn::Module {
 public:
  explicit AsModule(Wrapped wrapped) : wrapped_(std::move(wrapped)) {
    register_module("module", wrapped_.module());
  }
  Return forward(Arguments... arguments) {
    return wrapped_.forward(std::forward<Arguments>(arguments)...);
  }

 private:
  Wrapped wrapped_;
};

}  // namespace stretto::ddp
