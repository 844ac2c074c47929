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

// The double of NCCL, loaded as the real one would be. Nothing here runs on a device.
class Double {
 public:
  static Double& get();
  // With what it has counted, and how it behaves, as at first.
  void reset(const std::function<void(fake_nccl::Control&)>& change = {});
  void change(const std::function<void(fake_nccl::Control&)>& change);
  fake_nccl::Control control();
  static std::string file();
  // Memory of a device, never freed; and where a test may look into it.
  std::byte* allocate(std::size_t bytes, int device) const;
  std::byte* reach(const void* data) const { return reach_(data); }
  // What a program does on a stream of that device (null: the default one), behind what is there
  // already; or in the graph that captures the stream.
  void enqueue(int device, cuda::StreamHandle stream, std::function<void()> work) const;
  // What comes behind this on the default stream of that device waits so long.
  void delay_program(int device, Duration time) const;

 private:
  Double();

  void (*change_)(void (*)(fake_nccl::Control&, void*), void*);
  std::byte* (*reach_)(const void*);
  void (*enqueue_)(nccl::StreamHandle, void (*)(void*), void*, void (*)(void*));
};

// Zeros in memory of the rank's device, never freed.
View on_device(const Communicator& rank, std::size_t count);
// Where a test may look into it.
inline float* reach(const View& view) {
  return reinterpret_cast<float*>(Double::get().reach(view.data));
}

// Tests with the double as it is at first, which must not be misused.
class WithDouble : public ::testing::Test {
 protected:
  WithDouble() { Double::get().reset(); }
  ~WithDouble() override {
    EXPECT_EQ(Double::get().control().misuse, "");
    Double::get().reset();
  }
};

// Names the double as NCCL, as our kernels, and as the driver, where `named` does not name others.
inline FakeEnvironment nccl_variables(Variables named = {}) {
  named.merge(Variables{{"STRETTO_NCCL_LIBRARY", Double::file()},
                        {"STRETTO_CUDA_KERNELS", Double::file()},
                        {"STRETTO_CUDA_DRIVER", Double::file()}});
  return FakeEnvironment(std::move(named));
}

// Ranks that are threads, connected by TCP, so that they can die, with NCCL; or, with the backend
// "cuda", by shared memory, as processes are.
class DoubleRanks {
 public:
  struct Options {
    int size = 2;
    bool maps_devices = false;
    bool shares_memory = true;  // Of the host, if devices are mapped.
    Duration timeout = std::chrono::seconds(30);
    std::chrono::milliseconds heartbeat{50};
    ProgressThread progress_thread = ProgressThread::automatic;
  };
  // Throws what keeps one from being made.
  explicit DoubleRanks(const Options& options);
  // On all, each on a thread of its own. What one throws counts as a failure of the test.
  void on_all(const std::function<void(Communicator&)>& body);
  std::unique_ptr<Communicator>& operator[](int rank) { return ranks_[rank]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // What the others see when the process of `rank` is killed.
  void kill(int rank);

 private:
  RankVector<RankVector<int>> sockets_;  // Of each rank, those to each other one.
  RankVector<std::unique_ptr<Communicator>> ranks_;
};

}  // namespace stretto::testing
