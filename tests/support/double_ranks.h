// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/group/progress_thread.h"
#include "tests/support/fake_environment.h"
#include "tests/support/fake_nccl/fake.h"

namespace stretto::testing {

// The double of NCCL (see fake_nccl/fake.h), loaded as the real library would be. Nothing runs on a
// device.
class Double {
 public:
  static Double& get();
  // Resets its counts and behaviour to the initial ones, and then applies `change`.
  void reset(const std::function<void(fake_nccl::Control&)>& change = {});
  void change(const std::function<void(fake_nccl::Control&)>& change);
  fake_nccl::Control control();
  static std::string file();
  // allocate() returns memory of a device, which is never freed; reach() where a test may access
  // it.
  std::byte* allocate(std::size_t bytes, int device) const;
  std::byte* reach(const void* data) const { return reach_(data); }
  // Enqueues a program's work on a stream of that device (null: the default stream), behind the
  // work that is there already; or in the graph that captures the stream.
  void enqueue(int device, cuda::StreamHandle stream, std::function<void()> work) const;
  // Delays the work that is enqueued next on the default stream of that device.
  void delay_program(int device, Duration time) const;

 private:
  Double();

  void (*change_)(void (*)(fake_nccl::Control&, void*), void*);
  std::byte* (*reach_)(const void*);
  void (*enqueue_)(nccl::StreamHandle, void (*)(void*), void*, void (*)(void*));
};

// Returns zeros in memory of the rank's device, which is never freed.
View on_device(const Communicator& rank, std::size_t count);
// Returns where a test may access the memory of `view`.
inline float* reach(const View& view) {
  return reinterpret_cast<float*>(Double::get().reach(view.data));
}

// Runs a test with the double in its initial state, and expects that the test does not misuse it.
class WithDouble : public ::testing::Test {
 protected:
  WithDouble() { Double::get().reset(); }
  ~WithDouble() override {
    EXPECT_EQ(Double::get().control().misuse, "");
    Double::get().reset();
  }
};

// Names the double as NCCL, as stretto's kernels and as the driver, unless `named` names others.
inline FakeEnvironment nccl_variables(Variables named = {}) {
  named.merge(Variables{{"STRETTO_NCCL_LIBRARY", Double::file()},
                        {"STRETTO_CUDA_KERNELS", Double::file()},
                        {"STRETTO_CUDA_DRIVER", Double::file()}});
  return FakeEnvironment(std::move(named));
}

// Ranks that are threads. With NCCL they are connected by TCP, so that they can die; with the
// backend "cuda" by shared memory, as processes of a host are.
class DoubleRanks {
 public:
  struct Options {
    int size = 2;
    bool maps_devices = false;
    bool shares_memory = true;  // Host memory, if devices are mapped.
    Duration timeout = std::chrono::seconds(30);
    std::chrono::milliseconds heartbeat{50};
    ProgressThread progress_thread = ProgressThread::automatic;
  };
  // Throws if a rank cannot be made.
  explicit DoubleRanks(const Options& options);
  // Runs `body` on all ranks, each on a thread of its own. An exception counts as a failure of the
  // test.
  void on_all(const std::function<void(Communicator&)>& body);
  std::unique_ptr<Communicator>& operator[](int rank) { return ranks_[rank]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // Ends the connections of `rank`, as if its process had been killed.
  void kill(int rank);

 private:
  RankVector<RankVector<int>> sockets_;  // [r][p]: that of rank r to rank p.
  RankVector<std::unique_ptr<Communicator>> ranks_;
};

}  // namespace stretto::testing
