// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "stretto/reducer/communication_hook.h"
#include "stretto/torch/options.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto::ddp {

// Gives the parameters of a module the data of copies in another floating-point type, from a
// forward pass to the end of its backward pass. The tensors stay the same ones, and only their data
// are exchanged, so optimizers and names do not notice.
class LowPrecision {
 public:
  // Throws InvalidArgument for types that are not supported.
  LowPrecision(const MixedPrecision& options, const std::vector<NamedTensor>& parameters);

  bool is_on() const { return dtype_.has_value(); }
  // Whether the parameters hold the copies now.
  bool entered() const { return entered_; }
  // Copies the parameters, and puts the copies in their place.
  void enter();
  // Puts the parameters back.
  void leave();
  // Throws InvalidArgument if something, such as an optimizer, has changed the copies: the change
  // would be lost. The parameters are put back before it throws. Costs about as much as enter()
  // while entered(), else nothing.
  void refuse_lost_changes();
  bool casts_inputs() const { return is_on() && cast_inputs_; }
  // Converts a floating-point tensor to the type of the copies if casts_inputs(); returns any other
  // as it is.
  torch::Tensor cast(const torch::Tensor& tensor) const;
  // Whether backward may make gradients of this type, because the parameters hold the copies.
  bool makes(torch::ScalarType dtype) const { return entered_ && dtype == dtype_; }

 private:
  friend class FullPrecision;
  struct Copy {
    torch::Tensor parameter;
    torch::Tensor full;  // The parameter's own data, while it holds the copy.
    torch::Tensor low;
  };

  std::optional<torch::ScalarType> dtype_;
  bool cast_inputs_;
  std::vector<Copy> copies_;
  bool entered_ = false;
};

// Returns those of `named` (parameters or buffers) that are to be converted: not those of f32 of a
// BatchNorm or SyncBatchNorm in `module`. These stay f32, because a smaller type is too coarse for
// moments of many values, and the layers take inputs of a smaller type. Returns all of `named` if
// parameter_dtype is f32 or f64.
std::vector<NamedTensor> without_batch_norm(const MixedPrecision& options,
                                            const torch::nn::Module& module,
                                            const std::vector<NamedTensor>& named);

// Returns a hook that reduces gradients of f32 by `hook`, in the type that `options` name.
std::shared_ptr<CommunicationHook> with_reduce_dtype(const MixedPrecision& options,
                                                     std::shared_ptr<CommunicationHook> hook);

// Converts floating-point buffers as `options` say, permanently.
void convert_buffers(const MixedPrecision& options, const std::vector<NamedTensor>& buffers);

// While it lives, the parameters hold their own data, which the optimizer steps, even between a
// forward pass and its backward pass. The destructor puts the copies back.
class FullPrecision {
 public:
  explicit FullPrecision(LowPrecision& precision) : precision_(precision) { exchange(); }
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;
  ~FullPrecision() { exchange(); }

 private:
  void exchange();

  LowPrecision& precision_;
};

class StepTimer;

// Lives while a module's forward() runs, with the copies in place of the parameters. Its destructor
// puts the parameters back if no backward pass will follow, because gradients are off or forward()
// has thrown, and tells `timer`, if it is not null, that the forward pass has ended.
class ForwardScope {
 public:
  ForwardScope(LowPrecision& precision, StepTimer* timer);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope();

 private:
  LowPrecision& precision_;
  StepTimer* const timer_;
  const bool enters_;
  const int exceptions_when_made_;
};

}  // namespace stretto::ddp
