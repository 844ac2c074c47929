// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/logging_data.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include "stretto/torch/replica.h"
#include "stretto/torch/sync_batch_norm.h"

namespace stretto::ddp {
namespace {

std::int64_t nanoseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

TimePoint after(TimePoint begin, double offset_seconds) {
  return begin +
         std::chrono::duration_cast<Duration>(std::chrono::duration<double>(offset_seconds));
}

// Gradients in the order in which they became ready in the last step.
std::vector<std::size_t> ready_order(const std::vector<double>& ready_seconds) {
  std::vector<std::size_t> order(ready_seconds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t index) { return ready_seconds[index] < 0; });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ready_seconds[a] < ready_seconds[b];
  });
  return order;
}

// Writes the sizes of the buckets of `plan`, and their limits, under these keys.
void describe_buckets(const reducer::BucketPlan& plan, const std::vector<NamedTensor>& parameters,
                      const std::string& sizes_key, const std::string& limits_key,
                      LoggingData& data) {
  std::vector<std::size_t> sizes, limits;
  for (const reducer::PlannedBucket& bucket : plan) {
    sizes.push_back(0);
    for (const std::size_t index : bucket.gradients) {
      sizes.back() += parameters[index].tensor.nbytes();
    }
    limits.push_back(bucket.limit_bytes);
  }
  data.strs_map[sizes_key] = fmt::format("{}", fmt::join(sizes, ", "));
  data.strs_map[limits_key] = fmt::format("{}", fmt::join(limits, ", "));
}

std::string dtypes_of(const std::vector<NamedTensor>& parameters) {
  std::set<std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names.emplace(parameter.tensor.dtype().name());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void StepTimer::add(StepStatistics& step) {
  step.forward_begin = forward_begin_;
  step.forward_seconds = seconds(forward_end_ - forward_begin_);
  compute_end_ = after(step.begin, step.backward_seconds);
  // Negative if no bucket was reduced.
  const double end = step.end_seconds.empty() ? -1 : std::ranges::max(step.end_seconds);
  comm_begin_ = end < 0 ? compute_end_ : after(step.begin, end - step.communication_seconds);
  comm_end_ = end < 0 ? compute_end_ : after(step.begin, end);
  last_.forward = forward_end_ - forward_begin_;
  last_.backward_compute = compute_end_ - forward_end_;
  last_.backward_comm = comm_end_ - comm_begin_;
  last_.overlap = std::max(Duration(0), std::min(compute_end_, comm_end_) - comm_begin_);
  sum_.forward += last_.forward;
  sum_.backward_compute += last_.backward_compute;
  sum_.backward_comm += last_.backward_comm;
  sum_.overlap += last_.overlap;
  ++steps_;
}

void StepTimer::describe(LoggingData& data) const {
  auto& ints = data.ints_map;
  ints["iteration"] = steps_;
  if (steps_ == 0) return;
  const auto duration = [&](const std::string& key, Duration last, Duration sum) {
    ints[key] = nanoseconds(last);
    ints["avg_" + key] = nanoseconds(sum) / steps_;
  };
  duration("forward_compute_time", last_.forward, sum_.forward);
  duration("backward_compute_time", last_.backward_compute, sum_.backward_compute);
  duration("backward_comm_time", last_.backward_comm, sum_.backward_comm);
  duration("backward_compute_comm_overlap_time", last_.overlap, sum_.overlap);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const Duration offset =
      std::chrono::duration_cast<Duration>(now) - Clock::now().time_since_epoch();
  const auto point = [&](const char* key, TimePoint time) {
    ints[key] = nanoseconds(offset + time.time_since_epoch());
  };
  point("forward_compute_time_start", forward_begin_);
  point("backward_compute_time_start", forward_end_);
  point("backward_compute_time_end", compute_end_);
  point("backward_comm_time_start", comm_begin_);
  point("backward_comm_time_end", comm_end_);
}

LoggingData Replica::logging_data() const {
  LoggingData data;
  auto& [strings, ints] = data;
  std::size_t bytes = 0;
  for (const NamedTensor& parameter : trained_) bytes += parameter.tensor.nbytes();
  strings = {{"backend_name", "stretto"},
             {"module_name", module_->name()},
             {"device_ids", ""},
             {"dtypes", dtypes_of(trained_)},
             {"comm_hook", options_.communication_hook->name()}};
  describe_buckets(initial_plan_, trained_, "bucket_sizes", "initial_bucket_size_limits", data);
  ints = {{"world_size", communicator_.size()},
          {"rank", communicator_.rank().value()},
          {"output_device", -1},
          {"is_multi_device_module", 0},
          {"num_parameter_tensors", static_cast<std::int64_t>(trained_.size())},
          {"total_parameter_size_bytes", static_cast<std::int64_t>(bytes)},
          {"bucket_cap_bytes", static_cast<std::int64_t>(bucket_bytes_.back())},
          {"broadcast_buffers", options_.broadcast_buffers},
          {"find_unused_parameters", options_.find_unused_parameters},
          {"static_graph", options_.static_graph},
          {"gradient_as_bucket_view", 1},
          {"join_uneven_inputs", uneven_ != nullptr},
          {"has_sync_bn", !sync_batch_norms_of(*module_).empty()}};
  timer_.describe(data);
  const StepStatistics& step = last_step_;
  if (step.step == 0) return data;
  std::int64_t unused_bytes = 0;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (step.ready_seconds[i] < 0) {
      unused_bytes += static_cast<std::int64_t>(trained_[i].tensor.nbytes());
    }
  }
  ints["unused_parameter_size"] = unused_bytes;
  ints["num_buckets_reduced"] =
      std::ranges::count_if(step.end_seconds, [](double end) { return end >= 0; });
  ints["has_rebuilt_buckets"] = has_rebuilt_buckets_;
  if (step.step > 1) ints["can_set_static_graph"] = same_graph_;
  strings["prev_iteration_grad_ready_order_indices"] =
      fmt::format("{}", fmt::join(ready_order(step.ready_seconds), ", "));
  if (!has_rebuilt_buckets_) return data;
  describe_buckets(reducer_->plan(), trained_, "rebuilt_bucket_sizes", "rebuilt_bucket_size_limits",
                   data);
  std::string& indices = strings["rebuilt_per_bucket_param_indices"];
  for (const reducer::PlannedBucket& bucket : reducer_->plan()) {
    indices += fmt::format("{}{}", indices.empty() ? "" : ", ", fmt::join(bucket.gradients, " "));
  }
  return data;
}

}  // namespace stretto::ddp
