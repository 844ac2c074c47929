// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a replica describes itself: to the other ranks, to its reducers, and when it is printed.

#include <sstream>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include "stretto/reducer/bucket_size.h"
#include "stretto/torch/devices.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/replica.h"

namespace stretto::ddp {
namespace {

std::string text_of(const MixedPrecision& precision) {
  std::string text;
  for (const auto& dtype :
       {precision.parameter_dtype, precision.reduce_dtype, precision.buffer_dtype}) {
    text += (text.empty() ? "" : ", ") + std::string(dtype ? name(*dtype) : "default");
  }
  return text;
}

reducer::ReplicaItem describe(const char* kind, const NamedTensor& item) {
  return {kind,
          item.name,
          {{"shape", list_text(item.tensor.sizes())},
           {"dtype", c10::toString(item.tensor.scalar_type())},
           {"requires_grad", item.tensor.requires_grad() ? "true" : "false"},
           {"strides", list_text(item.tensor.strides())}}};
}

std::string text_of(const BufferHook* hook) {
  if (hook == nullptr) return BuffersOfRank().name();
  const bool is_after = hook->location() == BufferHookLocation::after_forward;
  return hook->name() + (is_after ? " after forward" : "");
}

reducer::ReplicaItem describe(const DistributedDataParallelOptions& options) {
  const auto yes_or_no = [](bool value) { return value ? "true" : "false"; };
  const std::string bucket_bytes = options.bucket_bytes == kAutomaticBucketBytes
                                       ? "automatic"
                                       : fmt::format("{}", fmt::join(options.bucket_bytes, ", "));
  return {"options",
          "DistributedDataParallel",
          {{"bucket_bytes", bucket_bytes},
           {"last_bucket_small", yes_or_no(options.last_bucket_small)},
           {"rebuild_buckets", yes_or_no(options.rebuild_buckets)},
           {"broadcast_buffers", yes_or_no(options.broadcast_buffers)},
           {"broadcast_parameters", yes_or_no(options.broadcast_parameters)},
           {"find_unused_parameters", yes_or_no(options.find_unused_parameters)},
           {"allocate_in_buckets", yes_or_no(options.allocate_in_buckets)},
           {"static_graph", yes_or_no(options.static_graph)},
           {"buffer_hook", text_of(options.buffer_hook.get())},
           {"mixed_precision", text_of(options.mixed_precision)},
           {"verify_every_steps", std::to_string(options.verify_every_steps)},
           {"mean_division", std::string(name(options.mean_division))},
           {"communication_hook", options.communication_hook->name()}}};
}

}  // namespace

void Replica::verify_descriptions() {
  std::vector<reducer::ReplicaItem> items;
  items.push_back({"buckets", "memory", {{"of", location_.device.is_cpu() ? "host" : "device"}}});
  // A tensor that is refused may lack a shape or strides that would describe it.
  const std::vector<int> devices = device_numbers(parameters_);
  for (std::size_t i = 0; refusal_.ok() && i < parameters_.size(); ++i) {
    items.push_back(describe("parameter", parameters_[i]));
    items.back().facts.push_back({"device number", std::to_string(devices[i])});
  }
  for (const NamedTensor& parameter : sparse_)
    items.push_back({"sparse parameter", parameter.name, {}});
  for (const std::string& name : options_.delayed_parameters)
    items.push_back({"delayed parameter", name, {}});
  for (std::size_t i = 0; refusal_.ok() && i < buffers_.size(); ++i)
    items.push_back(describe("buffer", buffers_[i]));
  check_described_alike(communicator_, refusal_, describe(options_), std::move(items),
                        options_.timeout);
}

ReducerOptions Replica::reducer_options() const {
  const bool may_differ = passes_may_differ();
  return {.bucket_bytes = bucket_bytes_,
          .last_bucket_small = options_.last_bucket_small,
          .rebuild_buckets = options_.rebuild_buckets,
          .find_unused = may_differ,
          // Passes also differ if a rank keeps a tensor in a gradient's place that it was lent.
          .pass_waits =
              [this, may_differ] {
                return (may_differ || lends_places()) &&
                       WaitsInBackward::count() > (waits_ ? 1 : 0);
              },
          .mean_division = options_.mean_division,
          .number = number_,
          .hook = location_.hook != nullptr
                      ? location_.hook
                      : with_reduce_dtype(options_.mixed_precision, options_.communication_hook),
          .hook_owner = self_,
          .memory = location_.memory,
          .timeout = options_.timeout};
}

// Prints in the style of libtorch's modules, with the module inside.
void Replica::print(std::ostream& stream) const {
  std::size_t bytes = 0;
  for (const NamedTensor& parameter : trained_) bytes += parameter.tensor.nbytes();
  stream << "stretto::DistributedDataParallel(\n  rank " << communicator_.rank() << " of "
         << communicator_.size() << ", " << trained_.size() << " dense gradients of " << bytes
         << " bytes in " << reducer_->plan().size() << " buckets, " << sparse_.size()
         << " sparse ones, " << reducer_->step_count() << " steps\n ";
  for (const auto& [option, value] : describe(options_).facts) {
    stream << " " << option << "=" << (value.empty() ? "none" : value) << ";";
  }
  std::ostringstream inside;
  inside << *module_;
  stream << "\n  (module): ";
  for (const char letter : inside.str()) {
    stream << letter;
    if (letter == '\n') stream << "  ";
  }
  stream << "\n)";
}

}  // namespace stretto::ddp
