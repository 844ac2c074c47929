// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/flight_recorder.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "stretto/c10d/torch_version.h"

namespace stretto::c10d_backend {
namespace {

using c10::IValue;
using Record = c10::Dict<IValue, IValue>;

Record new_record() { return Record(c10::AnyType::get(), c10::AnyType::get()); }
c10::List<IValue> new_list() { return c10::List<IValue>(c10::AnyType::get()); }

// The words by which PyTorch's tool knows which operations belong to each other.
std::string name_of(const FlightEntry& entry) {
  using ::c10d::OpType;
  switch (entry.type) {
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case OpType::ALLGATHER_COALESCED:
      return "ALLGATHER_coalesced";
    case OpType::COALESCED:
      return "all_gather_into_tensor_coalesced";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case kReduceScatterTensorCoalesced:
      return "reduce_scatter_tensor_coalesced";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "all_to_all";
    case OpType::SEND:
      return fmt::format("send {}->{}", entry.rank, entry.peer);
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return fmt::format("recv {}<-{}", entry.rank, entry.peer);
    case OpType::BARRIER:
      return "barrier";
    default:
      return "all_reduce";
  }
}

void insert_shapes(Record& record, const std::string& what, const TensorShapes& shapes) {
  c10::List<IValue> sizes = new_list();
  c10::List<IValue> types = new_list();
  const int64_t* size = shapes.sizes.data();
  for (const auto& [type, dims] : shapes.tensors) {
    c10::List<IValue> numbers = new_list();
    for (int64_t dim = 0; dim < dims; ++dim) numbers.push_back(*size++);
    sizes.push_back(numbers);
    types.push_back(std::string(c10::toString(type)));
  }
  record.insert(what + "_sizes", sizes);
  record.insert(what + "_dtypes", types);
}

Record record_of(const FlightEntry& entry) {
  Record record = new_record();
  const bool completed = entry.state == FlightEntry::State::completed;
  record.insert("record_id", static_cast<int64_t>(entry.record_number - 1));
  record.insert("pg_id", static_cast<int64_t>(entry.group->number));
  record.insert("process_group", c10::ivalue::Tuple::create(std::vector<IValue>{
                                     entry.group->name, entry.group->description}));
  record.insert("collective_seq_id", static_cast<int64_t>(entry.collective_number));
  record.insert("p2p_seq_id", static_cast<int64_t>(entry.point_to_point_number));
  record.insert("op_id",
                static_cast<int64_t>(entry.collective_number + entry.point_to_point_number));
  record.insert("is_p2p", ::c10d::isP2POp(entry.type));
  record.insert("profiling_name", kRecordedLibrary + name_of(entry));
  insert_shapes(record, "input", entry.inputs);
  insert_shapes(record, "output", entry.outputs);
  record.insert("state", completed ? "completed" : "started");
  record.insert("retired", entry.state != FlightEntry::State::started);
  record.insert("timeout_ms", static_cast<int64_t>(entry.timeout.count()));
  record.insert("time_created_ns", entry.created_ns);
  record.insert("time_discovered_started_ns", entry.created_ns);
  record.insert("time_discovered_completed_ns", completed ? IValue(entry.ended_ns) : IValue());
  if (completed) {
    record.insert("duration_ms", static_cast<double>(entry.ended_ns - entry.created_ns) / 1e6);
  }
  record.insert("frames", new_list());
  return record;
}

// The numbers of the last collectives of a group, which PyTorch calls its status.
struct LastNumbers {
  uint64_t started = 0;
  uint64_t completed = 0;
};

Record group_record(const FlightGroup& group) {
  Record record = new_record();
  record.insert("name", group.name);
  record.insert("desc", group.description);
  record.insert("ranks", fmt::format("[{}]", fmt::join(group.ranks, ", ")));
  return record;
}

Record status_record(const LastNumbers& last) {
  Record record = new_record();
  record.insert("last_enqueued_collective", std::to_string(last.started));
  record.insert("last_started_collective", std::to_string(last.started));
  record.insert("last_completed_collective", std::to_string(last.completed));
  return record;
}

std::string pickled(const IValue& value) {
  std::string text;
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { text.append(data, size); },
                              nullptr, nullptr, nullptr, nullptr, false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return text;
}

}  // namespace

TensorShapes::TensorShapes(at::TensorList list) {
  for (const at::Tensor& tensor : list) {
    tensors.emplace_back(tensor.scalar_type(), static_cast<int32_t>(tensor.dim()));
    sizes.append(tensor.sizes().begin(), tensor.sizes().end());
  }
}

int64_t FlightEntry::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void FlightEntry::end(bool well) {
  ended_ns = now_ns();
  state = well ? State::completed : State::failed;
}

FlightRecorder& FlightRecorder::instance() {
  static auto* const recorder = new FlightRecorder;  // Operations may end later than statics do.
  return *recorder;
}

FlightRecorder::FlightRecorder()
    : capacity_(static_cast<std::size_t>(std::max(
          0, ::c10d::getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 2000)))) {
}

uint64_t FlightRecorder::record(FlightEntry entry) {
  if (capacity_ == 0) return 0;
  const MutexLock guard(mutex_);
  entry.record_number = ++recorded_;
  if (ring_.size() < capacity_) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[(recorded_ - 1) % capacity_] = std::move(entry);
  }
  return recorded_;
}

void FlightRecorder::end(uint64_t record_number, bool well) {
  if (record_number == 0) return;
  const MutexLock guard(mutex_);
  FlightEntry& entry = ring_[(record_number - 1) % capacity_];
  if (entry.record_number == record_number) entry.end(well);
}

std::string FlightRecorder::dump() const {
  std::vector<FlightEntry> entries;
  {
    const MutexLock guard(mutex_);
    entries = ring_;
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.record_number < b.record_number; });
  // PyTorch names groups anew, from the first name on, when all have been destroyed, and its tool
  // knows a group by its name: of those that are gone nothing is told beside those that are there.
  std::map<std::string, std::size_t> newest;
  for (const FlightEntry& entry : entries) newest[entry.group->name] = entry.group->number;
  std::erase_if(entries, [&](const FlightEntry& entry) {
    const std::string& name = entry.group->name;
    return !name.empty() && entry.group->number != newest.at(name);
  });
  c10::List<IValue> records = new_list();
  std::map<std::size_t, LastNumbers> last;
  Record groups = new_record();
  for (const FlightEntry& entry : entries) {
    const Record record = record_of(entry);
    records.push_back(record);
    groups.insert_or_assign(entry.group->name, group_record(*entry.group));
    if (::c10d::isP2POp(entry.type)) continue;
    LastNumbers& of_group = last[entry.group->number];
    of_group.started = entry.collective_number;
    if (record.at("state").toStringRef() == "completed") {
      of_group.completed = std::max(of_group.completed, entry.collective_number);
    }
  }
  Record statuses = new_record();
  for (const auto& [group, numbers] : last) {
    statuses.insert(std::to_string(group), status_record(numbers));
  }
  Record all = new_record();
  all.insert("version", "2.10");
  all.insert("comm_lib_version", "stretto");
  all.insert("entries", records);
  all.insert("pg_config", groups);
  all.insert("pg_status", statuses);
  return pickled(all);
}

void FlightRecorder::dump_to_file(int job_rank) const {
  const std::string name = ::c10d::getCvarString({"TORCH_FR_DUMP_TEMP_FILE"}, "");
  if (name.empty() || capacity_ == 0) return;
  ::c10d::DebugInfoWriter::getWriter(job_rank).write(dump());
}

}  // namespace stretto::c10d_backend
