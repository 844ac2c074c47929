// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/communicator/backend.h"
#include "stretto/communicator/operation_observer.h"

namespace stretto::communicator {

// Wraps another backend and tells an observer of its operations. Communicators without an observer
// have no such object, so they pay nothing for it.
class ObservedBackend final : public Backend {
 public:
  // If it throws, `inner` has not been moved from.
  ObservedBackend(std::unique_ptr<Backend>&& inner, std::shared_ptr<OperationObserver> observer);

  Rank rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::uint64_t group_id() const override { return inner_->group_id(); }
  std::string group_name() const override { return inner_->group_name(); }
  Rank job_rank(Rank rank) const override { return inner_->job_rank(rank); }
  std::vector<std::int32_t> hosts() const override { return inner_->hosts(); }
  Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>& timeout) override;
  Work exchange(std::span<const Transfer> messages,
                const std::optional<Duration>& timeout) override;
  Memory allocate(std::size_t bytes, std::optional<int> device) override {
    return inner_->allocate(bytes, device);
  }
  transport::RemoteAddress locate(ConstByteSpan own) const override { return inner_->locate(own); }
  std::shared_ptr<std::byte> map(Rank rank, transport::RemoteAddress address, std::size_t bytes,
                                 const std::optional<Duration>& timeout) override {
    return inner_->map(rank, address, bytes, timeout);
  }
  std::unique_ptr<Backend> make_group(std::uint64_t number, const std::vector<Rank>& ranks,
                                      const GroupOptions& options) override;
  std::unique_ptr<Backend> shrink(const std::vector<Rank>& excluded) override;
  void abort(const std::string& reason) override;
  bool has_failed() const override { return inner_->has_failed(); }
  void note(std::string_view activity) override { inner_->note(activity); }
  void poll() override { inner_->poll(); }
  bool has_progress_thread() const override { return inner_->has_progress_thread(); }
  const DeviceOperations* devices() const override { return inner_->devices(); }
  bool maps_devices() const override { return inner_->maps_devices(); }
  std::string link_name(Rank rank) const override { return inner_->link_name(rank); }
  Explanation explain(const OperationDescriptor& operation) const override {
    return inner_->explain(operation);
  }

 private:
  // Calls `submit`, and tells the observer of the operations. All of them end with the one Work.
  template <class Submit>
  Work tell_of(std::span<ObservedOperation> operations, const Submit& submit);
  std::vector<std::uint64_t> tell_begun(std::span<ObservedOperation> operations);
  std::unique_ptr<Backend> observed(std::unique_ptr<Backend> group) const;

  const std::shared_ptr<const ObservedGroup> group_;
  const std::unique_ptr<Backend> inner_;
  const std::shared_ptr<OperationObserver> observer_;
  std::atomic<std::uint64_t> collectives_ = 0;
  std::atomic<std::uint64_t> messages_ = 0;
};

}  // namespace stretto::communicator
