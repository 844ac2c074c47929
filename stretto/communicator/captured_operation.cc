// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/captured_operation.h"

#include <atomic>
#include <utility>

#include "stretto/base/call_back.h"
#include "stretto/base/stream_guard.h"

namespace stretto::communicator {
namespace {

// What else there is to do is up to the device.
class CapturedOperation final : public group::Operation {
 public:
  CapturedOperation(const OperationInfo& info, std::vector<std::shared_ptr<DeviceEnd>> ends)
      : info_(info), ends_(std::move(ends)) {}

  bool poll() override { return true; }
  Status wait(Deadline) override { return wait_on_device(); }
  Status wait_on_device() override {
    for (const auto& end : ends_) {
      const Status status = end->let_wait(StreamGuard::current());
      if (status.ok()) continue;
      if (is_waited_for_) return {};  // The graph is complete, and has it.
      return status.with_context("no stream can wait for what a graph captured");
    }
    is_waited_for_ = true;
    return {};
  }
  void end() override {
    if (!is_waited_for_) (void)wait_on_device();
  }
  bool is_captured() const override { return true; }
  void then(Continuation continuation) override { call_back(continuation, Status()); }
  void abandon() override {}
  OperationInfo info() const override { return info_; }

 private:
  const OperationInfo info_;
  const std::vector<std::shared_ptr<DeviceEnd>> ends_;
  std::atomic<bool> is_waited_for_ = false;
};

}  // namespace

Work make_captured(Work begun, Collective last, std::vector<std::shared_ptr<DeviceEnd>> ends) {
  const OperationInfo info{.collective = last, .number = begun.number()};
  begun.wait();
  return Work(std::make_shared<CapturedOperation>(info, std::move(ends)));
}

}  // namespace stretto::communicator
