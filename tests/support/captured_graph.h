// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stretto/cuda_driver/driver.h"

namespace stretto::testing {

// A CUDA graph of what a program does on streams, by the functions of a driver, or of its double.
class CapturedGraph {
 public:
  // `file`: the driver's, as Driver::open() takes it. Captures what `body` has the stream do, and
  // what it has others do that begin behind that.
  CapturedGraph(const std::string& file, std::shared_ptr<const cuda::Driver> driver,
                cuda::StreamHandle stream, const std::function<void()>& body);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // What the driver has said to the end of the capture; after a failure there is nothing to launch.
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
