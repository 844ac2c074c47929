// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stretto/cuda_driver/driver.h"

namespace stretto::testing {

// A CUDA graph of a program's work on streams, captured by the functions of a driver or of its
// double.
class CapturedGraph {
 public:
  // `file`: the driver's, as Driver::open() takes it. Captures the work that `body` enqueues on
  // `stream`, and on other streams that wait for that work.
  CapturedGraph(const std::string& file, std::shared_ptr<const cuda::Driver> driver,
                cuda::StreamHandle stream, const std::function<void()>& body);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // The driver's answer to the end of the capture. After a failure there is nothing to launch.
  const Status& status() const { return status_; }
  void launch(cuda::StreamHandle stream) const;

 private:
  void begin(cuda::StreamHandle stream);
  void end(cuda::StreamHandle stream);

  struct Functions {
    int (*begin)(cuda::StreamHandle, int mode);
    int (*end)(cuda::StreamHandle, void** graph);
    int (*instantiate)(void** executable, void* graph, unsigned long long flags);
    int (*launch)(void* executable, cuda::StreamHandle);
    int (*destroy)(void* executable);
    int (*destroy_graph)(void* graph);
  };
  Functions call_{};
  std::shared_ptr<const cuda::Driver> driver_;
  Status status_;
  void* executable_ = nullptr;
};

}  // namespace stretto::testing
