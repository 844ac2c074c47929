// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "stretto/base/status.h"
#include "stretto/communicator/operation_observer.h"

namespace stretto {

namespace communicator {
class FlightEntries;
}

// Keeps the last operations of the communicators that it observes, each with its group, its number,
// its shapes and when it was submitted and has ended, in the fields of PyTorch's flight recorder:
//
//   auto recorder = std::make_shared<FlightRecorder>();
//   comm->observe(recorder);
//   ...
//   recorder->write(fmt::format("records/rank_{}", comm->rank().value()));
//
// With STRETTO_FLIGHT_RECORD=records/rank_, join() does this, and a failure writes it. The files of
// all ranks are compared by `python -m torch.distributed.flight_recorder.fr_trace records` (PyTorch
// 2.12 or later). One recorder may observe several communicators of one rank of a job. Any thread.
class FlightRecorder final : public OperationObserver {
 public:
  static constexpr std::size_t kEntries = 2000;
  explicit FlightRecorder(std::size_t entries = kEntries);
  ~FlightRecorder() override;

  // A pickled dictionary, as PyTorch's tool reads it; the same as JSON.
  std::string pickled() const;
  std::string json() const;
  // Writes the first to a file, which is replaced. Throws SystemError.
  void write(const std::string& path) const;
  // Does so when an operation fails, or abort() is called, and again only if others have ended well
  // since. Of what fails in doing so, the log tells. Before the recorder is used.
  void write_at_failure(std::string path) { path_at_failure_ = std::move(path); }

  std::uint64_t begun(const ObservedOperation& operation) override;
  void ended(std::uint64_t id, const Status& how) override;
  void aborted(const ObservedGroup& group, const std::string& reason) override;

 private:
  void note_failure();

  const std::unique_ptr<communicator::FlightEntries> entries_;
  std::string path_at_failure_;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace stretto
