// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/status_board.h"

#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <numeric>

#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/sealed_memory.h"

namespace stretto::job {
namespace {

// The slots of the local ranks come first, by local rank. Those of the job's ranks come last, in
// reverse order from the end.
StatusSlot& slot_of(const std::shared_ptr<void>& mapping, std::size_t index) {
  return static_cast<StatusSlot*>(mapping.get())[index];
}

}  // namespace

StatusBoard StatusBoard::open(const Environment& environment, int rank, int size,
                              std::span<const int> launcher_ranks) {
  StatusBoard board;
  const auto read = [&](const char* variable) {
    return parse_number<unsigned>(environment.get(variable).value_or(""));
  };
  const std::optional<unsigned> number = read("STRETTO_STATUS_FD");
  const std::optional<unsigned> local_rank = read("STRETTO_LOCAL_RANK");
  if (!number || !local_rank) return board;
  const int fd = static_cast<int>(*number);
  struct stat file {};
  if (!is_sealed_memory(fd) || ::fstat(fd, &file) != 0) return board;
  const auto bytes = static_cast<std::size_t>(file.st_size);
  const std::size_t slots = bytes / sizeof(StatusSlot);
  if (bytes % sizeof(StatusSlot) != 0 || *local_rank >= slots) return board;
  if (auto mapping = map_shared_memory(fd, bytes); mapping.ok()) board.mapping_ = *mapping;
  board.slot_ = *local_rank;
  board.slots_ = slots;
  const auto is = [&](const char* variable, int expected) {
    return read(variable) == static_cast<unsigned>(expected);
  };
  board.launcher_ranks_.assign(launcher_ranks.begin(), launcher_ranks.end());
  const bool has_room = static_cast<std::size_t>(size) < slots - *local_rank;
  const bool same = has_room && is("STRETTO_RANK", rank) && is("STRETTO_SIZE", size);
  if (launcher_ranks.empty() && same) {
    board.launcher_ranks_.resize(static_cast<std::size_t>(size));
    std::iota(board.launcher_ranks_.begin(), board.launcher_ranks_.end(), 0);
  }
  return board;
}

// Each engine of a process has a board; all of them share the slot, which takes one writer at a
// time.
void StatusBoard::write(std::string_view text) {
  if (mapping_ == nullptr) return;
  static std::mutex is_writing;
  const std::unique_lock held(is_writing, std::try_to_lock);
  if (held) slot_of(mapping_, slot_).write(text);
}

std::optional<std::string> StatusBoard::find_obituary(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  if (mapping_ == nullptr || index >= launcher_ranks_.size()) return std::nullopt;
  const auto launcher_rank = static_cast<std::size_t>(launcher_ranks_[index]);
  if (launcher_rank >= slots_) return std::nullopt;
  const StatusSlot& slot = slot_of(mapping_, slots_ - 1 - launcher_rank);
  if (slot.is_empty()) return std::nullopt;
  // No note: the launcher is just writing it, or another rank has damaged the slot for good.
  return slot.try_read().value_or(StatusNote()).text;
}

LauncherBoard::LauncherBoard(int local_ranks, int ranks) {
  const std::size_t bytes = static_cast<std::size_t>(local_ranks + ranks) * sizeof(StatusSlot);
  Result<FileDescriptor> file = make_sealed_memory("stretto-status", bytes);
  auto mapping = file.ok() ? map_shared_memory(file->get(), bytes) : file.status();
  if (!mapping.ok()) {
    log(LogLevel::warning, "{}: a report on a failure will not tell what the ranks were doing",
        mapping.status().message());
    return;
  }
  fd_ = std::move(*file);
  mapping_ = std::move(*mapping);
  local_ranks_ = local_ranks;
  ranks_ = ranks;
}

std::optional<StatusNote> LauncherBoard::read(int local_rank) const {
  if (local_rank < 0 || local_rank >= local_ranks_) return std::nullopt;
  const StatusSlot& slot = slot_of(mapping_, static_cast<std::size_t>(local_rank));
  if (slot.is_empty()) return std::nullopt;
  return slot.read();
}

void LauncherBoard::clear(int local_rank) const {
  if (local_rank < 0 || local_rank >= local_ranks_) return;
  slot_of(mapping_, static_cast<std::size_t>(local_rank)).clear();
}

void LauncherBoard::write_obituary(int rank, std::string_view how) const {
  if (rank < 0 || rank >= ranks_) return;
  slot_of(mapping_, static_cast<std::size_t>(local_ranks_ + ranks_ - 1 - rank)).write(how);
}

}  // namespace stretto::job
