// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/replica.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/content_hash.h"
#include "stretto/base/refuse.h"
#include "stretto/reducer/bucket_size.h"
#include "stretto/reducer/replica_check.h"
#include "stretto/reducer/two_level_reduction.h"
#include "stretto/torch/devices.h"
#include "stretto/torch/parameter_hook.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/sync_batch_norm.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/gradient_description.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

// A module lists a tensor that two of its layers share under both names; the first one counts.
std::vector<NamedTensor> without_repetition(
    const torch::OrderedDict<std::string, torch::Tensor>& named,
    const std::vector<std::string>& ignored) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    if (!item.value().defined() || contains(ignored, item.key())) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

// Replaces each of `names` by the name that its tensor has in `parameters`: the module may list a
// tensor under several names.
std::vector<std::string> listed_names(std::vector<std::string> names,
                                      const torch::nn::Module& module,
                                      const std::vector<NamedTensor>& parameters) {
  const auto named = module.named_parameters();
  for (std::string& name : names) {
    const torch::Tensor* const tensor = named.find(name);
    if (tensor == nullptr) continue;
    const auto listed = std::ranges::find_if(
        parameters, [&](const NamedTensor& each) { return each.tensor.is_same(*tensor); });
    if (listed != parameters.end()) name = listed->name;
  }
  return names;
}

DistributedDataParallelOptions with_codec(DistributedDataParallelOptions options) {
  const CommunicationHook* const hook = options.communication_hook.get();
  if (options.codec == nullptr || hook == nullptr) return options;
  if (typeid(*hook) != typeid(PlainReduction)) {
    refuse(
        "the options codec and communication_hook are both set; give the hook the codec: "
        "TwoLevelReduction(CompressedReduction({{.codec = ...}}))");
  }
  if (options.mixed_precision.reduce_dtype.value_or(DType::f32) != DType::f32) {
    refuse(
        "the options codec and mixed_precision.reduce_dtype are both set; codecs are for gradients "
        "of f32 and have value formats of their own, so leave reduce_dtype out");
  }
  options.communication_hook =
      std::make_shared<TwoLevelReduction>(std::make_shared<CompressedReduction>(
          CompressionOptions{.codec = options.codec,
                             .exchange = options.exchange,
                             .compression = options.compression}));
  return options;
}

void refuse_capture(const torch::Device& device) {
  if (device.is_cpu() || !is_captured(current_stream(device))) return;
  refuse(
      "the current stream of {} is captured by a graph of the device, which cannot hold a step: "
      "ranks agree on each by messages. Capture parts of the model before it is wrapped, or "
      "capture collectives (stretto/base/stream_guard.h)",
      device.str());
}

// The weight that a layer computes with, for the kinds of layers between which programs share
// weights; else undefined.
torch::Tensor weight_of(const torch::nn::Module& layer) {
  const auto* const linear = dynamic_cast<const torch::nn::LinearImpl*>(&layer);
  if (linear != nullptr) return linear->weight;
  const auto* const embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&layer);
  if (embedding != nullptr) return embedding->weight;
  const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&layer);
  return bag != nullptr ? bag->weight : torch::Tensor();
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                 DistributedDataParallelOptions options)
    : module_(std::move(module)),
      communicator_(communicator),
      options_(with_codec(std::move(options))),
      bucket_bytes_(options_.bucket_bytes),
      parameters_(without_repetition(module_->named_parameters(), options_.parameters_to_ignore)),
      buffers_(without_repetition(module_->named_buffers(), options_.parameters_to_ignore)),
      looks_(parameters_.size()),
      precision_(options_.mixed_precision,
                 without_batch_norm(options_.mixed_precision, *module_, parameters_)),
      buffer_hook_(options_.buffer_hook != nullptr ? options_.buffer_hook
                                                   : std::make_shared<BuffersOfRank>()) {
  if (options_.communication_hook == nullptr) refuse("the option communication_hook is null");
  look_at_parameters();
  adopt(choose_trained());
  // A refusal is kept for verify_descriptions(), which tells it to the other ranks as well.
  refusal_ = refusal_of([this] {
    if (!options_.broadcast_buffers && options_.buffer_hook != nullptr) {
      refuse(
          "the option buffer_hook says how buffers become equal, and broadcast_buffers = false "
          "that nobody makes them so; leave one of the two out");
    }
    options_.communication_hook->claim(self_, options_.timeout);
    refuse_assigned_weights();
    check_tensors();
    // Includes frozen parameters, which may be trained later, unless their dtype cannot be reduced.
    std::vector<NamedTensor> reducible = parameters_;
    std::erase_if(reducible,
                  [](const NamedTensor& each) { return !dtype_of_tensor(each.tensor).ok(); });
    location_ = choose_bucket_location(parameters_, describe_gradients(reducible), communicator_,
                                       *reducer_options().hook, options_);
  });
  verify_descriptions();
  agree_on_number();
  if (bucket_bytes_ == kAutomaticBucketBytes) {
    bucket_bytes_ = measured_bucket_bytes(communicator_, options_.timeout);
  }
  if (options_.broadcast_parameters) broadcast_state(0);
  convert_buffers(options_.mixed_precision,
                  without_batch_norm(options_.mixed_precision, *module_, buffers_));
  for (SyncBatchNormImpl* const layer : sync_batch_norms_of(*module_)) {
    has_sync_batch_norm_ = true;
    if (options_.timeout) layer->set_timeout(options_.timeout);
  }
  connect(make_reducer(trained_, options_of_all()));
  if (!hook().finishes_early()) waits_.emplace();
}

