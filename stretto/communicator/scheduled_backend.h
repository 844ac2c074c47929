// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/single_copy.h"
#include "stretto/communicator/collective_call.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/link_probe.h"
#include "stretto/group/explanation.h"
#include "stretto/group/group.h"

namespace stretto::communicator {

struct WindowNotice;

// How the ranks of a group communicate while they make a library for it.
struct LibraryMeeting {
  int local_rank = 0;  // This rank's number among the job's ranks on its host.
  // Gathers equally many bytes of each rank, in the order of ranks. Blocks, at most until the
  // group's set-up times out.
  std::function<Status(ConstByteSpan own, ByteSpan all)> all_gather;
  // Blocks until `done`, which must not block, returns true. Fails if the group fails or its set-up
  // times out.
  std::function<Status(const std::function<bool()>& done)> wait;
};

// Makes a library that runs those collectives of a group that it can run.
struct LibraryFactory {
  // Called by all ranks of a group together; may block. Empty: there is no library.
  std::function<Result<std::unique_ptr<CollectiveLibrary>>(const execution::Membership&,
                                                           const LibraryMeeting&)>
      make = {};
  // Whether the library is for memory of devices, which nothing else reaches. Then single ranks,
  // and groups made by shrink(), have one as well. Other libraries are not used after a rank has
  // died.
  bool for_devices = false;
};

// Carries out the operations of one Communicator, by stretto's own schedules on a transport or by a
// library. The Communicator has checked all arguments and put lists, factors and shares into calls.
// Functions block and throw like the Communicator's functions of the same name. Any thread may
// call. Destroying it ends the group for this rank.
class ScheduledBackend {
 public:
  struct Options {
    Duration timeout = std::chrono::minutes(30);
    std::string algorithm = {};  // Used if an operation names none; empty: chosen.
    // False: operations never run on mapped memory, and making a world waits for no other rank. For
    // the simulation, whose ranks share a thread.
    bool share_windows = true;
    SingleCopy single_copy = SingleCopy::automatic;  // The lowest of all ranks' values counts.
    group::Group::Options group = {};
    // If set, links are measured, or stored measurements used, before the first operation. Needs
    // share_windows.
    std::optional<LinkCacheOptions> measure_links = std::nullopt;
    LibraryFactory library = {};
    // If set, each rank has a device whose memory the other ranks map. Called once, with this
    // rank's number among those of its host. Not together with `library`.
    std::function<Result<std::shared_ptr<execution::SharedDevice>>(int local_rank)> open_device =
        {};
    std::shared_ptr<execution::SharedDevice> device = nullptr;  // The result of open_device.
  };

  // A communicator of all ranks of the job. Blocks until all ranks have made theirs, at most until
  // `until`; without it, for the timeout of operations.
  static Result<std::unique_ptr<Communicator>> make_world(
      std::shared_ptr<group::Engine> engine, Options options,
      const std::optional<Deadline>& until = std::nullopt);
  ~ScheduledBackend();
  ScheduledBackend(const ScheduledBackend&) = delete;
  ScheduledBackend& operator=(const ScheduledBackend&) = delete;

  Rank rank() const { return group_->membership().rank; }
  int size() const { return group_->size(); }
  // The same on all ranks, and different from that of every other group of the job.
  std::uint64_t group_id() const { return group_->id(); }
  std::string group_name() const { return options_.group.name; }  // GroupOptions::name.
  // The rank in the job of a rank of the group. Failures name ranks by it.
  Rank job_rank(Rank rank) const { return group_->membership().job_rank(rank); }
  // Per rank the number of its host, in the order in which hosts first appear.
  std::vector<std::int32_t> hosts() const;

  // Starts collectives, in order; the Work stands for all of them. `algorithm` is empty if the
  // caller has named none. `timeout`, if there is one, is not negative. May move from `calls`. If a
  // call cannot be begun after another one has been, the group fails.
  Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  // Starts messages; the Work stands for all of them.
  Work exchange(std::span<const Transfer> messages, const std::optional<Duration>& timeout);

  Memory allocate(std::size_t bytes, std::optional<int> device);
  // The address by which other ranks find host memory from allocate(); not valid if no rank can
  // reach it.
  transport::RemoteAddress locate(ConstByteSpan own) const;
  // Maps another rank's memory into this process, for as long as the pointer is held. Null if this
  // rank cannot reach it. Blocks until the other rank's region has arrived.
  std::shared_ptr<std::byte> map(Rank rank, transport::RemoteAddress address, std::size_t bytes,
                                 const std::optional<Duration>& timeout);

