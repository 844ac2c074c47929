// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/replica.h"

#include <sstream>
#include <unordered_set>
#include <utility>

#include "stretto/reducer/content_hash.h"
#include "stretto/reducer/replica_check.h"
#include "stretto/torch/tensor_bytes.h"

namespace stretto::ddp {
namespace {

// Text is put together without fmt in this layer: libtorch's folder of headers has another version
// of it, which comes first and whose compiled part nobody links.
[[noreturn]] void refuse(std::string text) {
  throw InvalidArgument(Status(StatusCode::invalid_argument, std::move(text)));
}

std::string in_quotes(const std::string& name) { return "'" + name + "'"; }

// A module lists a tensor that two of its layers share under both names; the first one counts.
std::vector<NamedTensor> without_repetition(
    const torch::OrderedDict<std::string, torch::Tensor>& named) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    if (!item.value().defined()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> result;
  for (const NamedTensor& item : named) result.push_back(item.tensor);
  return result;
}

std::string text_of(at::IntArrayRef numbers) {
  std::ostringstream text;
  text << numbers;
  return text.str();
}

std::string text_of(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return text;
}

reducer::ReplicaItem describe(const char* kind, const NamedTensor& item) {
  return {kind,
          item.name,
          {{"shape", text_of(item.tensor.sizes())},
           {"dtype", c10::toString(item.tensor.scalar_type())},
           {"requires_grad", item.tensor.requires_grad() ? "true" : "false"},
           {"strides", text_of(item.tensor.strides())}}};
}

reducer::ReplicaItem describe(const DistributedDataParallelOptions& options) {
  const auto yes_or_no = [](bool value) { return value ? "true" : "false"; };
  return {"options",
          "DistributedDataParallel",
          {{"bucket_bytes", text_of(options.bucket_bytes)},
           {"last_bucket_small", yes_or_no(options.last_bucket_small)},
           {"rebuild_buckets", yes_or_no(options.rebuild_buckets)},
           {"broadcast_buffers", yes_or_no(options.broadcast_buffers)},
           {"broadcast_parameters", yes_or_no(options.broadcast_parameters)}}};
}

// A tensor on a gradient's storage, with its parameter's strides where these fill a block of
// memory: so gradient and parameter meet element by element in the optimizer (libtorch's gradient
// layout contract). It keeps the storage alive.
torch::Tensor view_like(const torch::Tensor& parameter, const GradientStorage& storage) {
  const auto options = torch::TensorOptions().dtype(parameter.scalar_type());
  auto keep_alive = [owner = storage.owner](void*) {};
  if (parameter.is_non_overlapping_and_dense()) {
    return torch::from_blob(storage.view.data, parameter.sizes(), parameter.strides(),
                            std::move(keep_alive), options);
  }
  return torch::from_blob(storage.view.data, parameter.sizes(), std::move(keep_alive), options);
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                 DistributedDataParallelOptions options)
    : module_(std::move(module)),
      communicator_(communicator),
      options_(std::move(options)),
      parameters_(without_repetition(module_->named_parameters())),
      buffers_(without_repetition(module_->named_buffers())),
      buffer_broadcast_(communicator, options_.timeout) {
  for (const NamedTensor& parameter : parameters_) {
    if (parameter.tensor.requires_grad()) trained_.push_back(parameter);
  }
  check_tensors();
  verify_descriptions();
  if (options_.broadcast_parameters) {
    std::vector<torch::Tensor> state = tensors_of(parameters_);
    for (const NamedTensor& buffer : buffers_) state.push_back(buffer.tensor);
    TensorBytes bytes(std::move(state));
    reducer::StateBroadcast(communicator_).run(bytes.spans());
    bytes.write_back();
  }
  create_reducer();
  create_views();
  adopt_initial_gradients();
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    hooks_.emplace_back(trained_[i].tensor, [this, i] { on_gradient(i); });
  }
}

void Replica::check_tensors() const {
  if (trained_.empty()) {
    refuse("the module has no parameter that requires grad; there is nothing to keep equal");
  }
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const auto& [name, tensor] : *list) {
      if (!tensor.device().is_cpu()) {
        refuse(in_quotes(name) + " is on " + tensor.device().str() +
               "; all parameters and buffers must be on the CPU");
      }
      if (tensor.layout() != torch::kStrided) {
        refuse(in_quotes(name) + " is not a dense tensor; sparse parameters are not supported");
      }
    }
  }
  for (const auto& [name, tensor] : trained_) {
    if (!tensor.is_leaf()) {
      refuse("parameter " + in_quotes(name) + " is computed from others; it must be a leaf");
    }
    if (const auto dtype = dtype_of_tensor(tensor); !dtype.ok()) {
      dtype.status().with_context("parameter " + in_quotes(name)).or_throw();
    }
  }
}

