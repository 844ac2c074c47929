// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/base/single_copy.h"
#include "stretto/communicator/arguments.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/link_probe.h"
#include "stretto/group/group.h"

namespace stretto::communicator {

struct WindowNotice;

// The Communicator that runs stretto's own schedules on a transport.
class ScheduledCommunicator : public Communicator {
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
  };

  // The group of all ranks of the job. Blocks until all have made theirs.
  static Result<std::unique_ptr<Communicator>> make_world(std::shared_ptr<group::Engine> engine,
                                                          Options options);
  ~ScheduledCommunicator() override;

  Rank rank() const override { return group_->membership().rank; }
  Rank job_rank() const { return engine_->transport().rank(); }
  int size() const override { return group_->size(); }
  Work barrier(const BarrierOptions& options) override;
  void monitored_barrier(const BarrierOptions& options) override;
  Work all_reduce_coalesced(std::span<const View> list, const AllReduceOptions& options) override;
  Work broadcast_coalesced(std::span<const View> list, const BroadcastOptions& options) override;
  Work reduce_scatter_coalesced(std::span<const ConstView> inputs, std::span<const View> outputs,
                                const ReduceScatterOptions& options) override;
  Work all_gather_coalesced(std::span<const ConstView> inputs, std::span<const View> outputs,
                            const AllGatherOptions& options) override;
  Work batch_send_recv(std::span<const Transfer> transfers, const BatchOptions& options) override;
  Work all_gather_list(ConstView input, std::span<const View> outputs,
                       const AllGatherOptions& options) override;
  Work reduce_scatter_list(std::span<const ConstView> inputs, View output,
                           const ReduceScatterOptions& options) override;
  Work all_to_all_list(std::span<const ConstView> inputs, std::span<const View> outputs,
                       const AllToAllOptions& options) override;
  Work gather_list(ConstView input, std::span<const View> outputs,
                   const GatherOptions& options) override;
  Work scatter_list(std::span<const ConstView> inputs, View output,
                    const ScatterOptions& options) override;
  std::unique_ptr<Communicator> shrink(std::vector<Rank> excluded) override;
  std::unique_ptr<Communicator> new_group(std::vector<Rank> ranks) override;
  std::unique_ptr<Communicator> split(const SplitOptions& options) override;
  Memory allocate_bytes(std::size_t bytes) override;
  void note(std::string_view activity) override { engine_->note(activity); }
  void poll() override { engine_->turn(); }
  bool has_progress_thread() const override { return engine_->has_progress_thread(); }
  void abort(const std::string& reason) override;
  std::string describe_links() const override;
  std::string describe_link(Rank rank) const override;
  Explanation explain(Collective collective, DType dtype, std::size_t count) const override;

 protected:
  Work all_reduce_views(const ConstView& input, const View& output,
                        const AllReduceOptions& options) override;
  Work reduce_views(const ConstView& input, const View& output,
                    const ReduceOptions& options) override;
  Work reduce_scatter_views(const ConstView& input, const View& output,
                            const ReduceScatterOptions& options) override;
  Work all_gather_views(const ConstView& input, const View& output,
                        const AllGatherOptions& options) override;
  Work gather_views(const ConstView& input, const View& output,
                    const GatherOptions& options) override;
  Work scatter_views(const ConstView& input, const View& output,
                     const ScatterOptions& options) override;
  Work all_to_all_views(const ConstView& input, const View& output,
                        const AllToAllOptions& options) override;
  Work broadcast_view(const View& data, const BroadcastOptions& options) override;
  Work send_view(const ConstView& data, const SendOptions& options) override;
  Work recv_view(const View& data, const RecvOptions& options) override;

 private:
  ScheduledCommunicator(std::shared_ptr<group::Engine> engine, execution::Membership membership,
                        Options options);
  // What making groups needs; no default algorithm applies, and no caller's collective fits.
  Status set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all,
                           Deadline until);
  Status share_windows(const Deadline& until);
  Status exchange_windows(const Deadline& until);
  void end(const std::string& why, bool announce);
  std::vector<Rank> ranks_of_host() const;
  Result<WindowNotice> make_window(execution::Windows& windows);
  Status map_windows(execution::Windows& windows, std::span<const WindowNotice> notices,
                     const Deadline& until);
  Result<transport::Transport::Region> allocate_region(std::size_t bytes);
  Status measure_links();
  [[noreturn]] void refuse_lists(const std::vector<Rank>& own);
  void begin_numbering();
  std::unique_ptr<Communicator> make_group(std::uint64_t number, const std::vector<Rank>& ranks);
  std::unique_ptr<ScheduledCommunicator> enter_group(std::uint64_t number,
                                                     const std::vector<Rank>& ranks);
  Status set_up(Deadline until);
  Result<group::Proposal> agree(const std::vector<Rank>& left_out, bool ready,
                                const Deadline& until);
  // What shrink() has made and the others may not have.
  struct Candidate {
    std::vector<Rank> ranks;
    std::unique_ptr<ScheduledCommunicator> group;
    Status status;
  };
  Status why_not_made(const Candidate& candidate) const;

  group::Group::Submission prepare(const Caller& caller, const ConstView& input, const View& output,
                                   const ReduceScatterOptions& options) const;
  group::Group::Submission prepare(const Caller& caller, const ConstView& input, const View& output,
                                   const AllGatherOptions& options) const;
  group::Mailbox::Message message_of(const Caller& caller, const Transfer& transfer,
                                     const std::optional<Duration>& timeout) const;

  // An empty algorithm: the communicator's, or else the cheapest.
  Work submit(group::Group::Submission submission, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  // The same, of equal shares and on the caller's own buffers, and a little faster: submissions are
  // large, and where every nanosecond counts, none is made.
  Work submit_plain(const OperationDescriptor& operation, ConstByteSpan input, ByteSpan output,
                    const std::string& algorithm, const std::optional<Duration>& timeout);
  // The ordinary way of both, with the engine.
  Work submit_queued(group::Group::Submission& submission, const std::string& algorithm,
                     const std::optional<Duration>& timeout);
  // False: it has to go the ordinary way. `algorithm` as the caller named it.
  bool submit_fast(const OperationDescriptor& operation, const std::byte* input, std::byte* output,
                   const std::string& algorithm, const std::optional<Duration>& timeout,
                   Work& work);
  Work submit_message(std::string_view operation, const Transfer& transfer,
                      const std::optional<Duration>& timeout);
  Work submit_list(const OperationDescriptor& head, std::span<const View> list, double factor,
                   const std::string& algorithm, const std::optional<Duration>& timeout);
  template <class AnyOptions>
  Work submit_pairs(std::string_view operation, std::span<const ConstView> inputs,
                    std::span<const View> outputs, const AnyOptions& options);
  // As one. If one of them cannot be begun after another has been, the communicator fails.
  Work submit_all(std::span<group::Group::Submission> submissions, const std::string& algorithm,
                  const std::optional<Duration>& timeout);
  // With the engine's lock.
  Result<std::shared_ptr<group::Operation>> submit_locked(group::Group::Submission& submission,
                                                          const std::string& algorithm,
                                                          std::unique_lock<std::mutex>& held);
  static Work join(std::vector<std::shared_ptr<group::Operation>> parts);
  Deadline deadline(const std::optional<Duration>& timeout) const;

  std::shared_ptr<group::Engine> engine_;
  Options options_;
  std::unique_ptr<group::Group> group_;
  const int exceptions_when_made_;  // That unwound the stack then.
  std::uint64_t groups_made_ = 0;
  std::optional<Candidate> candidate_;
};

}  // namespace stretto::communicator
