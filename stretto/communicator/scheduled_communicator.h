// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/communicator/group.h"

namespace stretto::communicator {

// The Communicator that runs stretto's own schedules on a transport.
class ScheduledCommunicator : public Communicator {
 public:
  struct Options {
    Duration timeout = std::chrono::minutes(30);
    std::string algorithm;  // Instead of the chosen one, where an operation names none.
  };

  // The group of all ranks of the job. Blocks until all have made theirs.
  static Result<std::unique_ptr<Communicator>> make_world(std::shared_ptr<Engine> engine,
                                                          Options options);
  ~ScheduledCommunicator() override;

  Rank rank() const override { return group_->membership().rank; }
  int size() const override { return group_->size(); }
  Work barrier(const BarrierOptions& options) override;
  std::unique_ptr<Communicator> new_group(std::vector<Rank> ranks) override;
  Memory allocate_bytes(std::size_t bytes) override;
  void poll() override { engine_->turn(); }
  bool has_progress_thread() const override { return engine_->has_progress_thread(); }
  void abort(const std::string& reason) override;
  std::string describe_links() const override;

 protected:
  Work all_reduce_views(ConstView input, View output, const AllReduceOptions& options) override;
  Work reduce_scatter_views(ConstView input, View output,
                            const ReduceScatterOptions& options) override;
  Work all_gather_views(ConstView input, View output, const AllGatherOptions& options) override;
  Work broadcast_view(View data, const BroadcastOptions& options) override;
  Work send_view(ConstView data, const SendOptions& options) override;
  Work recv_view(View data, const RecvOptions& options) override;

 private:
  ScheduledCommunicator(std::shared_ptr<Engine> engine, Membership membership, Options options);
  Status share_windows();
  Work submit(Group::Submission submission, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  Work submit_message(Group::Message message, const std::optional<Duration>& timeout);
  Deadline deadline(const std::optional<Duration>& timeout) const;

  std::shared_ptr<Engine> engine_;
  Options options_;
  std::unique_ptr<Group> group_;
  std::uint64_t groups_made_ = 0;
};

}  // namespace stretto::communicator
