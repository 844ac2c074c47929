// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/flight_recorder.h"

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/log.h"
#include "stretto/base/mutex.h"
#include "stretto/base/name_in.h"
#include "stretto/communicator/flight_entries.h"

namespace stretto {

using communicator::FlightEntry;
using communicator::FlightTensors;

namespace {

// PyTorch's name of the type.
const char* flight_name(DType dtype) {
  return name_in({"Byte", "Char", "Int", "Long", "Half", "BFloat16", "Float", "Double", "Bool",
                  "Short", "UInt16", "UInt32", "UInt64", "ComplexFloat", "ComplexDouble",
                  "Float8_e4m3fn", "Float8_e5m2"},
                 dtype, "Undefined")
      .data();
}

bool is_uneven(const OperationDescriptor& part) {
  return part.layout != 0 && part.layout != kSetUpLayout;
}

// PyTorch's name of the operation, by which its tool knows what to compare.
const char* flight_name(const ObservedOperation& operation) {
  const OperationDescriptor& first = operation.parts.front();
  const bool is_list = operation.parts.size() > 1;
  switch (first.collective) {
    case Collective::reduce_scatter:
      if (is_uneven(first)) return "reduce_scatter_v";
      return is_list ? "reduce_scatter_tensor_coalesced" : "_reduce_scatter_base";
    case Collective::all_gather:
      if (is_uneven(first)) return "all_gather_v";
      return is_list ? "all_gather_into_tensor_coalesced" : "_all_gather_base";
    case Collective::point_to_point:
      return operation.message_to ? "send" : "recv";
    default:
      return name(first.collective).data();  // PyTorch has the same names for the others.
  }
}

// The sizes that the tool compares between ranks are those that all ranks know: of the whole
// buffer, and of a share if all shares are equal.
struct Sizes {
  std::int64_t input = 0;
  std::int64_t output = 0;
};

Sizes sizes_of(const OperationDescriptor& part, std::size_t ranks) {
  const auto whole = static_cast<std::int64_t>(part.count);
  const auto share = is_uneven(part) ? whole : whole / static_cast<std::int64_t>(ranks);
  switch (part.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return {share, whole};
    case Collective::reduce_scatter:
    case Collective::scatter:
      return {whole, share};
    default:
      return {whole, whole};
  }
}

void add_shapes(const ObservedOperation& operation, FlightEntry& entry) {
  for (const OperationDescriptor& part : operation.parts) {
    if (part.collective == Collective::barrier) continue;
    const Sizes sizes = sizes_of(part, operation.group->ranks.size());
    const char* const dtype = flight_name(part.dtype);
    if (!operation.message_from) entry.inputs.add(dtype, {&sizes.input, 1});
    if (!operation.message_to) entry.outputs.add(dtype, {&sizes.output, 1});
  }
}

}  // namespace

FlightRecorder::FlightRecorder(std::size_t entries)
    : entries_(std::make_unique<communicator::FlightEntries>(entries, "gloo")) {}

FlightRecorder::~FlightRecorder() = default;

std::uint64_t FlightRecorder::begun(const ObservedOperation& operation) {
  FlightEntry entry{
      .operation = flight_name(operation),
      .message_to = operation.message_to,
      .message_from = operation.message_from,
      .collective_number = operation.collective_number,
      .message_number = operation.message_number,
      .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
          operation.timeout.value_or(Duration::zero())),
      .group = operation.group,
      .created_ns = std::chrono::nanoseconds(operation.submitted.time_since_epoch()).count()};
  add_shapes(operation, entry);
  return entries_->record(std::move(entry));
}

void FlightRecorder::ended(std::uint64_t id, const Status& how) {
  entries_->end(id, how.ok());
  if (!how.ok()) {
    note_failure();
  } else if (has_failed_) {
    has_failed_ = false;
  }
}

void FlightRecorder::aborted(const ObservedGroup&, const std::string&) { note_failure(); }

void FlightRecorder::note_failure() {
  if (path_at_failure_.empty()) return;
  static Mutex writing;  // Threads that have seen a failure go on when the file is written.
  const MutexLock guard(writing);
  if (has_failed_.exchange(true)) return;
  try {
    write(path_at_failure_);
  } catch (const Error& error) {
    log(LogLevel::error, "the flight record is lost: {}", error.what());
  }
}

std::string FlightRecorder::pickled() const { return entries_->pickled(); }

std::string FlightRecorder::json() const { return entries_->json(); }

void FlightRecorder::write(const std::string& path) const { entries_->write(path); }

}  // namespace stretto
