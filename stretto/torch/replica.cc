// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/replica.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "stretto/base/content_hash.h"
#include "stretto/reducer/replica_check.h"
#include "stretto/reducer/state_broadcast.h"
#include "stretto/torch/devices.h"
#include "stretto/torch/refuse.h"
#include "stretto/torch/tensor_bytes.h"

namespace stretto::ddp {
namespace {

std::string in_quotes(const std::string& name) { return "'" + name + "'"; }

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

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

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> result;
  for (const NamedTensor& item : named) result.push_back(item.tensor);
  return result;
}

DistributedDataParallelOptions with_codec(DistributedDataParallelOptions options) {
  if (options.codec == nullptr) return options;
  if (dynamic_cast<PlainReduction*>(options.communication_hook.get()) == nullptr) {
    refuse(
        "the options codec and communication_hook are both set; give the hook the codec: "
        "CompressedReduction({.codec = ...})");
  }
  options.communication_hook = std::make_shared<CompressedReduction>(CompressionOptions{
      .codec = options.codec, .exchange = options.exchange, .compression = options.compression});
  return options;
}

// The weight that a layer computes with, of kinds whose weights programs share between layers.
torch::Tensor weight_of(const torch::nn::Module& layer) {
  const auto* const linear = dynamic_cast<const torch::nn::LinearImpl*>(&layer);
  if (linear != nullptr) return linear->weight;
  const auto* const embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&layer);
  if (embedding != nullptr) return embedding->weight;
  const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&layer);
  return bag != nullptr ? bag->weight : torch::Tensor();
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

void check_trainable(const NamedTensor& parameter) {
  const auto& [name, tensor] = parameter;
  if (!tensor.is_leaf()) {
    refuse("parameter " + in_quotes(name) + " is computed from others; it must be a leaf");
  }
  if (const auto dtype = dtype_of_tensor(tensor); !dtype.ok()) {
    dtype.status().with_context("parameter " + in_quotes(name)).or_throw();
  }
}

void check_free(const NamedTensor& parameter) {
  if (!GradientHook::exists_on(parameter.tensor)) return;
  refuse("parameter " + in_quotes(parameter.name) +
         " already belongs to a DistributedDataParallel; only one may reduce its gradient");
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                 DistributedDataParallelOptions options)
    : module_(std::move(module)),
      communicator_(communicator),
      options_(with_codec(std::move(options))),
      parameters_(without_repetition(module_->named_parameters(), options_.parameters_to_ignore)),
      buffers_(without_repetition(module_->named_buffers(), options_.parameters_to_ignore)),
      looks_(parameters_.size()),
      precision_(options_.mixed_precision,
                 without_batch_norm(options_.mixed_precision, *module_, parameters_)),
      buffer_hook_(options_.buffer_hook != nullptr ? options_.buffer_hook
                                                   : std::make_shared<BuffersOfRank>()) {
  if (options_.communication_hook == nullptr) refuse("the option communication_hook is null");
  refuse_assigned_weights();
  look_at_parameters();
  choose_trained();
  check_tensors();
  verify_descriptions();
  agree_on_number();
  if (options_.broadcast_parameters) {
    std::vector<torch::Tensor> state = tensors_of(parameters_);
    for (const NamedTensor& buffer : buffers_) state.push_back(buffer.tensor);
    TensorBytes bytes(std::move(state));
    reducer::StateBroadcast(communicator_, options_.timeout).run(bytes.spans());
    bytes.write_back();
  }
  convert_buffers(options_.mixed_precision,
                  without_batch_norm(options_.mixed_precision, *module_, buffers_));
  build();
}

std::vector<std::string> Replica::sparse_names() const {
  std::vector<std::string> names = sparse_parameter_names(*module_);
  for (const std::string& name : options_.sparse_parameters) names.push_back(name);
  return names;
}

void Replica::look_at_parameters() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    looks_[i].data = parameters_[i].tensor.const_data_ptr();
    looks_[i].requires_grad = parameters_[i].tensor.requires_grad();
  }
}

// By what they were when last looked at, which all ranks have agreed on, or will in this step. What
// has been trained once, here or in the job that has written `also`, stays, frozen or not: some
// programs freeze a part every other step.
void Replica::choose_trained(const std::vector<std::string>& also) {
  const std::vector<std::string> sparse = sparse_names();
  trained_.clear();
  sparse_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NamedTensor& parameter = parameters_[i];
    const bool was_trained = looks_[i].gradient >= 0 || contains(also, parameter.name);
    looks_[i].dtype = parameter.tensor.scalar_type();
    looks_[i].gradient = -1;
    if (!looks_[i].requires_grad && !was_trained) continue;
    if (contains(sparse, parameter.name)) {
      sparse_.push_back(parameter);
      continue;
    }
    looks_[i].gradient = static_cast<std::ptrdiff_t>(trained_.size());
    trained_.push_back(parameter);
  }
}

