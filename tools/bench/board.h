// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "stretto/group/idle_wait.h"

// Uses only the standard library, POSIX and headers of stretto that need no linking, so that
// drivers of other libraries can include it.
namespace stretto::bench {

// The largest numbers of samples of one line.
inline constexpr int kMaxSingles = 16384;
inline constexpr int kMaxBatches = 1024;

// The number of cores that this process's affinity mask allows, at least 1. Call it before pinning.
inline int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// The times of a line; the same on all ranks.
struct Summary {
  double p50_us = 0;  // If `batched`: the median over batches of calls in a row.
  double p99_us = 0;  // Of single calls, always.
  double max_us = 0;
  double min_us = 0;
  std::uint32_t samples = 0;
  bool batched = false;
  double latency_before_ns = 0;  // One way of a flag between ranks 0 and 1; 0: not measured.
  double latency_after_ns = 0;
};

// Whether the process has ended; also true of a zombie. False if the system does not tell.
inline bool process_has_ended(pid_t pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH;
  pollfd entry{fd, POLLIN, 0};
  const bool ended = ::poll(&entry, 1, 0) == 1;
  ::close(fd);
  return ended;
}

// The first page of a board. Behind it lie kMaxSingles f64 for each rank, in microseconds, and then
// the process id of each rank, or 0.
struct BoardHead {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint32_t cores;  // The number of cores that the ranks may use.
  std::atomic<std::uint32_t> abandoned;
  alignas(64) std::atomic<std::uint32_t> arrivals;
  alignas(64) std::atomic<std::uint32_t> generation;
  alignas(64) std::atomic<std::uint64_t> ping;
  alignas(64) std::atomic<std::uint64_t> pong;
  alignas(64) double decided[2];  // The values that rank 0 has decided.
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A file that all ranks of one system under measurement map, so that they can synchronize there. It
// belongs to its maker; nothing here removes it. One thread of each rank uses it. Failures throw
// std::runtime_error. When a rank gives up, the barriers of the others throw too, and also when a
// rank's process has ended, after about a second.
class Board {
 public:
  // Sizes and zeroes `fd` (a file, or a memfd that ranks reach by /proc/PID/fd/N) for `ranks`.
  static void format(int fd, int ranks, int cores) {
    const std::size_t bytes = size_bytes(ranks);
    if (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      throw std::runtime_error("board: cannot size the file: " + std::string(strerror(errno)));
    }
    BoardHead head_bytes{};
    head_bytes.version = kVersion;
    head_bytes.ranks = static_cast<std::uint32_t>(ranks);
    head_bytes.cores = static_cast<std::uint32_t>(cores);
    std::memcpy(&head_bytes.magic, "STRBOARD", 8);
    if (::pwrite(fd, &head_bytes, sizeof(head_bytes), 0) != sizeof(head_bytes)) {
      throw std::runtime_error("board: cannot write the file: " + std::string(strerror(errno)));
    }
  }
  static std::size_t size_bytes(int ranks) {
    return kPage + (kSinglesBytes + sizeof(std::atomic<pid_t>)) * static_cast<std::size_t>(ranks);
  }

  Board(const std::string& path, int rank) : rank_(rank) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) throw std::runtime_error("board " + path + ": " + strerror(errno));
    struct stat status {};
    const bool found = ::fstat(fd, &status) == 0;
    bytes_ = found ? static_cast<std::size_t>(status.st_size) : 0;
    void* memory = bytes_ < kPage
                       ? MAP_FAILED
                       : ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (memory == MAP_FAILED) throw std::runtime_error("board " + path + ": cannot be mapped");
    memory_ = static_cast<std::byte*>(memory);
    const bool right = std::memcmp(&head().magic, "STRBOARD", 8) == 0 &&
                       head().version == kVersion && bytes_ == size_bytes(size()) && rank < size();
    if (!right) {
      ::munmap(memory_, bytes_);
      throw std::runtime_error("board " + path + ": not made for this rank");
    }
    process(rank).store(::getpid(), std::memory_order_relaxed);
  }
  ~Board() { ::munmap(memory_, bytes_); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  BoardHead& head() const { return *reinterpret_cast<BoardHead*>(memory_); }
  double* singles(int rank) const {
    return reinterpret_cast<double*>(memory_ + kPage) +
           static_cast<std::size_t>(rank) * kMaxSingles;
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(head().ranks); }
  int cores() const { return static_cast<int>(head().cores); }
  bool oversubscribed() const { return size() > cores(); }

  // Waits until all ranks have called it. Spins; yields early where ranks share cores, else later.
  void barrier() {
    BoardHead& shared = head();
    // No rank can end this generation before this one has arrived, so the value is the current one.
    const std::uint32_t generation = shared.generation.load(std::memory_order_relaxed);
    if (shared.arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 == shared.ranks) {
      shared.arrivals.store(0, std::memory_order_relaxed);
      shared.generation.store(generation + 1, std::memory_order_release);
      return;
    }
    wait_until([&] { return shared.generation.load(std::memory_order_acquire) != generation; });
  }

  // Spins until `met()` returns true, and yields as barrier() does.
  template <class Met>
  void wait_until(Met&& met) {
    const int patience = oversubscribed() ? 100 : 20000;
    for (int spins = 0; spins < patience; ++spins) {
      if (met()) return;
      group::pause();
    }
    constexpr std::chrono::seconds kLookPause(1);
    auto next_look = std::chrono::steady_clock::now() + kLookPause;
    while (!met()) {
      if (head().abandoned.load(std::memory_order_relaxed) != 0) {
        throw std::runtime_error("another rank has given up");
      }
      ::sched_yield();
      if (std::chrono::steady_clock::now() < next_look) continue;
      next_look = std::chrono::steady_clock::now() + kLookPause;
      const int ended = rank_that_has_ended();
      // A rank that ended in good order did its part first, so `met()` is asked once more.
      if (ended >= 0 && !met()) {
        throw std::runtime_error("rank " + std::to_string(ended) + " has ended");
      }
    }
  }

  // Tells all ranks that wait, now or later, that this rank will not arrive.
  void abandon() { head().abandoned.store(1); }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kSinglesBytes = sizeof(double) * kMaxSingles;
  static constexpr std::uint32_t kVersion = 3;

  std::atomic<pid_t>& process(int rank) const {
    return reinterpret_cast<std::atomic<pid_t>*>(singles(size()))[rank];
  }
  // Returns -1 if there is none.
  int rank_that_has_ended() const {
    for (int rank = 0; rank < size(); ++rank) {
      const pid_t pid = process(rank).load(std::memory_order_relaxed);
      if (pid != 0 && process_has_ended(pid)) return rank;
    }
    return -1;
  }

  int rank_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace stretto::bench
