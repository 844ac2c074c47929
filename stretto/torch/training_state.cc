// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Files from which a rank resumes training with the same bits.

#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>

#include "stretto/base/content_hash.h"
#include "stretto/base/refuse.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/reducer/step_report.h"
#include "stretto/torch/optimizer_parts.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/replica.h"

namespace stretto::ddp {
namespace {

// The version of the file's layout.
constexpr std::int64_t kVersion = 5;

torch::Tensor tensor_of(const std::vector<std::byte>& bytes) {
  torch::Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kByte);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<std::byte> bytes_of(const torch::Tensor& tensor) {
  const torch::Tensor bytes = tensor.contiguous();
  const auto* const first = static_cast<const std::byte*>(bytes.const_data_ptr());
  return {first, first + bytes.nbytes()};
}

torch::Tensor read_tensor(torch::serialize::InputArchive& archive, const std::string& key) {
  torch::Tensor tensor;
  archive.read(key, tensor);
  return tensor.cpu();
}

std::string read_text(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toStringRef();
}

// The names of parameters, one per line.
std::string lines_of(const std::vector<NamedTensor>& parameters) {
  std::string lines;
  for (const NamedTensor& parameter : parameters) lines += parameter.name + '\n';
  return lines;
}

// Four numbers, then the order of gradients, then for each gradient whether it was unused on some
// rank.
torch::Tensor tensor_of(const reducer::BucketOrder& order) {
  std::vector<std::uint64_t> numbers = {order.planned_hash, order.last_hash, order.rebuilds,
                                        order.steps_before_next};
  numbers.insert(numbers.end(), order.gradients.begin(), order.gradients.end());
  numbers.insert(numbers.end(), order.unused_somewhere.begin(), order.unused_somewhere.end());
  const auto bytes = std::as_bytes(std::span(numbers));
  return tensor_of(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

reducer::BucketOrder bucket_order_of(const torch::Tensor& tensor) {
  const std::vector<std::byte> bytes = bytes_of(tensor);
  std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
  if (numbers.size() < 4) refuse("its order of buckets is too short");
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::uint64_t));
  const auto gradients = numbers.begin() + 4;
  const auto flags = gradients + (numbers.end() - gradients) / 2;
  return {.gradients = {gradients, flags},
          .unused_somewhere = {flags, numbers.end()},
          .planned_hash = numbers[0],
          .last_hash = numbers[1],
          .rebuilds = numbers[2],
          .steps_before_next = numbers[3]};
}

template <class Saved>
void write_part(torch::serialize::OutputArchive& archive, const std::string& key,
                const Saved& saved) {
  torch::serialize::OutputArchive part(archive.compilation_unit());
  saved.save(part);
  archive.write(key, part);
}

torch::serialize::InputArchive part_of(torch::serialize::InputArchive& archive,
                                       const std::string& key) {
  torch::serialize::InputArchive part;
  archive.read(key, part);
  return part;
}

// Loads the module. libtorch reads a whole archive to one device, so tensors that the program had
// elsewhere are moved back.
void read_module(torch::serialize::InputArchive& archive, torch::nn::Module& module) {
  std::vector<torch::Tensor> tensors = module.parameters();
  const std::vector<torch::Tensor> buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  std::vector<torch::Device> places;
  for (const torch::Tensor& tensor : tensors) places.push_back(tensor.device());
  torch::serialize::InputArchive part = part_of(archive, "module");
  module.load(part);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].device() != places[i]) tensors[i].set_data(tensors[i].to(places[i]));
  }
}

// The state of the random number generator of a device.
torch::Tensor state_of(torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
void set_state_of(torch::Device device, const torch::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// The device of a model whose state is written or read; refuses models on several devices.
torch::Device device_of(const std::vector<NamedTensor>& parameters) {
  if (parameters.empty()) return torch::kCPU;
  const torch::Device device = parameters.front().tensor.device();
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device() == device) continue;
    refuse(
        "'{}' is on {} and '{}' is on {}: save_state() and load_state() are for models on one "
        "device",
        parameters.front().name, device.str(), parameter.name, parameter.tensor.device().str());
  }
  return device;
}

