// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/base/single_copy.h"
#include "stretto/communicator/backend.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/link_probe.h"
#include "stretto/group/group.h"

namespace stretto::communicator {

struct WindowNotice;

// What the ranks of a group need of each other to make a library for it.
struct LibraryMeeting {
  int local_rank = 0;  // Of this rank, among those of the job on its host.
  // As much of each rank, in their order; blocks within the time of the group's making.
  std::function<Status(ConstByteSpan own, ByteSpan all)> all_gather;
  // Until `done`, which does not block, says true. Fails with the group, or when the time is up.
  std::function<Status(const std::function<bool()>& done)> wait;
};

// Makes a library that runs the collectives of a group as far as it can.
struct LibraryFactory {
  // Called by all ranks of a group together, which may block. Empty: there is no library.
  std::function<Result<std::unique_ptr<CollectiveLibrary>>(const execution::Membership&,
                                                           const LibraryMeeting&)>
      make = {};
  // Whether it is for memory of devices, which nothing else reaches: then a rank that is alone has
  // one, too, and so have the groups that shrink() makes. Others are not relied upon after a death.
  bool for_devices = false;
};

// Runs stretto's own schedules on a transport.
class ScheduledBackend final : public Backend {
 public:
  struct Options {
    Duration timeout = std::chrono::minutes(30);
    std::string algorithm = {};  // Instead of the chosen one, where an operation names none.
    // False: never on mapped memory, and making a world waits for nobody (for the simulation, whose
    // ranks share a thread).
    bool share_windows = true;
    SingleCopy single_copy = SingleCopy::automatic;  // The least of all ranks' holds.
    group::Group::Options group = {};
    // Where set, links are measured, or remembered, before the first operation.
    std::optional<LinkCacheOptions> measure_links = std::nullopt;
    LibraryFactory library = {};
    // Where set, each rank has a device whose memory the others map; called once, with this rank's
    // number among those of its host. Not together with `library`.
    std::function<Result<std::shared_ptr<execution::SharedDevice>>(int local_rank)> open_device =
        {};
    std::shared_ptr<execution::SharedDevice> device = nullptr;  // What that has returned.
  };

  // A communicator of all ranks of the job. Blocks until all have made theirs; without `until`, for
  // the timeout of its operations at most.
  static Result<std::unique_ptr<Communicator>> make_world(
      std::shared_ptr<group::Engine> engine, Options options,
      const std::optional<Deadline>& until = std::nullopt);
  ~ScheduledBackend() override;

  Rank rank() const override { return group_->membership().rank; }
  int size() const override { return group_->size(); }
  std::uint64_t group_id() const override { return group_->id(); }
  std::string group_name() const override { return options_.group.name; }
  Rank job_rank(Rank rank) const override { return group_->membership().job_rank(rank); }
  std::vector<std::int32_t> hosts() const override;
  Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>& timeout) override;
  Work exchange(std::span<const Transfer> messages,
                const std::optional<Duration>& timeout) override;
  Memory allocate(std::size_t bytes, std::optional<int> device) override;
  transport::RemoteAddress locate(ConstByteSpan own) const override;
  std::shared_ptr<std::byte> map(Rank rank, transport::RemoteAddress address, std::size_t bytes,
                                 const std::optional<Duration>& timeout) override;
  std::unique_ptr<Backend> make_group(std::uint64_t number, const std::vector<Rank>& ranks,
                                      const GroupOptions& given) override;
  std::unique_ptr<Backend> shrink(const std::vector<Rank>& excluded) override;
  void abort(const std::string& reason) override;
  bool has_failed() const override;
  void note(std::string_view activity) override { engine_->note(activity); }
  void poll() override { engine_->turn(); }
  bool has_progress_thread() const override { return engine_->has_progress_thread(); }
  const DeviceOperations* devices() const override { return reaches_devices_ ? devices_ : nullptr; }
  bool maps_devices() const override { return options_.device != nullptr; }
  std::string link_name(Rank rank) const override;
  Explanation explain(const OperationDescriptor& operation) const override;