// Copies the parameters and buffers of `root` to all ranks.
void Replica::broadcast_state(Rank root) {
  std::vector<torch::Tensor> state = tensors_of(parameters_);
  for (const NamedTensor& buffer : buffers_) state.push_back(buffer.tensor);
  TensorBytes(std::move(state))
      .broadcast(communicator_, {.root = root, .timeout = options_.timeout});
}

std::vector<std::string> Replica::sparse_names() const {
  std::vector<std::string> names = sparse_parameter_names(*module_);
  for (const std::string& name : options_.sparse_parameters) names.push_back(name);
  return listed_names(std::move(names), *module_, parameters_);
}

// In Python `head.weight = tokens.weight` registers the parameter of one layer in the other. In C++
// it only assigns the member, and the module still lists the old parameter, which is unused now.
void Replica::refuse_assigned_weights() const {
  if (passes_may_differ()) return;
  for (const auto& item : module_->named_modules(std::string(), /*include_self=*/false)) {
    const torch::Tensor used = weight_of(*item.value());
    // A weight that is no leaf is computed: forward() makes it anew each time, and the last one is
    // left from before the model was wrapped.
    if (!used.defined() || !used.is_leaf()) continue;
    const auto own = item.value()->named_parameters(/*recurse=*/false);
    const torch::Tensor* const registered = own.find("weight");
    if (registered == nullptr || registered->is_same(used) || !registered->requires_grad()) {
      continue;
    }
    if (contains(options_.parameters_to_ignore, item.key() + ".weight")) continue;
    refuse(
        "layer '{0}' computes with another weight than the one that it has registered: to assign a "
        "member (head->weight = tokens->weight) does not tie parameters in C++, so '{0}.weight' "
        "would be listed, saved and stepped, and never get a gradient. Fix: use one parameter in "
        "both places, torch::nn::functional::linear(x, tokens->weight), or name '{0}.weight' in "
        "the option parameters_to_ignore",
        item.key());
  }
}

// All ranks take rank 0's count of replicas, so that no two on a communicator have the same number.
void Replica::agree_on_number() {
  static std::atomic<std::uint64_t> count{0};
  std::vector<std::uint64_t> number = {++count};
  communicator_.broadcast(number, {.timeout = options_.timeout}).wait();
  number_ = number.front();
}

// If this fails while there is a reducer already, the communication hook may know gradients of both
// reducers, and other ranks may wait in its attach(). So the old reducer gives up: all ranks learn
// of the failure, and nothing is reduced any more.
std::unique_ptr<Reducer> Replica::make_reducer(const std::vector<NamedTensor>& parameters,
                                               ReducerOptions options) const {
  bool sees_parts = false;
  for (CommunicationHook* hook = options_.communication_hook.get(); hook != nullptr;
       hook = hook->inner()) {
    sees_parts = sees_parts || dynamic_cast<TwoLevelReduction*>(hook) != nullptr;
    auto* const sees_parameters = dynamic_cast<ParameterHook*>(hook);
    if (sees_parameters == nullptr) continue;
    if (sees_parts) {
      refuse(
          "the hook '{}' is for whole gradients, and a TwoLevelReduction hands it parts: put it "
          "around that one",
          hook->name());
    }
    sees_parameters->set_parameters(parameters);
  }
  try {
    return std::make_unique<Reducer>(communicator_, describe_gradients(parameters),
                                     std::move(options));
  } catch (const std::exception& error) {
    if (reducer_ != nullptr) {
      reducer_->give_up("rank " + std::to_string(communicator_.rank().value()) +
                        " could not begin to reduce other gradients, and its model cannot be "
                        "trained any more: " +
                        text_of(error));
    }
    throw;
  }
}