// Parts of a file that are applied only when all ranks have read their files.
struct SavedBuckets {
  std::string gradients;  // As lines_of() makes them.
  reducer::BucketOrder order;
  std::vector<std::byte> hook_state;
};

// The key of an optimizer, by its index among all that are saved together.
std::string optimizer_key(std::size_t index) { return "optimizer" + std::to_string(index); }

SavedBuckets read_state(const std::string& file, Rank rank, int ranks, const std::string& hook,
                        torch::Device device, torch::nn::Module& module,
                        const std::vector<torch::optim::Optimizer*>& optimizers) {
  torch::serialize::InputArchive archive;
  archive.load_from(file, device);
  const auto version = read_tensor(archive, "version").item<std::int64_t>();
  if (version != kVersion) {
    refuse("it has layout {}; this program reads {}", version, kVersion);
  }
  const auto saved_ranks = read_tensor(archive, "ranks").item<std::int64_t>();
  if (saved_ranks != ranks) {
    refuse(
        "it was written by a job of {} ranks, and this one has {}: gradients would be added in "
        "another order. To go on with other bits, save and load the module with torch::save and "
        "torch::load",
        saved_ranks, ranks);
  }
  const auto saved_rank = read_tensor(archive, "rank").item<std::int64_t>();
  if (saved_rank != rank.value()) {
    refuse("it was written by rank {}: each rank has random numbers and residuals of its own",
           saved_rank);
  }
  torch::Tensor device_generator;
  const bool was_on_device = archive.try_read("device_generator", device_generator);
  if (was_on_device == device.is_cpu()) {
    refuse("it was written by a model that was {}on the CPU, and this one is on {}",
           was_on_device ? "not " : "", device.str());
  }
  const std::string saved_hook = read_text(archive, "hook");
  if (saved_hook != hook) {
    refuse("it was written with the communication hook '{}', and this one is '{}'", saved_hook,
           hook);
  }
  const auto saved_optimizers = read_tensor(archive, "optimizers").item<std::int64_t>();
  if (saved_optimizers != static_cast<std::int64_t>(optimizers.size())) {
    refuse("it has the state of {} optimizers, and {} are to be loaded", saved_optimizers,
           optimizers.size());
  }
  SavedBuckets saved{.gradients = read_text(archive, "gradients"),
                     .order = bucket_order_of(read_tensor(archive, "bucket_order")),
                     .hook_state = bytes_of(read_tensor(archive, "hook_state"))};
  read_module(archive, module);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    torch::serialize::InputArchive part = part_of(archive, optimizer_key(i));
    load_whole(*optimizers[i], part);
  }
  set_state_of(torch::kCPU, read_tensor(archive, "generator"));
  if (was_on_device) set_state_of(device, device_generator.cpu());
  return saved;
}

}  // namespace

std::string Replica::state_path(const std::string& path) const {
  return path + ".rank" + std::to_string(communicator_.rank().value());
}

// Throws if this rank or another one could not read its file, or if another rank has read another
// `state`: ranks build a reducer together, of the same gradients.
void Replica::agree_on_state(const Status& own, const std::string& state) {
  const std::uint64_t hash = own.ok() ? content_hash(std::as_bytes(std::span(state))) | 1 : 0;
  std::vector<std::uint64_t> hashes;
  try {
    hashes = communicator::all_gather_value(communicator_, hash, options_.timeout);
  } catch (const Error& error) {
    own.or_throw();
    reducer_->explained(error.status()).or_throw();
  }
  own.or_throw();
  std::vector<std::size_t> others;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hash) others.push_back(rank);
  }
  if (others.empty()) return;
  refuse(
      "the state of {} could not be taken over there, or is one of other gradients than that of "
      "this rank: load what one job has saved in the same step, on all ranks",
      reducer::rank_list(others));
}

