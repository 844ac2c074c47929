// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/work.h"
#include "stretto/transport/transport.h"

namespace stretto::communicator {

class Group;

// Who moves operations along while their caller computes.
enum class ProgressThread {
  automatic,  // A thread of its own if this host has more usable cores than ranks.
  always,
  never,  // Only callers that wait or poll.
};

// Runs all groups of one rank on one transport. One lock guards everything below it; it is held for
// one turn of progress at a time and never while sleeping.
//
// Whoever waits drives: a waiting thread takes turns of progress itself, for all operations, so
// that a blocking call needs no hand-over. The progress thread, where there is one, drives only
// while operations are in flight and nobody waits.
class Engine final : private transport::TransportListener {
 public:
  struct Options {
    ProgressThread progress_thread = ProgressThread::automatic;
    int local_ranks = 1;  // Ranks of the job on this host, this one included.
    // Told what this rank is doing, for the launcher's report. May be empty.
    std::function<void(std::string_view)> report_activity = {};
  };
  Engine(std::unique_ptr<transport::Transport> transport, Options options);
  ~Engine();

  // The lock under which groups, their operations and the transport may be touched.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  transport::Transport& transport() { return *transport_; }
  const Options& options() const { return options_; }
  bool has_progress_thread() const { return thread_.joinable(); }

  // With the lock held.
  void add(Group& group) { groups_.push_back(&group); }
  void remove(Group& group) { std::erase(groups_, &group); }
  // An operation has been submitted: whoever sleeps must know of it.
  void submitted();
  // An operation has ended.
  void ended() { --in_flight_; }

  // Without the lock. Drives until `done` says true (asked with the lock held) or the deadline
  // passes; returns whether it did.
  bool drive(const std::function<bool()>& done, Deadline deadline);
  // One turn. Returns whether anything moved.
  bool turn();

 private:
  bool turn_locked();
  bool sleep(std::unique_lock<std::mutex>& lock, Deadline deadline);
  void run_progress_thread();

  void peer_lost(Rank peer, const Status& status) override;
  void peer_left(Rank peer, const Status& status) override;
  void message_early(Rank from, const transport::MessageKey& key,
                     const OperationDescriptor& operation) override;
  void group_aborted(std::uint64_t group, Rank from, const Status& reason) override;

  std::unique_ptr<transport::Transport> transport_;
  Options options_;
  bool core_for_each_rank_;
  std::mutex mutex_;
  std::condition_variable work_arrived_;  // For the progress thread.
  std::vector<Group*> groups_;
  int in_flight_ = 0;
  std::atomic<int> waiters_{0};
  std::atomic<int> sleepers_{0};
  unsigned turns_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stretto::communicator
