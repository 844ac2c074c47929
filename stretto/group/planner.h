// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "stretto/base/single_copy.h"
#include "stretto/execution/library_execution.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/shares.h"
#include "stretto/group/explanation.h"
#include "stretto/group/selector.h"
#include "stretto/schedule/verify/proof.h"

namespace stretto::group {

// What an operation runs with: a plan by messages; or one or two plans on mapped memory; or a
// library's plan, and a plan by messages by which the ranks meet before it.
struct Plans {
  std::shared_ptr<const execution::Plan> messages;
  std::shared_ptr<const execution::LibraryPlan> library = nullptr;
  std::shared_ptr<const execution::Plan> direct = nullptr;  // Used if all buffers are registered.
  std::shared_ptr<const execution::Plan> staged = nullptr;  // Used otherwise.
  SingleCopy single_copy = SingleCopy::off;                 // When `direct` serves private buffers.
};

// Chooses algorithms, builds their schedules, has them proved, and binds them to sizes. That takes
// microseconds to tenths of seconds, so it happens once for each kind of operation, without holding
// a lock. Immutable: any thread may use it.
class Planner {
 public:
  struct Setting {
    Rank rank = 0;
    Selector::Setting selector = {};
    // Whether all ranks are one team, so that operations run on mapped memory.
    bool is_one_team = false;
    SingleCopy single_copy = SingleCopy::off;  // What all ranks can do.
    schedule::Verification verification = schedule::Verification::automatic;
    // Runs the operations that it can run and that name no algorithm; null: there is none. Must
    // outlive the planner.
    const CollectiveLibrary* library = nullptr;
    // Whether `library` runs operations on memory of devices, and only those.
    bool serves_devices = false;
    // Per rank the number of its device (processors.h), if our own schedules work on the ranks'
    // devices; else empty.
    std::vector<std::int32_t> devices = {};
  };
  explicit Planner(Setting setting) : setting_(std::move(setting)), selector_(setting_.selector) {}
  const Setting& setting() const { return setting_; }
  // Whether our own schedules can work on the devices of all ranks: one team of at most 16 ranks.
  bool maps_all_devices() const;

  // `algorithm` is a name or empty. `shares` is nothing if ranks have equal shares. Fails with
  // invalid_argument if the algorithm cannot be used here, and with internal if its schedule is
  // wrong.
  Result<Plans> plan(const OperationDescriptor& operation,
                     const std::optional<execution::SharesView>& shares,
                     std::string_view algorithm) const;
  // The number of a named algorithm, which travels with the operation.
  Result<std::uint8_t> number_of(const OperationDescriptor& operation, bool equal_shares,
                                 std::string_view algorithm) const;
  std::size_t team_lanes() const { return selector_.team_lanes(); }
  // Says with which algorithms an operation would run, and why. `algorithm` is the default one; it
  // is ignored if it cannot be used.
  Explanation explain(const OperationDescriptor& operation, std::string_view algorithm) const;

 private:
  enum class Cut { whole, segments };
  Result<std::shared_ptr<const execution::Plan>> make_plan(
      const schedule::Algorithm* algorithm, const OperationDescriptor& operation,
      const std::optional<execution::SharesView>& shares, Cut cut) const;
  std::size_t staged_segment_bytes(const schedule::Schedule& steps) const;
  bool runs_in_library(const OperationDescriptor& operation, std::string_view algorithm) const;
  bool is_mapped_on_devices(const OperationDescriptor& operation) const;
  Result<Plans> plan_on_device(const OperationDescriptor& operation,
                               const std::optional<execution::SharesView>& shares) const;
  Result<Plans> plan_library(const OperationDescriptor& operation,
                             const std::optional<execution::SharesView>& shares) const;
  SingleCopy single_copy_of(const OperationDescriptor& operation, const Choice& choice) const;
  void explain_messages(const OperationDescriptor& operation, std::string_view algorithm,
                        Explanation& explanation) const;
  void explain_mapped(const OperationDescriptor& operation, std::string_view algorithm,
                      const Choice& choice, Explanation& explanation) const;

  Setting setting_;
  Selector selector_;
};

}  // namespace stretto::group
