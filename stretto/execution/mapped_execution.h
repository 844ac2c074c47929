// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "stretto/execution/execution.h"
#include "stretto/execution/inline_steps.h"
#include "stretto/execution/process_queue.h"
#include "stretto/execution/resolved_buffers.h"
#include "stretto/execution/step.h"
#include "stretto/execution/window.h"

namespace stretto::execution {

// Runs a plan on memory that all ranks of the group have mapped.
//
// A rank enters by posting what it is about to do and where its buffers lie, and reads the posts of
// all ranks. So all ranks know, without a further exchange, whether they agree; if not, they fail
// with mismatch, which names both calls. They also know whether others can reach all buffers:
// because these are registered, or are private memory for which a single copy pays. If so, they run
// the direct plan, on the buffers themselves; else the staged plan, through the windows.
//
// Posting is also the first sync of either plan: a rank that knows from its own buffers, or from
// the plans, that the staged one will run, stages its part before it posts. It also stages its
// counts of an all_to_all with unequal shares, which is planned anew when all have told theirs.
//
// On a device, the parts of a call are copied to its input before its rank posts, and out of its
// output after the last sync.
class MappedExecution final : public Execution {
 public:
  struct Plans {
    std::shared_ptr<const Plan> direct;        // Null: it never runs.
    std::shared_ptr<const Plan> staged;        // Null: buffers must be registered.
    SingleCopy single_copy = SingleCopy::off;  // Of private buffers, by the direct plan.
  };
  // `queue` works on mapped memory. If that is a device's, it is a queue of the device, and the
  // plans are direct only.
  MappedExecution(Plans plans, const Membership& membership, Windows& windows,
                  transport::Endpoint& transport, KernelQueue& queue = host_queue());

  // Fails with invalid_argument if the plans need registered buffers and these are not.
  Status check_buffers(const std::byte* input, const std::byte* output) const;
  void start(const Call& call, Turn& turn) override;
  bool advance(Turn& turn) override;
  bool ended() const override { return phase_ == Phase::ended; }
  const Status& status() const override { return status_; }
  void fail(const Status& status) override;
  std::vector<Rank> waiting_for() const override;
  // Like start(), for a thread that does not hold the engine's lock, while nobody else uses the
  // group. Starts if the run needs nothing of the transport that the run before has not found out;
  // else returns false, having done nothing. advance(), with a turn without the lock, then stops
  // before anything that needs the lock.
  bool try_start(const OperationDescriptor& operation, const std::byte* input, std::byte* output,
                 std::uint32_t sequence, Turn& turn);
  bool end_without_transport() override;
  bool must_be_asked() const override;
  bool release_mappings() override;

 private:
  enum class Phase {
    staging,   // Stages what others need of this rank's private input, before it posts; on a
               // device, waits for what the program has begun there.
    entering,  // Until all have posted.
    running,
    syncing,
    releasing,  // After a failure: until nobody copies from or to this rank's private memory, and
                // its device is done.
    ended,
  };
  // Where run_steps() has stopped. `queue_works`: at a sync or the end, but the queue has to be
  // done before others are told of it.
  enum class Stop { at_sync, at_end, queue_works, turn_is_over, failed };

  struct Runner {
    explicit Runner(std::shared_ptr<const Plan> p) : plan(std::move(p)), local(*plan) {}
    std::shared_ptr<const Plan> plan;
    LocalSteps local;
    std::optional<InlineSteps> in_posts;  // Instead of `local`, if its scratch is in the posts.
  };

  void enter(Turn& turn);
  bool run_staging(Turn& turn);
  void post(Turn& turn);
  bool read_posts();
  void disagree(Rank other, const Post& post);
  void hear_shares();
  bool choose(const Turn& turn);
  Status pack_parts();
  Status unpack_parts();
  BufferRef locate(const schedule::Place& place) const;
  Stop run_steps(Turn& turn);
  Stop stop_when_done(Stop stop);
  void release_buffers(bool has_lock);
  bool is_reason_overdue();
  bool run_to_sync(Turn& turn);
  void reach_sync(Turn& turn);
  bool sync_complete();
  // What a member has posted, or will, about the operation that this rank has entered.
  Post* posted_by(std::size_t member) const {
    return &windows_->of[member]->posts[(windows_->entered - 1) % 2];
  }
  Window& own() { return *windows_->of[membership_->rank]; }

  const Membership* membership_;
  Windows* windows_;
  transport::Endpoint* transport_;
  KernelQueue* mapped_queue_;  // For memory that this process, or its device, has mapped.
  const KernelQueue* at_once_ = &host_queue();  // Never has anything left to do.
  std::optional<ProcessQueue> process_;         // For single copies of private memory.
  std::vector<Rank> others_;                    // In the job.
  std::unique_ptr<Runner> direct_;
  std::unique_ptr<Runner> staged_;
  bool tells_shares_ = false;         // Whether all ranks tell their counts, for the direct plan.
  std::vector<std::size_t> parcels_;  // The counts it was last made of; empty: this rank's only.
  bool has_unpacked_ = false;         // Or has begun to.
  Runner* runner_ = nullptr;          // The one in use.
  KernelQueue* queue_ = nullptr;      // Likewise.
  Call call_;
  Phase phase_ = Phase::ended;
  Status status_;
  std::optional<ResolvedBuffers> buffers_;  // Where there is a direct plan.
  std::size_t arrived_ = 0;    // Members known to have entered, or to have reached the sync.
  std::size_t reachable_ = 0;  // How many of them have buffers that others reach.
  Status abandoned_;        // Why nothing is copied any more: a rank has abandoned it, or is gone.
  TimePoint abandoned_at_;  // Since when that is so, or this rank has abandoned it.
  std::uint32_t segment_ = 0;
  StepCursor cursor_;  // In the segment.
};

}  // namespace stretto::execution