 private:
  ScheduledBackend(std::shared_ptr<group::Engine> engine, execution::Membership membership,
                   Options options);
  // What making groups needs; no default algorithm applies, and no caller's collective fits.
  Status set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all,
                           Deadline until);
  Status share_windows(const Deadline& until);
  int local_rank() const;
  Status use_library(const Deadline& until);
  Status use_device(const Deadline& until);
  Result<std::vector<std::int32_t>> number_devices(const Deadline& until);
  Status wait_in_meeting(const std::function<bool()>& done, const Deadline& until);
  Status fail_set_up(const Status& why);
  Status ended_because_it(std::string_view did) const;  // This rank.
  std::vector<Rank> ranks_of_host() const;
  std::size_t window_bytes() const;
  bool some_share_a_host() const;
  Result<WindowNotice> make_window(execution::Windows& windows);
  Status map_windows(execution::Windows& windows, const RankVector<WindowNotice>& notices,
                     const Deadline& until);
  Result<transport::Region> allocate_region(
      std::size_t bytes, transport::MemoryKind kind = transport::MemoryKind::registered);
  Status measure_links(Communicator& world);
  std::unique_ptr<ScheduledBackend> enter_group(std::uint64_t number,
                                                const std::vector<Rank>& ranks,
                                                const Options& options);
  // `world`: if this is the backend of all ranks of the job, its communicator.
  Status set_up(Deadline until, Communicator* world = nullptr);
  Result<group::Proposal> agree(const std::vector<Rank>& left_out, bool ready,
                                const Deadline& until);
  // What shrink() has made and the others may not have.
  struct Candidate {
    std::vector<Rank> ranks;
    std::unique_ptr<ScheduledBackend> group;
    Status status;
  };
  Status why_not_made(const Candidate& candidate) const;

  // For a call on parts of memory of a device, which our schedules have to be brought to one piece.
  void lend_scratch(CollectiveCall& call);
  // For one on memory of the host, whose group has refused it with `code`: whether that is for want
  // of scratch, and as much as it needs, for which this lets go of the engine's lock.
  bool lacks_scratch(const group::Group::Submission& submission, StatusCode code) const
      STRETTO_REQUIRES(group::engine_held);
  Status lend_scratch(group::Packing& packing, group::EngineLock& held)
      STRETTO_REQUIRES(group::engine_held) STRETTO_UNCHECKED_LOCKING;
  // The ordinary way, with the lock of the engine.
  Work submit_queued(std::span<CollectiveCall> calls, const std::string& algorithm,
                     const std::optional<Duration>& timeout);
  // Lets go of the engine's lock for a while, perhaps.
  Result<std::shared_ptr<group::Operation>> submit_locked(group::Group::Submission& submission,
                                                          group::EngineLock& held)
      STRETTO_REQUIRES(group::engine_held);
  // How long an operation may take from now on whose caller has named `timeout`, or nothing.
  Duration time_for(const std::optional<Duration>& timeout) const {
    if (timeout) return *timeout;
    return set_up_until_ ? set_up_until_->remaining() : options_.timeout;
  }
  Deadline deadline(const std::optional<Duration>& timeout) const {
    return Deadline::after(time_for(timeout));
  }

  std::shared_ptr<group::Engine> engine_;
  Options options_;
  std::unique_ptr<group::Group> group_;
  const int exceptions_when_made_;  // That unwound the stack then.
  // While the world's own operations, which are all to end by then, are a part of setting it up.
  std::optional<Deadline> set_up_until_;
  std::optional<Candidate> candidate_;
  DeviceOperations* devices_ = nullptr;  // Where there are any: the library's, or the device's own.
  std::shared_ptr<DeviceLibrary> device_library_;  // The first.
  bool reaches_devices_ = true;                    // Of all ranks.
  // On the device, of all sizes that were needed so far: what is freed waits for the device, and so
  // not while others use the group. Operations on devices run one after the other, and share it.
  std::unique_ptr<std::vector<transport::Region>> scratch_ STRETTO_GUARDED_BY(group::engine_held) =
      std::make_unique<std::vector<transport::Region>>();
};

}  // namespace stretto::communicator
