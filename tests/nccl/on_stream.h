// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "stretto/base/stream_guard.h"
#include "tests/support/captured_graph.h"
#include "tests/support/double_ranks.h"

namespace stretto::testing {

// The objects of a one-rank program on its device: a stream and numbers.
class OnStream {
 public:
  explicit OnStream(const Communicator& rank)
      : driver_(cuda::Driver::open(Double::file(), *rank.device()).or_throw()),
        stream_(driver_->make_stream().or_throw()) {}
  ~OnStream() {
    const cuda::Driver::Current current(*driver_);
    (void)driver_->call().stream_destroy(stream_);
  }

  cuda::StreamHandle stream() const { return stream_; }
  View numbers(std::size_t count, float value = 0) const {
    auto* const data = Double::get().allocate(count * sizeof(float), driver_->number());
    const View view(data, count, DType::f32);
    set(view, value);
    return view;
  }
  static void set(const View& view, float value) { std::fill_n(reach(view), view.count, value); }
  // Adds on the stream, or in the graph that captures it.
  void add(const View& to, const View& from) const {
    Double::get().enqueue(driver_->number(), stream_, [to, from] {
      for (std::size_t i = 0; i < to.count; ++i) reach(to)[i] += reach(from)[i];
    });
  }
  void sleep(Duration time) const {
    Double::get().enqueue(driver_->number(), stream_,
                          [time] { std::this_thread::sleep_for(time); });
  }
  std::unique_ptr<CapturedGraph> capture(const std::function<void()>& body) const {
    const StreamGuard on_stream(stream_);
    return std::make_unique<CapturedGraph>(Double::file(), driver_, stream_, body);
  }
  // Launches `graph` on all ranks. Returns whether it ends in time.
  bool run(Communicator& rank, const CapturedGraph& graph) const {
    rank.barrier().wait();
    graph.launch(stream_);
    return finish();
  }
  // Waits for the stream. Returns whether it ends in time.
  bool finish() const {
    const cuda::Driver::Current current(*driver_);
    const Deadline until = Deadline::after(std::chrono::seconds(20));
    while (driver_->call().stream_query(stream_) == cuda::DriverInterface::kNotReady) {
      if (until.passed()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  std::shared_ptr<const cuda::Driver> driver_;
  cuda::StreamHandle stream_;
};

}  // namespace stretto::testing