// In Python `head.weight = tokens.weight` registers the parameter of the one layer in the other. In
// C++ the member is assigned, and the module still lists the parameter that nobody uses any more.
void Replica::refuse_assigned_weights() const {
  if (options_.find_unused_parameters || options_.static_graph) return;
  for (const auto& item : module_->named_modules(std::string(), /*include_self=*/false)) {
    const torch::Tensor used = weight_of(*item.value());
    if (!used.defined()) continue;
    const auto own = item.value()->named_parameters(/*recurse=*/false);
    const torch::Tensor* const registered = own.find("weight");
    if (registered == nullptr || registered->is_same(used) || !registered->requires_grad()) {
      continue;
    }
    const std::string name = in_quotes(item.key() + ".weight");
    if (contains(options_.parameters_to_ignore, item.key() + ".weight")) continue;
    refuse("layer " + in_quotes(item.key()) +
           " computes with another weight than the one that it "
           "has registered: to assign a member (head->weight = tokens->weight) does not tie "
           "parameters in C++, so " +
           name +
           " would be listed, saved and stepped, and never get a "
           "gradient. Fix: use one parameter in both places, "
           "torch::nn::functional::linear(x, tokens->weight), or name " +
           name + " in the option parameters_to_ignore");
  }
}

void Replica::check_tensors() const {
  if (trained_.empty() && sparse_.empty()) {
    refuse("the module has no parameter that requires grad; there is nothing to keep equal");
  }
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const auto& [name, tensor] : *list) {
      if (tensor.layout() != torch::kStrided) {
        refuse(in_quotes(name) + " is not a dense tensor; sparse parameters are not supported");
      }
    }
  }
  check_devices(parameters_, buffers_, precision_.is_on());
  check_sparse(sparse_);
  for (const std::string& name : options_.delayed_parameters) {
    const auto has_name = [&](const NamedTensor& parameter) { return parameter.name == name; };
    if (std::none_of(parameters_.begin(), parameters_.end(), has_name)) {
      refuse("the option delayed_parameters names " + in_quotes(name) +
             ", which is no parameter of the module");
    }
  }
  for (const NamedTensor& parameter : trained_) {
    check_trainable(parameter);
    check_free(parameter);
  }
}

void Replica::check_sparse(const std::vector<NamedTensor>& parameters) const {
  check_sparse_gradients(parameters);
  if (!precision_.is_on() || parameters.empty()) return;
  refuse("mixed_precision.parameter_dtype does not work with sparse gradients: " +
         in_quotes(parameters.front().name) + " has them");
}

// Of parameters that are to be trained from this step on, or in another type, what check_tensors()
// demands of those that are from the beginning.
void Replica::check_outgrown() const {
  const std::vector<std::string> sparse = sparse_names();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NamedTensor& parameter = parameters_[i];
    if (!parameter.tensor.requires_grad() || !is_outgrown(i)) continue;
    check_trainable(parameter);
    if (looks_[i].gradient < 0 && !looks_[i].requires_grad) check_free(parameter);
    if (contains(sparse, parameter.name)) check_sparse({parameter});
  }
}

// Rank 0's count of what it has built, so that no two on a communicator have the same number.
void Replica::agree_on_number() {
  static std::atomic<std::uint64_t> count{0};
  std::vector<std::uint64_t> number = {++count};
  communicator_.broadcast(number, {.timeout = options_.timeout}).wait();
  number_ = number.front();
}

// The reducer, gradients in its buckets, and hooks, for the parameters that are trained now.
// Gradients that do not exist stay undefined: an optimizer steps over them, but not over zeros.
void Replica::build() {
  hooks_.clear();
  same_graph_ = same_graph_ && reducer_ == nullptr;
  ReducerOptions options = reducer_options();
  options.steps = reducer_ != nullptr ? reducer_->step_count() : 0;
  options.on_reduced = [this](const FullBucket& bucket) { on_reduced(bucket); };
  reducer_ = std::make_unique<Reducer>(communicator_, describe_gradients(trained_), options);
  reducer_->set_epoch(epoch_);
  has_rebuilt_buckets_ = false;
  initial_plan_ = reducer_->plan();
  progress_.assign(trained_.size(), {});
  graph_known_ = false;
  create_views();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    torch::Tensor& gradient = trained_[i].tensor.mutable_grad();
    if (gradient.defined()) {
      progress_[i].view.copy_(gradient);  // Also from another dtype, after Module::to.
      if (!is_staged()) gradient = progress_[i].view;
    }
    if (!trained_[i].tensor.requires_grad()) reducer_->set_frozen(i, true);
    hooks_.emplace_back(trained_[i].tensor, [this, i] { on_gradient(i); });
  }
  for (const NamedTensor& parameter : sparse_) {
    hooks_.emplace_back(parameter.tensor, [this] { on_sparse_gradient(); });
  }
  buffer_dtypes_.clear();
  for (const NamedTensor& buffer : buffers_) buffer_dtypes_.push_back(buffer.tensor.scalar_type());
  outgrown_ = false;
  // Of gradients that are numbered otherwise now no more is known.
  last_step_.ready_seconds.assign(trained_.size(), last_step_.backward_seconds);
}