void Replica::verify_descriptions() {
  std::vector<reducer::ReplicaItem> items = {describe(options_)};
  for (const NamedTensor& parameter : parameters_)
    items.push_back(describe("parameter", parameter));
  for (const NamedTensor& buffer : buffers_) items.push_back(describe("buffer", buffer));
  reducer::check_replicas_described_alike(communicator_, items);
}

void Replica::create_reducer() {
  std::vector<GradientDescription> gradients;
  for (const auto& [name, tensor] : trained_) {
    gradients.push_back(
        {name, dtype_of_tensor(tensor).or_throw(), static_cast<std::size_t>(tensor.numel())});
  }
  reducer_ =
      std::make_unique<Reducer>(communicator_, std::move(gradients),
                                ReducerOptions{.bucket_bytes = options_.bucket_bytes,
                                               .last_bucket_small = options_.last_bucket_small,
                                               .rebuild_buckets = options_.rebuild_buckets,
                                               .timeout = options_.timeout});
}

void Replica::create_views() {
  views_.clear();
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    views_.push_back(view_like(trained_[i].tensor, reducer_->gradient(i)));
  }
}

// Gradients that exist move into their buckets. Those that do not stay undefined: an optimizer
// steps over them, but not over zeros.
void Replica::adopt_initial_gradients() {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (trained_[i].tensor.grad().defined()) adopt_gradient(i);
  }
}

void Replica::before_forward() {
  if (!inside_backward_node() && reducer_->step_open()) {
    // The last backward pass ended in an exception; finalize() repeats what was said of it.
    end_of_backward();
  }
  if (!options_.broadcast_buffers || buffers_.empty() || no_sync_depth_ > 0) return;
  if (!module_->is_training()) return;
  TensorBytes bytes(tensors_of(buffers_));
  buffer_broadcast_.run(bytes.spans());
  bytes.write_back();
}

void Replica::on_gradient(std::size_t index) {
  adopt_gradient(index);
  if (no_sync_depth_ > 0) return;
  if (const int backward = current_backward(); backward != last_backward_) {
    last_backward_ = backward;
    call_at_end_of_backward([this] { end_of_backward(); }, [this] { reducer_->abandon_step(); });
  }
  reducer_->mark_ready(index);
}

// Makes the bucket the storage of a gradient again if it is not: after zero_grad(), which by
// default lets autograd keep the tensor that backward made, or if a program has put one there.
// Costs a copy then, which is less than zeroing the bucket and adding to it.
void Replica::adopt_gradient(std::size_t index) {
  torch::Tensor& gradient = trained_[index].tensor.mutable_grad();
  torch::Tensor& view = views_[index];
  if (gradient.is_same(view)) return;
  const torch::NoGradGuard no_grad;
  if (!gradient.defined()) {
    view.zero_();
  } else {
    const std::string name = in_quotes(trained_[index].name);
    if (gradient.layout() != torch::kStrided) {
      refuse("the gradient of " + name + " is sparse, which is not supported");
    }
    if (gradient.requires_grad()) {
      refuse(
          "backward(create_graph = true) does not work through DistributedDataParallel: the "
          "reduced gradient of " +
          name + " would not be differentiable; use torch::autograd::grad");
    }
    if (gradient.scalar_type() != view.scalar_type() || gradient.sizes() != view.sizes()) {
      refuse("parameter " + name +
             " has changed its type or shape since DistributedDataParallel was built");
    }
    view.copy_(gradient);
  }
  gradient = view;
}

void Replica::end_of_backward() {
  // An inner pass may have ended the step already, or be one of several that make it up.
  if (!reducer_->step_open()) return;
  if (!reducer_->all_ready() && inside_backward_node()) return;
  reducer_->finalize();
  if (!reducer_->rebuild()) return;
  create_views();
  for (std::size_t i = 0; i < trained_.size(); ++i) trained_[i].tensor.mutable_grad() = views_[i];
}

void Replica::verify_replicas() {
  std::vector<std::string> names;
  std::vector<std::uint64_t> hashes;
  const TensorBytes bytes(tensors_of(parameters_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    names.push_back("parameter " + in_quotes(parameters_[i].name));
    hashes.push_back(reducer::content_hash(bytes.spans()[i]));
  }
  reducer::check_replicas_hash_alike(communicator_, names, hashes);
}

std::uint64_t Replica::parameter_hash() const {
  std::uint64_t hash = 0;
  const TensorBytes bytes(tensors_of(parameters_));
  for (const ByteSpan span : bytes.spans()) hash = reducer::content_hash(span, hash);
  return hash;
}

}  // namespace stretto::ddp
