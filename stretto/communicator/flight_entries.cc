// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/flight_entries.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "stretto/base/error.h"
#include "stretto/base/little_endian.h"

namespace stretto::communicator {
namespace {

using nlohmann::json;

json::array_t sizes_of(const FlightTensors& tensors) {
  json::array_t lists;
  std::size_t next = 0;
  for (std::size_t i = 0; i < tensors.types.size(); ++i) {
    json::array_t sizes;
    for (std::size_t d = 0; d < tensors.types[i].dims; ++d) sizes.push_back(tensors.sizes[next++]);
    lists.push_back(std::move(sizes));
  }
  return lists;
}

json::array_t dtypes_of(const FlightTensors& tensors) {
  json::array_t names;
  for (std::size_t i = 0; i < tensors.types.size(); ++i) {
    names.push_back(tensors.types[i].dtype);
  }
  return names;
}

bool is_message(const FlightEntry& entry) { return entry.message_to || entry.message_from; }

// The tool's rank numbers in a group are positions among the group's ranks in ascending order.
int place_of(Rank rank, const std::vector<Rank>& ranks) {
  if (rank == kAnyRank) return rank.value();
  const Rank in_job = ranks[static_cast<std::size_t>(rank.value())];
  return static_cast<int>(std::ranges::count_if(ranks, [&](Rank r) { return r < in_job; }));
}

// The tool reads the sender and the receiver from the name.
std::string name_of(const FlightEntry& entry) {
  if (!is_message(entry)) return entry.operation;
  const Rank other = entry.message_to ? *entry.message_to : *entry.message_from;
  return fmt::format("{} {}{}{}", entry.operation, place_of(entry.group->rank, entry.group->ranks),
                     entry.message_to ? "->" : "<-", place_of(other, entry.group->ranks));
}

// Keeps numbers of messages apart from those of collectives, because the tool takes neighbouring
// entries of one number for parts of one call.
constexpr std::uint64_t kFirstMessage = std::uint64_t{1} << 32;

// The group's name in UTF-8. A program may name a group with any bytes.
std::string description_of(const ObservedGroup& group) {
  if (group.name.empty()) return "undefined";  // As PyTorch writes.
  const std::string text = json(group.name).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(text).get<std::string>();
}

json record_of(const FlightEntry& entry, const std::string& library) {
  const bool completed = entry.state == FlightEntry::State::completed;
  json record = {{"record_id", entry.record_number - 1},
                 {"pg_id", entry.group->serial},
                 {"process_group", {entry.group->id, description_of(*entry.group)}},
                 {"collective_seq_id", entry.collective_number},
                 {"p2p_seq_id", entry.message_number + (is_message(entry) ? kFirstMessage : 0)},
                 {"op_id", entry.collective_number + entry.message_number},
                 {"is_p2p", is_message(entry)},
                 {"profiling_name", library + ":" + name_of(entry)},
                 {"input_sizes", sizes_of(entry.inputs)},
                 {"input_dtypes", dtypes_of(entry.inputs)},
                 {"output_sizes", sizes_of(entry.outputs)},
                 {"output_dtypes", dtypes_of(entry.outputs)},
                 {"state", completed ? "completed" : "started"},
                 {"retired", entry.state != FlightEntry::State::started},
                 {"timeout_ms", entry.timeout.count()},
                 {"time_created_ns", entry.created_ns},
                 {"time_discovered_started_ns", entry.created_ns},
                 {"time_discovered_completed_ns", completed ? json(entry.ended_ns) : json()},
                 {"frames", json::array_t()}};
  if (completed) {
    record["duration_ms"] = static_cast<double>(entry.ended_ns - entry.created_ns) / 1e6;
  }
  return record;
}

// The numbers of a group's last collectives: what PyTorch calls its status.
struct LastNumbers {
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
};

json status_record(const LastNumbers& last) {
  return {{"last_enqueued_collective", std::to_string(last.started)},
          {"last_started_collective", std::to_string(last.started)},
          {"last_completed_collective", std::to_string(last.completed)}};
}

json group_record(const ObservedGroup& group) {
  std::vector<int> ranks;
  for (const Rank rank : group.ranks) ranks.push_back(rank.value());
  return {{"name", group.id},
          {"desc", description_of(group)},
          {"ranks", fmt::format("[{}]", fmt::join(ranks, ", "))}};
}

void append_text(std::string& text, const std::string& value) {
  text += 'X';  // BINUNICODE
  append_little_endian(text, static_cast<std::uint32_t>(value.size()));
  text += value;
}

void append(std::string& text, const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      text += "}(";  // EMPTY_DICT, MARK
      for (const auto& [key, entry] : value.items()) {
        append_text(text, key);
        append(text, entry);
      }
      text += 'u';  // SETITEMS
      return;
    case json::value_t::array:
      text += "](";  // EMPTY_LIST, MARK
      for (const json& entry : value) append(text, entry);
      text += 'e';  // APPENDS
      return;
    case json::value_t::string:
      return append_text(text, value.get_ref<const std::string&>());
    case json::value_t::boolean:
      text += value.get<bool>() ? '\x88' : '\x89';
      return;
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      text += "\x8a\x08";  // LONG1, of eight bytes
      return append_little_endian(text, value.get<std::int64_t>());
    case json::value_t::number_float: {
      text += 'G';  // BINFLOAT, which has its highest byte first.
      std::string bits;
      append_little_endian(bits, std::bit_cast<std::uint64_t>(value.get<double>()));
      text.append(bits.rbegin(), bits.rend());
      return;
    }
    default:
      text += 'N';
  }
}

// Dictionaries, lists, strings and numbers in Python's pickle format (protocol 2). Integers beyond
// signed 64 bits do not occur.
std::string pickle(const json& value) {
  std::string text = "\x80\x02";
  append(text, value);
  text += '.';
  return text;
}

}  // namespace

