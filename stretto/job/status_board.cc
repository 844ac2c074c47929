// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/status_board.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <thread>

#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"
#include "stretto/base/sealed_memory.h"

namespace stretto::job {
namespace {

constexpr std::size_t kTextWords = kStatusTextBytes / 8;
// A sequence lock: odd while the rank is writing. The text is in words that are atomic one by one,
// so that reading what is being written is merely a note to be read again.
struct Slot {
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> text_bytes;
  std::atomic<std::int64_t> time_ns;
  std::array<std::atomic<std::uint64_t>, kTextWords> text;
};
static_assert(sizeof(Slot) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Those of the local ranks are the first, by their local ranks; those of all ranks of the job the
// last, from the end.
Slot& slot_of(const std::shared_ptr<void>& mapping, std::size_t index) {
  return static_cast<Slot*>(mapping.get())[index];
}

void write_to(Slot& slot, std::string_view text) {
  const std::size_t bytes = std::min(text.size(), kStatusTextBytes);
  const std::uint32_t sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence | 1, std::memory_order_relaxed);
  // Release: who sees any of what follows also sees that the sequence is odd.
  slot.text_bytes.store(static_cast<std::uint32_t>(bytes), std::memory_order_release);
  slot.time_ns.store(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(),
                     std::memory_order_release);
  for (std::size_t word = 0; word * 8 < bytes; ++word) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, text.data() + word * 8, std::min<std::size_t>(8, bytes - word * 8));
    slot.text[word].store(bits, std::memory_order_release);
  }
  slot.sequence.store((sequence | 1) + 1, std::memory_order_release);
}

struct Copy {
  StatusNote note;
  bool torn = false;
};

// What the slot holds, which any rank of the host may have written: lengths are checked, and
// nothing in the text steers a terminal.
Copy copy_of(const Slot& slot) {
  const std::uint32_t before = slot.sequence.load(std::memory_order_acquire);
  const std::size_t bytes =
      std::min<std::size_t>(slot.text_bytes.load(std::memory_order_acquire), kStatusTextBytes);
  const std::int64_t time_ns = slot.time_ns.load(std::memory_order_acquire);
  std::array<std::uint64_t, kTextWords> words{};
  for (std::size_t word = 0; word < kTextWords; ++word) {
    words[word] = slot.text[word].load(std::memory_order_acquire);
  }
  const std::uint32_t after = slot.sequence.load(std::memory_order_relaxed);

  Copy copy{.note = {}, .torn = before != after || before % 2 == 1};
  copy.note.text = printable({reinterpret_cast<const char*>(words.data()), bytes});
  copy.note.written = TimePoint(std::chrono::nanoseconds(time_ns));
  return copy;
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
  if (::fcntl(fd, F_GET_SEALS) != kMemorySeals || ::fstat(fd, &file) != 0) return board;
  const auto bytes = static_cast<std::size_t>(file.st_size);
  const std::size_t slots = bytes / sizeof(Slot);
  if (bytes % sizeof(Slot) != 0 || *local_rank >= slots) return board;
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

void StatusBoard::write(std::string_view text) {
  if (mapping_ != nullptr) write_to(slot_of(mapping_, slot_), text);
}

std::optional<std::string> StatusBoard::find_obituary(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  if (mapping_ == nullptr || index >= launcher_ranks_.size()) return std::nullopt;
  const auto launcher_rank = static_cast<std::size_t>(launcher_ranks_[index]);
  if (launcher_rank >= slots_) return std::nullopt;
  const Slot& slot = slot_of(mapping_, slots_ - 1 - launcher_rank);
  if (slot.sequence.load(std::memory_order_acquire) == 0) return std::nullopt;
  // Torn: it is just being told, or, by a rank that has no business there, will never be.
  Copy copy = copy_of(slot);
  return copy.torn ? std::string() : std::move(copy.note.text);
}

Result<LauncherBoard> LauncherBoard::create(int local_ranks, int ranks) {
  LauncherBoard board;
  const std::size_t bytes = static_cast<std::size_t>(local_ranks + ranks) * sizeof(Slot);
  Result<FileDescriptor> file = make_sealed_memory("stretto-status", bytes);
  if (!file.ok()) {
    log(LogLevel::warning, "{}: a report on a failure will not tell what the ranks were doing",
        file.status().message());
    return board;
  }
  STRETTO_ASSIGN_OR_RETURN(auto mapping, map_shared_memory(file->get(), bytes));
  board.fd_ = std::move(*file);
  board.mapping_ = std::move(mapping);
  board.local_ranks_ = local_ranks;
  board.ranks_ = ranks;
  return board;
}

std::optional<StatusNote> LauncherBoard::read(int local_rank) const {
  if (local_rank < 0 || local_rank >= local_ranks_) return std::nullopt;
  const Slot& slot = slot_of(mapping_, static_cast<std::size_t>(local_rank));
  if (slot.sequence.load(std::memory_order_acquire) == 0) return std::nullopt;
  // Bounded: a rank that was killed while it wrote leaves an odd number for ever. Its mixed text is
  // still the best there is.
  const Deadline deadline = Deadline::after(kWritingTime);
  Copy copy = copy_of(slot);
  while (copy.torn && !deadline.passed()) {
    // To a rank that waits for this processor to go on.
    std::this_thread::yield();
    copy = copy_of(slot);
  }
  return std::move(copy.note);
}

void LauncherBoard::clear(int local_rank) const {
  if (local_rank < 0 || local_rank >= local_ranks_) return;
  slot_of(mapping_, static_cast<std::size_t>(local_rank))
      .sequence.store(0, std::memory_order_release);
}

void LauncherBoard::write_obituary(int rank, std::string_view how) const {
  if (rank < 0 || rank >= ranks_) return;
  write_to(slot_of(mapping_, static_cast<std::size_t>(local_ranks_ + ranks_ - 1 - rank)), how);
}

}  // namespace stretto::job
