// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "stretto/base/view.h"

namespace stretto::c10d_backend {

// The tensors of one operation as the buffers that the library works on, and what keeps them alive.
// Elements are taken in the order of their indices, whatever the strides: a tensor that is not
// contiguous is worked on as a contiguous copy, and an output of that kind is copied back at the
// end, so that ranks with other strides get the same.
//
// Of a type that the library does not know, the bytes: enough for what is moved, while kReduced is
// for what is reduced. All functions throw ValueError for a tensor that is not on the CPU, is
// sparse, of a type that cannot be reduced, or (of outputs) has several elements in one place.
class OperationTensors {
 public:
  static constexpr bool kReduced = true;

  ConstView input(const at::Tensor& tensor, bool is_reduced = false);
  View output(const at::Tensor& tensor, bool is_reduced = false);
  View in_place(const at::Tensor& tensor, bool is_reduced = false);
  std::vector<ConstView> inputs(const std::vector<at::Tensor>& tensors, bool is_reduced = false);
  std::vector<View> outputs(const std::vector<at::Tensor>& tensors, bool is_reduced = false);

  bool has_copies() const { return !copies_.empty(); }
  // Brings results from copies to where they belong.
  void write_back();

 private:
  struct Copy {
    at::Tensor target;
    at::Tensor block;
  };
  View writable(const at::Tensor& tensor, bool is_read, bool is_reduced);

  std::vector<at::Tensor> kept_;
  std::vector<Copy> copies_;
};

}  // namespace stretto::c10d_backend
