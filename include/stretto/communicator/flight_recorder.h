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

// Keeps the last operations of the communicators that it observes, in the fields of PyTorch's
// flight recorder: each with its group, number and shapes, and with the times of its submission and
// end.
//
//   auto recorder = std::make_shared<FlightRecorder>();
//   comm->observe(recorder);
//   ...
//   recorder->write(fmt::format("records/rank_{}", comm->rank().value()));
//
// If STRETTO_FLIGHT_RECORD=records/rank_ is set, join() observes, and a failure writes the file.
// Compare the files of all ranks by `python -m torch.distributed.flight_recorder.fr_trace records`
// (PyTorch 2.12 or later). One recorder may observe several communicators of one rank of a job. Any
// thread.
class FlightRecorder final : public OperationObserver {
 public:
  static constexpr std::size_t kEntries = 2000;
  explicit FlightRecorder(std::size_t entries = kEntries);
  ~FlightRecorder() override;

  // The record as a pickled dictionary, which PyTorch's tool reads, and as JSON.
  std::string pickled() const;
  std::string json() const;
  // Writes pickled() to a file, which is replaced. Throws SystemError.
  void write(const std::string& path) const;
  // From now on, an operation that fails and a call of abort() also write the file; the next
  // failure does so only if an operation has succeeded in between. If writing fails, the log says
  // so. Call this before the recorder is used.
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
