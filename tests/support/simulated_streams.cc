// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/simulated_streams.h"

#include <algorithm>

#include <fmt/format.h>

namespace stretto::testing {

using execution::BoundStep;
using execution::StreamEvent;

class SimulatedDevice::Event final : public StreamEvent {
 public:
  explicit Event(SimulatedDevice& device) : device_(&device) {}
  bool is_done() override {
    if (last_ == nullptr) return true;
    device_->work();
    if (last_->has_come) device_->join(0, last_->clock);
    return last_->has_come;
  }

 private:
  friend class Queue;
  SimulatedDevice* device_;
  std::shared_ptr<Moment> last_;
};

class SimulatedDevice::Queue final : public execution::KernelQueue {
 public:
  Queue(SimulatedDevice& device, std::size_t number) : device_(&device), number_(number) {}

  Result<std::unique_ptr<StreamEvent>> make_event() override {
    return std::unique_ptr<StreamEvent>(std::make_unique<Event>(*device_));
  }
  Status run(const BoundStep& step, std::size_t count) override {
    push({.step = step, .count = count});
    return {};
  }
  void record(StreamEvent& event) override {
    auto moment = std::make_shared<Moment>();
    static_cast<Event&>(event).last_ = moment;
    push({.moment = std::move(moment)});
    auto& items = device_->items_[number_];
    if (device_->records_too_early_ && items.size() > 1)
      std::iter_swap(items.end() - 1, items.end() - 2);
  }
  bool wait(StreamEvent& event) override {
    auto* const known = dynamic_cast<Event*>(&event);
    if (known == nullptr) return event.is_done();
    if (known->last_ != nullptr) push({.moment = known->last_, .waits = true});
    return true;
  }
  bool is_done() override {
    device_->work();
    if (!device_->items_[number_].empty()) return false;
    device_->join(0, device_->clocks_[number_]);
    return true;
  }

 private:
  void push(Item item) {
    item.begun_at = device_->clocks_[0];
    device_->items_[number_].push_back(std::move(item));
  }

  SimulatedDevice* device_;
  std::size_t number_;
};

Result<std::unique_ptr<execution::KernelQueue>> SimulatedDevice::make_queue() {
  items_.emplace_back();
  for (Clock& clock : clocks_) clock.push_back(0);
  clocks_.emplace_back(items_.size());
  return std::unique_ptr<execution::KernelQueue>(std::make_unique<Queue>(*this, items_.size() - 1));
}

void SimulatedDevice::work() {
  std::vector<std::size_t> ready;
  for (std::size_t stream = 1; stream < items_.size(); ++stream) {
    if (items_[stream].empty()) continue;
    const Item& item = items_[stream].front();
    if (!item.waits || item.moment->has_come) ready.push_back(stream);
  }
  if (!ready.empty()) do_next(ready[random_.below(ready.size())]);
}

void SimulatedDevice::join(std::size_t stream, const Clock& other) {
  // A clock that is older than a stream has no entry for it.
  for (std::size_t i = 0; i < other.size(); ++i) {
    clocks_[stream][i] = std::max(clocks_[stream][i], other[i]);
  }
}

void SimulatedDevice::do_next(std::size_t stream) {
  const Item item = std::move(items_[stream].front());
  items_[stream].pop_front();
  join(stream, item.begun_at);
  if (item.moment == nullptr) {
    run(stream, item);
  } else if (item.waits) {
    join(stream, item.moment->clock);
  } else {
    item.moment->clock = clocks_[stream];
    item.moment->has_come = true;
  }
}

void SimulatedDevice::run(std::size_t stream, const Item& item) {
  ++clocks_[stream][stream];
  for (const kernel::Input& input : item.step.inputs) {
    touch(stream, input.data, item.count * size_bytes(input.dtype), false);
  }
  for (const void* output : item.step.outputs) {
    touch(stream, output, item.count * item.step.output_element_bytes, true);
  }
  const Status status = execution::host_queue().run(item.step, item.count);
  if (!status.ok() && race_.empty()) race_ = status.message();
}

void SimulatedDevice::touch(std::size_t stream, const void* data, std::size_t bytes, bool writes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  const Access own{begin, begin + bytes, writes, stream, clocks_[stream][stream]};
  for (const Access& other : accesses_) {
    const bool meet = own.begin < other.end && other.begin < own.end;
    const bool is_before = other.time <= clocks_[stream][other.stream];
    if (race_.empty() && meet && (writes || other.writes) && !is_before) {
      race_ = fmt::format("step {} of stream {} and step {} of stream {} touch the same bytes",
                          own.time, stream, other.time, other.stream);
    }
  }
  accesses_.push_back(own);
}

}  // namespace stretto::testing
