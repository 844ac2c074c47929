// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/link_cache.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include "stretto/base/file_size_signal.h"

namespace stretto::communicator {
namespace {

constexpr std::chrono::hours kAgeMax(7 * 24);

struct Field {
  std::string_view name;
  double schedule::LinkCost::*value;
};
constexpr std::array kFields = {
    Field{"latency_seconds", &schedule::LinkCost::latency_seconds},
    Field{"message_seconds", &schedule::LinkCost::message_seconds},
    Field{"seconds_per_byte", &schedule::LinkCost::seconds_per_byte},
    Field{"reduce_seconds_per_byte", &schedule::LinkCost::reduce_seconds_per_byte},
};

bool plausible(double seconds) { return std::isfinite(seconds) && seconds > 0 && seconds < 10; }

}  // namespace

std::string link_cache_path(const std::string& folder, std::string_view link) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : link) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{}/link-{:016x}.txt", folder, hash);
}

std::optional<CachedLink> load_link(const std::string& path) {
  std::ifstream file(path);
  std::string title;
  if (!std::getline(file, title)) return std::nullopt;
  CachedLink link;
  std::string name;
  std::int64_t unix_seconds = 0;
  if (!(file >> name >> unix_seconds) || name != "measured_at") return std::nullopt;
  link.measured_at = std::chrono::system_clock::time_point(std::chrono::seconds(unix_seconds));
  for (const Field& field : kFields) {
    double value = 0;
    if (!(file >> name >> value) || name != field.name || !plausible(value)) return std::nullopt;
    link.cost.*field.value = value;
  }
  const auto age = std::chrono::system_clock::now() - link.measured_at;
  if (age < -std::chrono::hours(1) || age > kAgeMax) return std::nullopt;
  return link;
}

void save_link(const std::string& path, std::string_view link, const CachedLink& measured) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  // Beside the file, then renamed: whoever reads meanwhile reads all or nothing.
  const std::string beside = fmt::format("{}.{}", path, ::getpid());
  {
    const FileSizeSignalBlocked blocked;
    std::ofstream file(beside, std::ios::trunc);
    file << link << "\nmeasured_at "
         << std::chrono::duration_cast<std::chrono::seconds>(
                measured.measured_at.time_since_epoch())
                .count()
         << '\n';
    for (const Field& field : kFields) {
      file << field.name << ' ' << measured.cost.*field.value << '\n';
    }
    if (!file.flush()) return std::filesystem::remove(beside, ignored), void();
  }
  std::filesystem::rename(beside, path, ignored);
}

}  // namespace stretto::communicator
