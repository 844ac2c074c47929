// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include <torch/torch.h>

namespace stretto {

template <class Module>
concept TorchModule = std::derived_from<Module, torch::nn::Module>;
// A holder class as TORCH_MODULE(Net) defines it: `Net` points to a module of class NetImpl.
template <class Holder>
concept TorchModuleHolder =
    std::derived_from<Holder, torch::nn::ModuleHolder<typename Holder::ContainedType>>;
template <class Module>
concept TorchModuleOrHolder = TorchModule<Module> || TorchModuleHolder<Module>;

}  // namespace stretto

namespace stretto::ddp {

// A libtorch module around a DistributedDataParallel (`Wrapped`), so that a torch::nn::Sequential
// can hold it. Its forward() has the one signature that libtorch's AnyModule asks for.
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

// Puts `wrapped` into an AsModule whose forward() has the signature of the given member function.
template <class Wrapped, class Return, class Class, class... Arguments>
torch::nn::AnyModule any_module_of(const Wrapped& wrapped, Return (Class::*)(Arguments...)) {
  return torch::nn::AnyModule(std::make_shared<AsModule<Wrapped, Return, Arguments...>>(wrapped));
}
template <class Wrapped, class Return, class Class, class... Arguments>
torch::nn::AnyModule any_module_of(const Wrapped& wrapped, Return (Class::*)(Arguments...) const) {
  return any_module_of(wrapped, static_cast<Return (Class::*)(Arguments...)>(nullptr));
}

}  // namespace stretto::ddp
