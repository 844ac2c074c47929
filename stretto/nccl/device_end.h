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

// An event that is recorded behind an operation.
class RecordedEnd : public DeviceEnd {
 public:
  RecordedEnd(std::shared_ptr<const cuda::Driver> driver, std::shared_ptr<cuda::Marks> marks,
              cuda::Marks::Event event)
      : driver_(std::move(driver)), marks_(std::move(marks)), event_(event) {}
  RecordedEnd(const RecordedEnd&) = delete;
  RecordedEnd& operator=(const RecordedEnd&) = delete;
  ~RecordedEnd() override { marks_->give_back(event_); }

  cuda::Marks::Event event() const { return event_; }
  Status let_wait(void* stream) override;

 protected:
  Status wait_on(cuda::StreamHandle stream) const;

  std::shared_ptr<const cuda::Driver> driver_;

 private:
  std::shared_ptr<cuda::Marks> marks_;
  cuda::Marks::Event event_;
};

// The same for an operation that a graph captures: the event belongs to the graph.
class CapturedEnd final : public RecordedEnd {
 public:
  // `stream`: the one behind which the operation begins.
  static Result<std::shared_ptr<CapturedEnd>> make(std::shared_ptr<const cuda::Driver> driver,
                                                   std::shared_ptr<cuda::Marks> marks,
                                                   cuda::StreamHandle stream);

  std::uint64_t capture() const { return capture_; }
  Status let_wait(void* stream) override;

 private:
  CapturedEnd(std::shared_ptr<const cuda::Driver> driver, std::shared_ptr<cuda::Marks> marks,
              cuda::Marks::Event event, cuda::StreamHandle stream, std::uint64_t capture)
      : RecordedEnd(std::move(driver), std::move(marks), event),
        stream_(stream),
        capture_(capture) {}

  cuda::StreamHandle stream_;
  std::uint64_t capture_;  // Its number.
};

}  // namespace stretto::nccl