std::uint64_t FlightEntries::record(FlightEntry entry) {
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

void FlightEntries::end(std::uint64_t record_number, bool well) {
  if (record_number == 0) return;
  const MutexLock guard(mutex_);
  FlightEntry& entry = ring_[(record_number - 1) % capacity_];
  if (entry.record_number == record_number) entry.end(well);
}

// Entries in order, without those of destroyed groups whose id a newer group has: PyTorch starts
// its names again when all groups have been destroyed, and its tool knows a group by the id.
std::vector<FlightEntry> FlightEntries::in_order() const {
  std::vector<FlightEntry> entries;
  {
    const MutexLock guard(mutex_);
    entries = ring_;
  }
  std::ranges::sort(entries, {}, &FlightEntry::record_number);
  std::map<std::string, std::uint64_t> newest;
  for (const FlightEntry& entry : entries) newest[entry.group->id] = entry.group->serial;
  std::erase_if(entries, [&](const FlightEntry& entry) {
    const std::string& id = entry.group->id;
    return !id.empty() && entry.group->serial != newest.at(id);
  });
  return entries;
}

nlohmann::json FlightEntries::document() const {
  nlohmann::json::array_t records;
  nlohmann::json groups = nlohmann::json::object();
  std::map<std::uint64_t, LastNumbers> last;
  for (const FlightEntry& entry : in_order()) {
    records.push_back(record_of(entry, library_));
    groups[entry.group->id] = group_record(*entry.group);
    if (is_message(entry)) continue;
    LastNumbers& of_group = last[entry.group->serial];
    of_group.started = entry.collective_number;
    if (entry.state == FlightEntry::State::completed) {
      of_group.completed = std::max(of_group.completed, entry.collective_number);
    }
  }
  nlohmann::json statuses = nlohmann::json::object();
  for (const auto& [group, numbers] : last) {
    statuses[std::to_string(group)] = status_record(numbers);
  }
  return {{"version", "2.10"},
          {"comm_lib_version", "stretto"},
          {"entries", std::move(records)},
          {"pg_config", std::move(groups)},
          {"pg_status", std::move(statuses)}};
}

std::string FlightEntries::json() const { return document().dump(); }

std::string FlightEntries::pickled() const { return pickle(document()); }

void FlightEntries::write(const std::string& path) const {
  // Writes a part file and renames it, so that the file appears complete. PyTorch's tool takes
  // files with a number at the end, or with the common prefix, for records, so the part's name has
  // neither. The name is unique.
  static std::atomic<std::uint64_t> parts = 0;
  const auto part =
      std::filesystem::path(path).parent_path() /
      fmt::format(".{}.{}.{}.part", ::getpid(), static_cast<const void*>(this), ++parts);
  const std::string text = pickled();
  std::ofstream file(part, std::ios::binary);
  file << text << std::flush;
  if (file && std::rename(part.c_str(), path.c_str()) == 0) return;
  const Status why = system_status(fmt::format("writing {}", path));
  std::remove(part.c_str());
  throw SystemError(why);
}

}  // namespace stretto::communicator
