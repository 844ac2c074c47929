// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/link_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/file_size_signal.h"
#include "stretto/base/fnv1a.h"

namespace stretto::communicator {
namespace {

constexpr std::int64_t kAgeMaxSeconds = std::int64_t{7} * 24 * 3600;

struct Field {
  std::string_view name;
  double* value;
  double limit;  // The value must be positive and below.
  bool may_be_zero = false;

  bool is_sound() const {
    return std::isfinite(*value) && (may_be_zero ? *value >= 0 : *value > 0) && *value < limit;
  }
};

std::array<Field, 11> fields_of(CachedLink& link) {
  constexpr double kSecondsMax = 10;
  constexpr double kBytesMax = 1e9;
  return {{{"latency_seconds", &link.cost.latency_seconds, kSecondsMax},
           {"message_seconds", &link.cost.message_seconds, kSecondsMax},
           {"further_message_seconds", &link.cost.further_message_seconds, kSecondsMax, true},
           {"seconds_per_byte", &link.cost.seconds_per_byte, kSecondsMax},
           {"burst_bytes", &link.cost.burst_bytes, kBytesMax, true},
           {"burst_seconds_per_byte", &link.cost.burst_seconds_per_byte, kSecondsMax, true},
           {"reduce_seconds_per_byte", &link.cost.reduce_seconds_per_byte, kSecondsMax},
           {"one_sync_reduced_bytes", &link.memory.reduced, kBytesMax},
           {"one_sync_moved_bytes", &link.memory.moved, kBytesMax},
           {"one_sync_private_reduced_bytes", &link.memory.private_reduced, kBytesMax},
           {"one_sync_private_pair_bytes", &link.memory.private_pair, kBytesMax}}};
}

struct Flag {
  std::string_view name;
  bool* value;
};

std::array<Flag, 2> flags_of(CachedLink& link) {
  return {{{"takes_lines", &link.memory.takes_lines}, {"confirmed", &link.is_confirmed}}};
}

std::int64_t unix_seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The first 4096 bytes of a regular file; empty for anything else. A user who can write to the
// folder may have put anything in the file's place: a FIFO would block an ordinary open.
std::string text_of(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat state {};
  if (!file.valid() || ::fstat(file.get(), &state) != 0 || !S_ISREG(state.st_mode)) return "";
  std::array<char, 4096> bytes{};
  const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
  return count > 0 ? std::string(bytes.data(), static_cast<std::size_t>(count)) : std::string();
}

}  // namespace

std::string describe_age(std::int64_t age_seconds) {
  return age_seconds > 120 ? fmt::format("measured {} min ago", age_seconds / 60)
         : age_seconds > 0 ? fmt::format("measured {} s ago", age_seconds)
                           : "measured just now";
}

std::string link_cache_path(const std::string& folder, std::string_view link) {
  return fmt::format("{}/link-{:016x}.txt", folder, fnv1a(link));
}

std::optional<CachedLink> load_link(const std::string& path) {
  std::istringstream file(text_of(path));
  std::string title;
  if (!std::getline(file, title)) return std::nullopt;
  CachedLink link;
  std::string name;
  std::int64_t unix_seconds = 0;
  if (!(file >> name >> unix_seconds) || name != "measured_at") return std::nullopt;
  // Compared as integers, as a number from another user's file may be too large for the clock.
  const std::int64_t now = unix_seconds_now();
  constexpr std::int64_t kHour = 3600;
  if (unix_seconds < now - kAgeMaxSeconds || unix_seconds > now + kHour) return std::nullopt;
  link.age_seconds = std::max<std::int64_t>(1, now - unix_seconds);
  for (const Field& field : fields_of(link)) {
    if (!(file >> name >> *field.value) || name != field.name) return std::nullopt;
    if (!field.is_sound()) return std::nullopt;
  }
  for (const Flag& flag : flags_of(link)) {
    int value = 0;
    if (!(file >> name >> value) || name != flag.name || value < 0 || value > 1) {
      return std::nullopt;
    }
    *flag.value = value == 1;
  }
  return link;
}

void save_link(const std::string& path, std::string_view link, const CachedLink& measured) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  // Written beside the file and then renamed, so that readers see a complete file.
  const std::string beside = fmt::format("{}.{}", path, ::getpid());
  std::ostringstream text;
  text << link << "\nmeasured_at " << unix_seconds_now() - measured.age_seconds << '\n';
  CachedLink written = measured;
  for (const Field& field : fields_of(written)) text << field.name << ' ' << *field.value << '\n';
  for (const Flag& flag : flags_of(written)) text << flag.name << ' ' << *flag.value << '\n';
  const FileSizeSignalBlocked blocked;
  // A file of this name is left by a dead process with the same pid, or is a trap: it must not be
  // written to.
  ::unlink(beside.c_str());
  const FileDescriptor file(
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.valid()) return;
  const std::string bytes = text.str();
  if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    ::unlink(beside.c_str());
    return;
  }
  std::filesystem::rename(beside, path, ignored);
}

void share_link(Communicator& world, Rank root, std::string_view what, CachedLink& link) {
  // Flags travel as numbers, because not every byte that a peer may send is a valid bool.
  std::vector<double> told = {static_cast<double>(link.age_seconds)};
  for (const Field& field : fields_of(link)) told.push_back(*field.value);
  for (const Flag& flag : flags_of(link)) told.push_back(*flag.value ? 1 : 0);
  world.broadcast(std::span(told), {.root = root}).wait();
  auto next = told.begin();
  bool is_sound = *next >= kNotMeasured && *next <= kAgeMaxSeconds;
  if (is_sound) link.age_seconds = static_cast<std::int64_t>(*next);
  for (const Field& field : fields_of(link)) {
    *field.value = *++next;
    is_sound = is_sound && field.is_sound();
  }
  for (const Flag& flag : flags_of(link)) *flag.value = *++next == 1;
  if (is_sound) return;
  throw ProtocolError(Status(StatusCode::protocol,
                             fmt::format("rank {} tells {} that cannot be", root.value(), what),
                             root));
}

}  // namespace stretto::communicator