  // Makes a group of `ranks`, which all of them do in the same order. Null if this rank is not in
  // the list. `number` becomes the group's group_id().
  std::unique_ptr<ScheduledBackend> make_group(std::uint64_t number, const std::vector<Rank>& ranks,
                                               const GroupOptions& given);
  std::unique_ptr<ScheduledBackend> shrink(const std::vector<Rank>& excluded);
  void abort(const std::string& reason);
  // Whether the group has failed, so that every later call throws its failure.
  bool has_failed() const;

  void note(std::string_view activity) { engine_->note(activity); }
  void poll() { engine_->turn(); }
  bool has_progress_thread() const { return engine_->has_progress_thread(); }
  // Null: all buffers are in memory of the host.
  const DeviceOperations* devices() const { return reaches_devices_ ? devices_ : nullptr; }
  // Whether operations on devices work only on device memory from allocate().
  bool maps_devices() const { return options_.device != nullptr; }
  std::string link_name(Rank rank) const;  // `rank` may be this rank.
  Explanation explain(const OperationDescriptor& operation) const;

 private:
  ScheduledBackend(std::shared_ptr<group::Engine> engine, execution::Membership membership,
                   Options options);
  // An all_gather for setting up groups. No default algorithm applies, and no caller's collective
  // matches it.
  Status set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all,
                           Deadline until);
  Status share_windows(const Deadline& until);
  int local_rank() const;
  Status use_library(const Deadline& until);
  Status use_device(const Deadline& until);
  Result<std::vector<std::int32_t>> number_devices(const Deadline& until);
  Status wait_in_meeting(const std::function<bool()>& done, const Deadline& until);
  Status fail_set_up(const Status& why);
  Status ended_because_it(std::string_view did) const;  // "rank 3 <did>", for this rank.
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
  // `world`: the communicator of this backend if it has all ranks of the job; else null.
  Status set_up(Deadline until, Communicator* world = nullptr);
  Result<group::Proposal> agree(const std::vector<Rank>& left_out, bool ready,
                                const Deadline& until);
  // A group that shrink() has made, but other ranks may not have.
  struct Candidate {
    std::vector<Rank> ranks;
    std::unique_ptr<ScheduledBackend> group;
    Status status;
  };
  Status why_not_made(const Candidate& candidate) const;

  // Lends scratch to a call on memory of a device whose parts our schedules need in one buffer.
  void lend_scratch(CollectiveCall& call);
  // These two are for a call on memory of the host that the group has refused with `code`. The
  // first says whether the call lacked scratch. The second lends it scratch, and releases the
  // engine's lock meanwhile.
  bool lacks_scratch(const group::Group::Submission& submission, StatusCode code) const
      STRETTO_REQUIRES(group::engine_held);
  Status lend_scratch(group::Packing& packing, group::EngineLock& held)
      STRETTO_REQUIRES(group::engine_held) STRETTO_UNCHECKED_LOCKING;
  // Submits under the engine's lock, unlike the fast path.
  Work submit_queued(std::span<CollectiveCall> calls, const std::string& algorithm,
                     const std::optional<Duration>& timeout);
  // May release the engine's lock for a while.
  Result<std::shared_ptr<group::Operation>> submit_locked(group::Group::Submission& submission,
                                                          group::EngineLock& held)
      STRETTO_REQUIRES(group::engine_held);
  // How long an operation may take from now on; `timeout` is its caller's, if there is one.
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
  const int exceptions_when_made_;  // Exceptions that unwound the stack then.
  // Set while the world's set-up runs operations of the world, which must all end by then.
  std::optional<Deadline> set_up_until_;
  std::optional<Candidate> candidate_;
  DeviceOperations* devices_ = nullptr;            // The library's or the device's; null: none.
  std::shared_ptr<DeviceLibrary> device_library_;  // Owner of devices_, if that is a library.
  bool reaches_devices_ = true;                    // Whether schedules reach all ranks' devices.
  // Scratch on the device, in all sizes needed so far. It is kept, because freeing waits for the
  // device. Operations on devices run one after the other and share it.
  std::unique_ptr<std::vector<transport::Region>> scratch_ STRETTO_GUARDED_BY(group::engine_held) =
      std::make_unique<std::vector<transport::Region>>();
};

}  // namespace stretto::communicator
