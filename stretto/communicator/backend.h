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
  // Writes each field and nothing else. A compiler-generated constructor first clears all 280
  // bytes, which takes a tenth of an all_reduce of eight bytes.
  CollectiveCall() {}  // NOLINT
  explicit CollectiveCall(const OperationDescriptor& what, ConstByteSpan from = {},
                          ByteSpan to = {},
                          const std::optional<execution::SharesView>& of = std::nullopt)
      : operation(what), input(from), output(to), shares(of) {}

  OperationDescriptor operation;  // The backend fills in its algorithm.
  ConstByteSpan input = {};
  ByteSpan output = {};
  // How many elements belong to each rank. The lists are valid only until submit() returns.
  // Nothing: equal shares.
  std::optional<execution::SharesView> shares = std::nullopt;
  // Work on the caller's buffers before and after. With a packing, an empty `input` or `output`
  // stands for its scratch. A backend for memory of devices finds out where the buffers lie.
  std::optional<group::Packing> packing = std::nullopt;
};

// Carries out the operations of a Communicator (scheduled_backend.h), perhaps with an observer
// around it (observed_backend.h). A Backend belongs to one Communicator, which has checked all
// arguments and put lists, factors and shares into calls. Functions block and throw like the
// Communicator's functions of the same name. Any thread may call. Destroying it ends the group for
// this rank.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  // The same on all ranks, and different from that of every other group of the job.
  virtual std::uint64_t group_id() const = 0;
  virtual std::string group_name() const = 0;  // GroupOptions::name.
  // The rank in the job of a rank of the group. Failures name ranks by it.
  virtual Rank job_rank(Rank rank) const = 0;
  // Per rank the number of its host, in the order in which hosts first appear.
  virtual std::vector<std::int32_t> hosts() const = 0;

  // Starts collectives, in order; the Work stands for all of them. `algorithm` is empty if the
  // caller has named none. `timeout`, if there is one, is not negative. May move from `calls`. If a
  // call cannot be begun after another one has been, the group fails.
  virtual Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
                      const std::optional<Duration>& timeout) = 0;
  // Starts messages; the Work stands for all of them.
  virtual Work exchange(std::span<const Transfer> messages,
                        const std::optional<Duration>& timeout) = 0;

  virtual Memory allocate(std::size_t bytes, std::optional<int> device) = 0;
  // The address by which other ranks find host memory from allocate(); not valid if no rank can
  // reach it.
  virtual transport::RemoteAddress locate(ConstByteSpan own) const = 0;
  // Maps another rank's memory into this process, for as long as the pointer is held. Null if this
  // rank cannot reach it. Blocks until the other rank's region has arrived.
  virtual std::shared_ptr<std::byte> map(Rank rank, transport::RemoteAddress address,
                                         std::size_t bytes,
                                         const std::optional<Duration>& timeout) = 0;

  // Makes a group of `ranks`, which all of them do in the same order. Null if this rank is not in
  // the list. `number` becomes the group's group_id().
  virtual std::unique_ptr<Backend> make_group(std::uint64_t number, const std::vector<Rank>& ranks,
                                              const GroupOptions& options) = 0;
  virtual std::unique_ptr<Backend> shrink(const std::vector<Rank>& excluded) = 0;
  virtual void abort(const std::string& reason) = 0;
  // Whether the group has failed, so that every later call throws its failure.
  virtual bool has_failed() const = 0;

  virtual void note(std::string_view activity) = 0;
  virtual void poll() = 0;
  virtual bool has_progress_thread() const = 0;
  // Null: all buffers are in memory of the host.
  virtual const DeviceOperations* devices() const = 0;
  // Whether operations on devices work only on device memory from allocate().
  virtual bool maps_devices() const = 0;
  virtual std::string link_name(Rank rank) const = 0;  // `rank` may be this rank.
  virtual Explanation explain(const OperationDescriptor& operation) const = 0;
};

}  // namespace stretto::communicator