std::vector<GradientDescription> Replica::describe_gradients(
    const std::vector<NamedTensor>& parameters) const {
  std::vector<GradientDescription> gradients;
  for (const auto& [name, tensor] : parameters) {
    gradients.push_back({.name = name,
                         .dtype = dtype_of_tensor(tensor).or_throw(),
                         .count = static_cast<std::size_t>(tensor.numel()),
                         .rows = static_cast<std::size_t>(tensor.dim() > 1 ? tensor.size(0) : 0),
                         .delayed = contains(options_.delayed_parameters, name)});
  }
  return gradients;
}

void Replica::create_views() {
  std::vector<GradientMemory::Place> places;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const GradientStorage storage = reducer_->gradient(i);
    progress_[i].view = view_like(trained_[i].tensor, storage);
    progress_[i].view_data = storage.view.data;
    places.push_back({storage.view.data, progress_[i].view.nbytes(), storage.owner});
  }
  if (!options_.allocate_in_buckets || precision_.is_on() || is_staged()) return;
  gradient_memory_.assign(places, [this](std::size_t i) {
    return !trained_[i].tensor.grad().defined() && !reducer_->is_ready(i) &&
           !reducer_->is_frozen(i);
  });
}

// Whether a parameter is no longer what it was when its gradient got its place, or got none.
bool Replica::is_outgrown(std::size_t index) const {
  const torch::Tensor& tensor = parameters_[index].tensor;
  const Look& look = looks_[index];
  if (tensor.scalar_type() != look.dtype) return true;
  if (look.gradient < 0) return tensor.requires_grad() != look.requires_grad;
  return tensor.sizes() != progress_[static_cast<std::size_t>(look.gradient)].view.sizes();
}

// Programs unfreeze and freeze parameters, load checkpoints and change types after they have built
// this object. All ranks must do so at the same place. Until the end of the step, where they find
// out whether that is so, each does with the others what it would have done before.
void Replica::notice_changes() {
  bool replaced = false;
  outgrown_ = has_converted_buffers();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& tensor = parameters_[i].tensor;
    Look& look = looks_[i];
    const void* const data = tensor.const_data_ptr();
    const bool requires_grad = tensor.requires_grad();
    const bool same_data = data == look.data && tensor.scalar_type() == look.dtype;
    const bool outgrown = (!same_data || requires_grad != look.requires_grad) && is_outgrown(i);
    if (!outgrown) {
      look.data = data;
      look.requires_grad = requires_grad;
    }
    replaced = replaced || !same_data;
    outgrown_ = outgrown_ || outgrown;
    if (look.gradient < 0) continue;
    const auto gradient = static_cast<std::size_t>(look.gradient);
    progress_[gradient].outgrown = outgrown;
    reducer_->set_frozen(gradient, outgrown || !requires_grad);
    if (outgrown) leave_bucket(gradient);
  }
  owes_verification_ = owes_verification_ || replaced;
  if (owes_verification_) reducer_->request_verification();
  if (!outgrown_) return reducer_->withdraw_other_gradients();
  check_outgrown();
  reducer_->request_other_gradients();
}

// Autograd adds to a gradient where it stands, and the bucket may be under way by then.
void Replica::leave_bucket(std::size_t index) {
  torch::Tensor& gradient = trained_[index].tensor.mutable_grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return;
  if (gradient.const_data_ptr() == progress_[index].view_data) gradient = gradient.clone();
}

// For a pass that no forward() of this object has preceded since the last step: another one through
// the same graph, or one that began with a call of the module itself.
void Replica::refuse_unseen_changes() const {
  if (!seen_ever_ && synchronizes_buffers()) {
    refuse(
        "backward() without forward() of DistributedDataParallel: each rank would keep buffers of "
        "its own. Call ddp.forward(), not that of the module (ddp->forward()), or set "
        "broadcast_buffers = false");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& tensor = parameters_[i].tensor;
    const bool same_data = precision_.is_on() || tensor.const_data_ptr() == looks_[i].data;
    if (same_data && tensor.requires_grad() == looks_[i].requires_grad) continue;
    refuse("parameter " + in_quotes(parameters_[i].name) +
           " was frozen, unfrozen or replaced since the last forward pass of "
           "DistributedDataParallel. Call ddp.forward() after that, not forward() of the module "
           "(ddp->forward())");
  }
}

