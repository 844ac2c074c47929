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

// The parameters of a module, of which copies in another floating-point type take the place from a
// forward pass to the end of its backward pass. The tensors are the same ones all the time, only
// their data change; optimizers and names do not notice.
class LowPrecision {
 public:
  // Throws InvalidArgument for types that are not supported.
  LowPrecision(const MixedPrecision& options, const std::vector<NamedTensor>& parameters);

  bool is_on() const { return dtype_.has_value(); }
  // Whether the parameters are the copies now.
  bool entered() const { return entered_; }
  // Copies the parameters, and puts the copies in their place.
  void enter();
  // Puts the parameters back.
  void leave();
  // Throws InvalidArgument if something has changed the copies, an optimizer say, and would be
  // lost; then the parameters are back. Costs about as much as enter(), while they are entered().
  void refuse_lost_changes();
  bool casts_inputs() const { return is_on() && cast_inputs_; }
  // A floating-point tensor in the type of the copies, another one as it is.
  torch::Tensor cast(const torch::Tensor& tensor) const;
  // Whether a gradient of this type may be that of a parameter.
  bool makes(torch::ScalarType dtype) const { return entered_ && dtype == dtype_; }

 private:
  friend class FullPrecision;
  struct Copy {
    torch::Tensor parameter;
    torch::Tensor full;  // Its own data, while the copy stands in its place.
    torch::Tensor low;
  };

  std::optional<torch::ScalarType> dtype_;
  bool cast_inputs_;
  std::vector<Copy> copies_;
  bool entered_ = false;
};

// Those of `named`, of parameters or buffers, that do not belong to a BatchNorm or SyncBatchNorm in
// `module`: these stay f32, because moments of many values are lost in a smaller type, and take
// inputs of that type as they are. All of `named`, if the parameters become f32 or f64.
std::vector<NamedTensor> without_batch_norm(const MixedPrecision& options,
                                            const torch::nn::Module& module,
                                            const std::vector<NamedTensor>& named);

// The hook that gradients of f32 are reduced by: `hook`, in the type that `options` name.
std::shared_ptr<CommunicationHook> with_reduce_dtype(const MixedPrecision& options,
                                                     std::shared_ptr<CommunicationHook> hook);

// Converts floating-point buffers as `options` say, for good.
void convert_buffers(const MixedPrecision& options, const std::vector<NamedTensor>& buffers);

// While it lives, the parameters are those that the optimizer steps, also between a forward pass
// and its backward pass, which finds the copies again.
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

// From before a module's forward() to behind it: puts the parameters back where no backward pass
// will follow, because gradients are off or forward() has thrown, and tells `timer`, if there is
// one, of the end.
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