// The options of the reducer of all gradients, unlike that of reduce_late().
ReducerOptions Replica::options_of_all() {
  ReducerOptions options = reducer_options();
  options.steps = reducer_ != nullptr ? reducer_->step_count() : 0;
  options.on_reduced = [this](const FullBucket& bucket) { on_reduced(bucket); };
  return options;
}

// Puts the gradients of parameters that are trained now into the buckets of `reducer`, and sets
// hooks. If `reducer` is null, the present one and its hooks stay. Undefined gradients stay
// undefined: an optimizer skips a parameter without a gradient, but not one with zeros.
void Replica::connect(std::unique_ptr<Reducer> reducer) {
  sparse_hooks_.clear();
  for (const NamedTensor& parameter : sparse_) {
    sparse_hooks_.emplace_back(parameter.tensor, [this] {
      const auto lock = exclusive();
      on_sparse_gradient();
    });
  }
  buffer_dtypes_.clear();
  for (const NamedTensor& buffer : buffers_) buffer_dtypes_.push_back(buffer.tensor.scalar_type());
  outgrown_ = false;
  look_at_devices();
  if (reducer == nullptr) return;
  hooks_.clear();
  const std::uint64_t before = reducer_ != nullptr ? reducer_->steps_before_epoch() : 0;
  reducer_ = std::move(reducer);
  reducer_->set_epoch(epoch_, before);
  has_rebuilt_buckets_ = false;
  initial_plan_ = reducer_->plan();
  progress_.assign(trained_.size(), {});
  graph_known_ = false;
  create_views();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    torch::Tensor& gradient = trained_[i].tensor.mutable_grad();
    if (gradient.defined()) {
      progress_[i].view.copy_(gradient);  // May have another dtype, after Module::to.
      if (!is_staged(i)) gradient = progress_[i].view;
    }
    if (!trained_[i].tensor.requires_grad()) reducer_->set_frozen(i, true);
    hooks_.emplace_back(trained_[i].tensor, [this, i] {
      const auto lock = exclusive();
      on_gradient(i);
    });
  }
  // The gradients have other numbers now, so the times at which they were ready are lost.
  last_step_.ready_seconds.assign(trained_.size(), last_step_.backward_seconds);
}

std::vector<GradientDescription> Replica::describe_gradients(
    const std::vector<NamedTensor>& parameters) const {
  const std::vector<int> devices = device_numbers(parameters);
  const auto delayed = listed_names(options_.delayed_parameters, *module_, parameters);
  std::vector<GradientDescription> gradients;
  for (const auto& [name, tensor] : parameters) {
    GradientDescription& gradient = gradients.emplace_back(description_of(name, tensor));
    gradient.delayed = contains(delayed, name);
    gradient.device = devices[gradients.size() - 1];
  }
  return gradients;
}

// Whether backward passes of ranks may differ in the gradients that they make.
bool Replica::passes_may_differ() const {
  return options_.find_unused_parameters || options_.static_graph;
}

bool Replica::lends_places() const {
  return options_.allocate_in_buckets && !precision_.is_on() && is_on_cpu_;
}

void Replica::create_views() {
  std::vector<GradientMemory::Place> places;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const GradientStorage storage = reducer_->gradient(i);
    progress_[i].view = view_like(trained_[i].tensor, storage, location_.device);
    progress_[i].view_data = storage.view.data;
    places.push_back({storage.view.data, progress_[i].view.nbytes(), storage.owner});
  }
  if (!lends_places()) return gradient_memory_.retire();
  gradient_memory_.assign(places, [this](std::size_t i) {
    return !trained_[i].tensor.grad().defined() && !reducer_->is_ready(i) &&
           !reducer_->is_frozen(i);
  });
}

bool Replica::synchronizes_buffers() const {
  return options_.broadcast_buffers && !buffers_.empty() && module_->is_training();
}

