// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/operation.h"
#include "stretto/base/view.h"
#include "stretto/communicator/memory.h"
#include "stretto/communicator/options.h"
#include "stretto/communicator/work.h"
#include "stretto/execution/shares.h"
#include "stretto/group/explanation.h"
#include "stretto/group/packing.h"
#include "stretto/transport/memory.h"

namespace stretto::communicator {

// One rank's part in a collective. Its arguments have been checked.
struct CollectiveCall {
  // Writes each field, and nothing else: a constructor that the compiler makes clears the whole
  // call first, 280 bytes, which takes a tenth of an all-reduce of eight bytes.
  CollectiveCall() {}  // NOLINT
  explicit CollectiveCall(const OperationDescriptor& what, ConstByteSpan from = {},
                          ByteSpan to = {},
                          const std::optional<execution::SharesView>& of = std::nullopt)
      : operation(what), input(from), output(to), shares(of) {}

  OperationDescriptor operation;  // The algorithm is the backend's to fill in.
  ConstByteSpan input = {};
  ByteSpan output = {};
  // How many elements belong to each rank, in lists that are gone when submit() has returned.
  // Nothing: equal shares.
  std::optional<execution::SharesView> shares = std::nullopt;
  // What has to be done with the caller's buffers before and after. With it, `input` or `output`,
  // if empty, is its scratch. A backend for memory of devices finds out whether they lie there.
  std::optional<group::Packing> packing = std::nullopt;
};

// What carries out the operations of a Communicator (scheduled_backend.h), perhaps with an observer
// around it (observed_backend.h). A Backend belongs to one Communicator, which has checked all
// arguments and put lists, factors and shares into calls. Functions that block or fail do so as the
// Communicator's of the same name say, and throw what those promise. Any thread may call;
// destroying it ends the group for this rank.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  // The same on all ranks, and another than that of any other group that has been made in the job.
  virtual std::uint64_t group_id() const = 0;
  virtual std::string group_name() const = 0;  // GroupOptions::name.
  // The number by which failures name a rank of the group.
  virtual Rank job_rank(Rank rank) const = 0;
  // Of each rank the number of its host, as hosts first appear.
  virtual std::vector<std::int32_t> hosts() const = 0;

  // Starts collectives that one Work stands for, in their order. `algorithm` is empty if the caller
  // has named none; `timeout`, if there is one, is not negative. Calls may be moved from. If a call
  // cannot be begun although one before it has been, the group fails.
  virtual Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
                      const std::optional<Duration>& timeout) = 0;
  // Starts messages that one Work stands for.
  virtual Work exchange(std::span<const Transfer> messages,
                        const std::optional<Duration>& timeout) = 0;

  virtual Memory allocate(std::size_t bytes, std::optional<int> device) = 0;
  // How the other ranks are told of what allocate() has given in memory of the host; not valid if
  // none can reach it.
  virtual transport::RemoteAddress locate(ConstByteSpan own) const = 0;
  // Memory of another rank, in this process, as long as the pointer is held; null if this rank does
  // not reach it. Blocks until it has come.
  virtual std::shared_ptr<std::byte> map(Rank rank, transport::RemoteAddress address,
                                         std::size_t bytes,
                                         const std::optional<Duration>& timeout) = 0;

  // A group of some of these ranks; all of them make it, in the same order. Null if this rank is
  // not in the list. `number` becomes its group_id().
  virtual std::unique_ptr<Backend> make_group(std::uint64_t number, const std::vector<Rank>& ranks,
                                              const GroupOptions& options) = 0;
  virtual std::unique_ptr<Backend> shrink(const std::vector<Rank>& excluded) = 0;
  virtual void abort(const std::string& reason) = 0;
  // Whether it has failed: every later call repeats that.
  virtual bool has_failed() const = 0;

  virtual void note(std::string_view activity) = 0;
  virtual void poll() = 0;
  virtual bool has_progress_thread() const = 0;
  // Null: its buffers are in memory of the host.
  virtual const DeviceOperations* devices() const = 0;
  // Whether those work on what allocate() has made there, and on nothing else.
  virtual bool maps_devices() const = 0;
  virtual std::string link_name(Rank rank) const = 0;  // Of another rank, or of this one.
  virtual Explanation explain(const OperationDescriptor& operation) const = 0;
};

}  // namespace stretto::communicator
