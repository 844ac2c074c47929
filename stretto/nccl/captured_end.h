// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "stretto/base/collective_library.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/cuda_driver/marks.h"

namespace stretto::nccl {

// An event that is recorded behind an operation in the graph that captures it.
class CapturedGraphEnd final : public CapturedEnd {
 public:
  // `stream`: the one behind which the operation begins.
  static Result<std::shared_ptr<CapturedGraphEnd>> make(std::shared_ptr<const cuda::Driver> driver,
                                                        std::shared_ptr<cuda::Marks> marks,
                                                        cuda::StreamHandle stream);
  ~CapturedGraphEnd() override { marks_->give_back(event_); }

  cuda::Marks::Event event() const { return event_; }
  std::uint64_t capture() const { return capture_; }
  Status let_wait(void* stream) override;

 private:
  CapturedGraphEnd(std::shared_ptr<const cuda::Driver> driver, std::shared_ptr<cuda::Marks> marks,
                   cuda::StreamHandle stream, std::uint64_t capture, cuda::Marks::Event event)
      : driver_(std::move(driver)),
        marks_(std::move(marks)),
        stream_(stream),
        capture_(capture),
        event_(event) {}

  std::shared_ptr<const cuda::Driver> driver_;
  std::shared_ptr<cuda::Marks> marks_;
  cuda::StreamHandle stream_;
  std::uint64_t capture_;  // Its number.
  cuda::Marks::Event event_;
};

}  // namespace stretto::nccl