// The part of the state that must be equal on all ranks before they build reducers and buckets from
// it: gradients and their order, and types and shapes of the loaded parameters.
std::string Replica::describe_state(std::string gradient_lines,
                                    const reducer::BucketOrder& order) const {
  std::string text = std::move(gradient_lines);
  for (const std::uint64_t gradient : order.gradients) {
    text += std::to_string(gradient) + ' ';
  }
  for (const auto& [name, tensor] : parameters_) {
    text += name + ' ' + c10::toString(tensor.scalar_type());
    for (const std::int64_t size : tensor.sizes()) text += ' ' + std::to_string(size);
    text += '\n';
  }
  return text;
}

// Forms the same buckets as the job that has written the state. Parameters that were trained there
// are trained here, too, even if the program has not unfrozen them yet.
void Replica::restore_buckets(const std::string& gradient_lines,
                              const reducer::BucketOrder& order) {
  bool fits = gradient_lines == lines_of(trained_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {  // Loading may have changed their sizes.
    fits = fits && !(looks_[i].gradient >= 0 && is_outgrown(i));
  }
  if (!fits) {
    std::vector<std::string> names;
    std::istringstream lines(gradient_lines);
    for (std::string name; std::getline(lines, name);) names.push_back(name);
    reduce_from_now_on(choose_trained(names));
  }
  if (gradient_lines != lines_of(trained_)) return;  // This job trains other parameters as well.
  if (reducer_->restore(order)) adopt_new_buckets();
  has_rebuilt_buckets_ = order.rebuilds > 0;
}

void Replica::save_state(const std::string& path,
                         const std::vector<const torch::optim::Optimizer*>& optimizers) const {
  if (pass_open_ || precision_.entered()) {
    refuse("save_state() is called between forward and backward; call it after optimizer.step()");
  }
  const torch::Device device = device_of(parameters_);
  torch::serialize::OutputArchive archive;
  archive.write("version", torch::tensor(kVersion));
  archive.write("ranks", torch::tensor(static_cast<std::int64_t>(communicator_.size())));
  archive.write("rank", torch::tensor(static_cast<std::int64_t>(communicator_.rank().value())));
  archive.write("gradients", c10::IValue(lines_of(trained_)));
  archive.write("bucket_order", tensor_of(reducer_->bucket_order()));
  archive.write("hook", c10::IValue(options_.communication_hook->name()));
  archive.write("hook_state", tensor_of(hook().save()));
  archive.write("generator", state_of(torch::kCPU));
  if (!device.is_cpu()) archive.write("device_generator", state_of(device));
  write_part(archive, "module", *module_);
  archive.write("optimizers", torch::tensor(static_cast<std::int64_t>(optimizers.size())));
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    check_is_saved(*optimizers[i]);
    write_part(archive, optimizer_key(i), *optimizers[i]);
  }
  const std::string file = state_path(path);
  try {
    archive.save_to(file + ".part");
    std::filesystem::rename(file + ".part", file);
  } catch (const std::exception& error) {
    throw SystemError(
        Status(StatusCode::system, "cannot write the state to '" + file + "': " + text_of(error)));
  }
}

void Replica::load_state(const std::string& path,
                         const std::vector<torch::optim::Optimizer*>& optimizers) {
  if (pass_open_ || precision_.entered()) {
    refuse("load_state() is called between forward and backward; call it before forward()");
  }
  const std::string context = "cannot load the state in '" + state_path(path) + "'";
  SavedBuckets saved;
  Status own;
  try {
    saved = read_state(state_path(path), communicator_.rank(), communicator_.size(),
                       options_.communication_hook->name(), device_of(parameters_), *module_,
                       optimizers);
  } catch (const std::exception& error) {
    own = Status(StatusCode::invalid_argument, text_of(error)).with_context(context);
  }
  agree_on_state(own, describe_state(saved.gradients, saved.order));
  try {
    restore_buckets(saved.gradients, saved.order);
    hook().load(saved.hook_state);  // Now that it is attached to these gradients.
  } catch (const Error& error) {
    own = error.status().with_context(context);
  } catch (const std::exception& error) {
    own = Status(StatusCode::invalid_argument, text_of(error)).with_context(context);
  }
  agree_on_state(own, saved.gradients);
  owes_verification_ = true;
}

}  // namespace stretto::ddp
