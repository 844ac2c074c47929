// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <vector>

#include "stretto/communicator/execution.h"
#include "stretto/communicator/step.h"
#include "stretto/communicator/window.h"

namespace stretto::communicator {

// Runs a plan on memory that all ranks of the group have mapped.
//
// A rank enters by posting what it is about to do and where its buffers lie, and reads everybody's
// posts. So all ranks know, without a further exchange, whether they agree (else: mismatch, with
// both calls) and whether all buffers are registered: then they run the direct plan, on the buffers
// themselves, else the staged plan, through the windows.
class MappedExecution : public Execution {
 public:
  struct Plans {
    std::shared_ptr<const Plan> direct;  // Null: never.
    std::shared_ptr<const Plan> staged;  // Null: buffers must be registered.
  };
  MappedExecution(Plans plans, const Membership& membership, Windows& windows,
                  transport::Transport& transport);

  void start(const Call& call) override;
  bool advance() override;
  bool ended() const override { return phase_ == Phase::ended; }
  const Status& status() const override { return status_; }
  void fail(const Status& status) override;
  std::vector<Rank> waiting_for() const override;

 private:
  enum class Phase { entering, running, syncing, ended };

  struct Runner {
    explicit Runner(std::shared_ptr<const Plan> p) : plan(std::move(p)), local(*plan) {}
    std::shared_ptr<const Plan> plan;
    LocalSteps local;
  };

  // One of the two; both say the same about callers' buffers.
  const Plan& plan() const { return direct_ != nullptr ? *direct_->plan : *staged_->plan; }
  void post();
  bool read_posts();
  bool choose();
  bool resolve_buffers();
  void begin(Runner& runner);
  void run_steps();
  void reach_sync();
  bool sync_complete();
  void notify_all();
  Window& own() { return *windows_->of[static_cast<std::size_t>(membership_->rank)]; }

  const Membership* membership_;
  Windows* windows_;
  transport::Transport* transport_;
  std::unique_ptr<Runner> direct_;
  std::unique_ptr<Runner> staged_;
  Runner* runner_ = nullptr;  // The one in use.
  Call call_;
  Phase phase_ = Phase::ended;
  Status status_;
  std::vector<std::byte*> inputs_;  // Per rank: its input in this process; direct runs only.
  std::vector<std::byte*> outputs_;
  std::size_t arrived_ = 0;  // Members known to have entered, or to have reached the sync.
  bool all_registered_ = false;
  std::uint32_t segment_ = 0;
  std::size_t next_step_ = 0;
};

}  // namespace stretto::communicator