bool Replica::has_converted_buffers() const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].tensor.scalar_type() != buffer_dtypes_[i]) return true;
  }
  return false;
}

bool Replica::synchronizes_buffers() const {
  return options_.broadcast_buffers && !buffers_.empty() && module_->is_training();
}

ForwardScope Replica::before_forward() {
  // A checkpoint computes again what has been computed.
  if (inside_backward_node()) return ForwardScope(precision_);
  timer_.forward_begins();
  // If the last backward pass ended in an exception, this repeats what was said of it.
  if (pass_open_) end_of_backward();
  if (!precision_.entered()) notice_changes();
  seen_ = seen_ever_ = true;
  if (synchronizes_buffers() && no_sync_depth_ == 0) {
    const TimePoint begin = Clock::now();
    if (uneven_) uneven_->announce(reducer::UnevenSteps::Phase::buffers);
    synchronize_buffers();
    spent_besides_ += Clock::now() - begin;
  }
  return ForwardScope(precision_);
}

void Replica::synchronize_buffers() {
  // Converted ones travel as they were: other ranks may not have converted theirs. Where this rank
  // gets what it has sent it keeps its own, which the former type may have rounded.
  const bool converted = has_converted_buffers();
  std::vector<NamedTensor> as_before;
  std::vector<torch::Tensor> sent;
  for (std::size_t i = 0; converted && i < buffers_.size(); ++i) {
    as_before.push_back({buffers_[i].name, buffers_[i].tensor.to(buffer_dtypes_[i])});
    sent.push_back(as_before[i].tensor.clone());
  }
  try {
    buffer_hook_->run({.communicator = communicator_,
                       .buffers = converted ? as_before : buffers_,
                       .timeout = options_.timeout,
                       .leader = uneven_ ? std::optional(uneven_->leader()) : std::nullopt});
  } catch (const Error& error) {
    reducer_->explained(error.status()).or_throw();
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < as_before.size(); ++i) {
    if (!torch::equal(sent[i], as_before[i].tensor)) buffers_[i].tensor.copy_(as_before[i].tensor);
  }
}

// Inside join() ranks may be in different epochs.
void Replica::set_epoch(std::uint64_t epoch) {
  if (uneven_) return;
  epoch_ = epoch;
  reducer_->set_epoch(epoch);
}

void Replica::join(const std::function<void()>& loop, const UnevenInputsOptions& options) {
  if (uneven_) refuse("join() is called inside of join()");
  uneven_.emplace(communicator_, options_.timeout);
  join_options_ = options;
  try {
    loop();
    follow_others();
  } catch (...) {
    uneven_.reset();
    throw;
  }
  const Rank last = uneven_->leader();
  uneven_.reset();
  std::vector<torch::Tensor> state = tensors_of(parameters_);
  for (const NamedTensor& buffer : buffers_) state.push_back(buffer.tensor);
  TensorBytes bytes(std::move(state));
  reducer::StateBroadcast(communicator_, options_.timeout).run(bytes.spans(), last);
  bytes.write_back();
}

// What this rank does when it has no data left.
void Replica::follow_others() {
  using Phase = reducer::UnevenSteps::Phase;
  while (true) {
    const Phase phase = uneven_->listen();
    if (phase == Phase::finished) return;
    if (phase == Phase::buffers) {
      synchronize_buffers();
      continue;
    }
    borrow_places();
    finalize(false);
    same_graph_ = same_graph_ && !reducer_->graph_has_changed();
    return_places();
    if (reducer_->other_gradients_requested()) build_anew(false, 1);
    reduce_sparse_gradients(communicator_, sparse_, false, 1, options_.timeout);
    if (reducer_->rebuild()) create_views();
  }
}

void Replica::verify_replicas() {
  std::vector<std::string> names;
  std::vector<std::uint64_t> hashes;
  const TensorBytes bytes(tensors_of(parameters_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    names.push_back("parameter " + in_quotes(parameters_[i].name));
    hashes.push_back(content_hash(bytes.spans()[i]));
  }
  reducer::check_replicas_hash_alike(communicator_, names, hashes, options_.timeout);
}

std::uint64_t Replica::parameter_hash() const {
  std::uint64_t hash = 0;
  const TensorBytes bytes(tensors_of(parameters_));
  for (const ByteSpan span : bytes.spans()) hash = content_hash(span, hash);
  return hash;
}

}  // namespace stretto::ddp