// Puts back parameters that hold copies since a forward pass, because the module outlives this.
Replica::~Replica() {
  wait_for_pass();
  precision_.leave();
}

ForwardScope Replica::before_forward() {
  const void* const node = backward_node();
  if (!seen_) began_in_ = node;
  // Inside a backward pass: a checkpoint repeats a forward pass.
  if (node != nullptr) return ForwardScope(precision_, nullptr);
  if (!is_on_cpu_ && torch::GradMode::is_enabled()) {
    for (const NamedTensor& parameter : parameters_) {
      refuse_capture(parameter.tensor.device());
      if (!is_spread_) break;  // All parameters are on this device.
    }
  }
  timer_.forward_begins();
  wait_for_pass();
  // If the last backward pass ended in an exception, this throws its reason again.
  if (pass_open_) end_of_backward();
  precision_.refuse_lost_changes();
  if (precision_.entered()) {
    refuse_unseen_changes();
  } else {
    notice_changes();
  }
  seen_ = seen_ever_ = true;
  if (runs_buffer_hook(BufferHookLocation::before_forward)) synchronize_buffers();
  return ForwardScope(precision_, &timer_);
}

void Replica::end_of_forward() {
  const bool runs = runs_buffer_hook(BufferHookLocation::after_forward);
  if (runs && backward_node() == nullptr) synchronize_buffers();
}

bool Replica::runs_buffer_hook(BufferHookLocation location) const {
  return location == buffer_hook_->location() && synchronizes_buffers() && no_sync_depth_ == 0;
}

void Replica::synchronize_buffers() {
  const TimePoint begin = Clock::now();
  if (uneven_) uneven_->announce(reducer::UnevenSteps::Phase::buffers, number_);
  run_buffer_hook();
  spent_besides_ += Clock::now() - begin;
}

void Replica::run_buffer_hook() {
  // Buffers that the program has converted are sent in their former type: other ranks may not have
  // converted theirs. If this rank gets back what it has sent, it keeps its own buffer, which the
  // former type may have rounded.
  const bool converted = has_converted_buffers();
  const bool is_after = buffer_hook_->location() == BufferHookLocation::after_forward;
  std::vector<NamedTensor> handed;
  std::vector<torch::Tensor> sent;
  for (std::size_t i = 0; (converted || is_after) && i < buffers_.size(); ++i) {
    // variable_data() has a version of its own, since autograd would refuse changes of buffers that
    // layers have saved in this forward pass.
    handed.push_back({buffers_[i].name, buffers_[i].tensor.to(buffer_dtypes_[i]).variable_data()});
    if (converted) sent.push_back(handed[i].tensor.clone());
  }
  try {
    buffer_hook_->run({.communicator = communicator_,
                       .buffers = handed.empty() ? buffers_ : handed,
                       .timeout = options_.timeout,
                       .leader = uneven_ ? std::optional(uneven_->leader()) : std::nullopt});
  } catch (const Error& error) {
    reducer_->explained(error.status()).or_throw();
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const torch::Tensor& buffer = buffers_[i].tensor;
    const bool is_converted = buffer.scalar_type() != buffer_dtypes_[i];
    if (!is_converted || torch::equal(sent[i], handed[i].tensor)) continue;
    buffer.variable_data().copy_(handed[i].tensor);
  }
}

// Does nothing inside join(), where ranks may be in different epochs.
void Replica::set_epoch(std::uint64_t epoch) {
  if (uneven_) return;
  epoch_ = epoch;
  reducer_->set_epoch(epoch);
}

void Replica::put_parameters_back() {
  precision_.refuse_lost_changes();
  precision_.leave();
}

void Replica::verify_replicas() {
  const FullPrecision full = full_precision();
  std::vector<std::string> names;
  std::vector<std::uint64_t> hashes;
  const TensorBytes bytes(tensors_of(parameters_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    names.push_back(fmt::format("parameter '{}'", parameters_[i].name));
    hashes.push_back(content_hash(bytes.spans()[i]));
  }
  reducer::check_replicas_hash_alike(communicator_, names, hashes, options_.timeout);
}

std::uint64_t Replica::parameter_hash() {
  const FullPrecision full = full_precision();
  std::uint64_t hash = 0;
  const TensorBytes bytes(tensors_of(parameters_));
  for (const ByteSpan span : bytes.spans()) hash = content_hash(span, hash);
  return hash;
}

}  // namespace stretto::ddp
