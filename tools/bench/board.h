// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

// The standard library and POSIX only, so that drivers of other libraries include this and link
// nothing of stretto.
namespace stretto::bench {

// How many results one line may have, for each rank.
inline constexpr int kMaxSingles = 16384;
inline constexpr int kMaxBatches = 1024;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Cores that the affinity mask of this process allows, at least 1. Ask before pinning.
inline int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// What a driver is asked to measure. Sizes are as in nccl-tests: `bytes` is the larger side of the
// operation on one rank.
struct Request {
  std::string operation = {};  // "all_reduce", ...; "quit" ends the driver.
  std::string dtype = "f32";
  std::string op = "sum";
  std::string buffers = "private";  // "registered", "private", "huge" (private, in huge pages).
  std::string algorithm = {};       // Empty: what the library chooses.
  std::uint64_t bytes = 0;
  double seconds = 0.25;  // For the samples of the line.
  bool in_place = true;
  bool check = true;
  bool pin = true;
};

// What all ranks of a driver answer together; the same on each.
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

enum class Answer : std::uint32_t { ok = 0, wrong = 1, failed = 2, unsupported = 3 };

// The bytes of a board, little endian. A parent in another language maps the file and uses these
// offsets (all from the start of the file):
//
//     0  u64  magic "STRBOARD"          8  u32  layout version, 1      12  u32  ranks
//    16  u32  cores the ranks may use  20  u32  ranks that have joined 24  u32  1: a rank gave up
//    64  u32  barrier: arrivals       128  u32  barrier: generation
//   192  u64  flag of rank 0          256  u64  flag of rank 1
//   320  f64  what rank 0 decided, two slots
//   384  u64  sequence of the request: written last; the first request is 1
//   392  u64  bytes   400 f64 seconds   408 u32 in place   412 u32 check   416 u32 pin
//   424  char[32] operation   456 char[16] dtype   472 char[16] op   488 char[16] buffers
//   504  char[64] algorithm; all texts end with a zero byte
//   576  f64 p50_us   584 f64 p99_us   592 f64 max_us   600 f64 min_us   608 u32 samples
//   612  u32 batched  616 f64 latency_before_ns  624 f64 latency_after_ns     (by rank 0)
//  4096  a page for each rank r, at 4096 * (1 + r):
//     0  u64  sequence of the request it has answered: written last
//     8  u32  Answer   12 u32 singles   16 u32 batches
//    64  char[512] error or note   576 char[128] algorithm that ran
//  4096 * (1 + ranks)  for each rank: kMaxSingles f64, then kMaxBatches f64, in microseconds
struct BoardHead {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint32_t cores;
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> given_up;
  alignas(64) std::atomic<std::uint32_t> arrivals;
  alignas(64) std::atomic<std::uint32_t> generation;
  alignas(64) std::atomic<std::uint64_t> ping;
  alignas(64) std::atomic<std::uint64_t> pong;
  alignas(64) double decided[2];
  alignas(64) std::atomic<std::uint64_t> request;
  std::uint64_t bytes;
  double seconds;
  std::uint32_t in_place;
  std::uint32_t check;
  std::uint32_t pin;
  std::uint32_t unused;
  char operation[32];
  char dtype[16];
  char op[16];
  char buffers[16];
  char algorithm[64];
  alignas(64) double p50_us;
  double p99_us;
  double max_us;
  double min_us;
  std::uint32_t samples;
  std::uint32_t batched;
  double latency_before_ns;
  double latency_after_ns;
};
static_assert(offsetof(BoardHead, arrivals) == 64 && offsetof(BoardHead, pong) == 256);
static_assert(offsetof(BoardHead, request) == 384 && offsetof(BoardHead, operation) == 424);
static_assert(offsetof(BoardHead, algorithm) == 504 && offsetof(BoardHead, p50_us) == 576);
static_assert(offsetof(BoardHead, latency_after_ns) == 624);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct RankPage {
  std::atomic<std::uint64_t> answered;
  std::uint32_t answer;
  std::uint32_t singles;
  std::uint32_t batches;
  alignas(64) char text[512];
  char algorithm[128];
};
static_assert(offsetof(RankPage, text) == 64 && offsetof(RankPage, algorithm) == 576);

// A file that all ranks of one system under measurement map. It belongs to whoever made it; nothing
// here removes it. One thread of each rank uses it. Failures throw std::runtime_error: a rank that
// gives up makes the barriers of the others throw too, so that no rank spins for a dead one.
class Board {
 public:
  // Sizes and zeroes `fd` (a file, or a memfd that ranks reach by /proc/PID/fd/N) for `ranks`.
  static void format(int fd, int ranks, int cores) {
    const std::size_t bytes = size_bytes(ranks);
    if (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      throw std::runtime_error("board: cannot size the file: " + std::string(strerror(errno)));
    }
    BoardHead head_bytes{};
    head_bytes.version = 1;
    head_bytes.ranks = static_cast<std::uint32_t>(ranks);
    head_bytes.cores = static_cast<std::uint32_t>(cores);
    std::memcpy(&head_bytes.magic, "STRBOARD", 8);
    if (::pwrite(fd, &head_bytes, sizeof(head_bytes), 0) != sizeof(head_bytes)) {
      throw std::runtime_error("board: cannot write the file: " + std::string(strerror(errno)));
    }
  }
  static std::size_t size_bytes(int ranks) {
    const std::size_t results = sizeof(double) * (kMaxSingles + kMaxBatches);
    return kPage * static_cast<std::size_t>(1 + ranks) + results * static_cast<std::size_t>(ranks);
  }

  // As rank `rank`; kObserver for a parent that only writes requests.
  static constexpr int kObserver = -1;
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
    const bool right = std::memcmp(&head().magic, "STRBOARD", 8) == 0 && head().version == 1 &&
                       bytes_ == size_bytes(size()) && rank < size();
    if (!right) {
      ::munmap(memory_, bytes_);
      throw std::runtime_error("board " + path + ": not made for this rank");
    }
    if (rank >= 0) head().joined.fetch_add(1);
  }
  ~Board() { ::munmap(memory_, bytes_); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  BoardHead& head() const { return *reinterpret_cast<BoardHead*>(memory_); }
  RankPage& page(int rank) const {
    return *reinterpret_cast<RankPage*>(memory_ + kPage * static_cast<std::size_t>(1 + rank));
  }
  double* singles(int rank) const {
    auto* results =
        reinterpret_cast<double*>(memory_ + kPage * static_cast<std::size_t>(1 + size()));
    return results + static_cast<std::size_t>(rank) * (kMaxSingles + kMaxBatches);
  }
  double* batches(int rank) const { return singles(rank) + kMaxSingles; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(head().ranks); }
  int cores() const { return static_cast<int>(head().cores); }
  bool oversubscribed() const { return size() > cores(); }

  // Until all ranks are here. Spins; yields early where ranks share cores, else after a while.
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

  // Spins until `met()`, with the patience of barrier().
  template <class Met>
  void wait_until(Met&& met) {
    const int patience = oversubscribed() ? 100 : 20000;
    for (int spins = 0; !met(); ++spins) {
      if (spins < patience) {
        relax();
        continue;
      }
      if (head().given_up.load(std::memory_order_relaxed) != 0) {
        throw std::runtime_error("another rank has given up");
      }
      ::sched_yield();
    }
  }

  // Tells all ranks that wait, now or later, that this one will not come.
  void give_up() { head().given_up.store(1); }

 private:
  static constexpr std::size_t kPage = 4096;

  int rank_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace stretto::bench
