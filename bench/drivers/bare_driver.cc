// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/drivers/driver.h"
#include "stretto/kernel/wide_loop.h"
#include "tools/bench/board.h"
#include "tools/bench/copy_bound.h"

// No library, but plain loops that do what ranks of one host have to do, without checks, names or
// failures: a guide to which ratios are possible. Command line, besides that of every driver:
// --rank R --ranks N.
//
//   copy                 the bound for all libraries: each rank copies its input to its output, all
//                        at the same time, which moves as many bytes as every rank gets, and as
//                        much memory as an all_reduce must; by memcpy or, with the algorithm
//                        "past_cache", by non-temporal stores
//   barrier              each rank writes its own line and waits for the lines of all ranks
//   all_reduce
//     on its own memory  all ranks have mapped it: each rank sums its share of all buffers and
//                        writes the sums into all buffers
//     on private memory  the same, a piece at a time: a rank fetches it by process_vm_readv and
//                        writes it by process_vm_writev, one copy each
//   broadcast, all_gather, all_to_all
//                        each rank copies its output from where it lies: by memcpy if that is
//                        mapped, otherwise by process_vm_readv
//     of few bytes       a broadcast's root writes them after the lines, for the others to copy
//
// With the algorithm "staged", private memory is copied twice instead: into mapped memory and out
// of it, a piece at a time, in two slots by turns.
//
// An all_reduce must be in place; except for a broadcast, ranks must be able to divide the buffers.
namespace stretto::bench {
namespace {

constexpr int kMaxRanks = 64;
constexpr std::size_t kMaxBytes = 256 << 20;
constexpr std::size_t kBuffersOfRank = 2;  // An input and an output.
// For a broadcast of few bytes, after the lines.
constexpr std::size_t kFewBytes = 16 * 1024;
// Read at a time, so that it is still in the cache when it is summed.
constexpr std::size_t kPieceBytes = 256 * 1024;
constexpr std::size_t kStagedCount = 128 * 1024 / sizeof(float);

// The start of the memory that all ranks have mapped; the buffers of each rank follow it.
struct Shared {
  struct alignas(128) Line {
    std::atomic<std::uint64_t> met{0};
  };
  std::array<Line, kMaxRanks> lines;
  std::array<std::atomic<std::int32_t>, kMaxRanks> processes;
  std::array<std::atomic<float*>, kMaxRanks> buffers;
  std::array<std::atomic<bool>, kMaxRanks> refused;  // Cannot read some rank.
  // Used by turns: before the root writes one, it has met all ranks that have read it.
  alignas(128) std::array<std::array<std::byte, kFewBytes>, 2> few;

  static constexpr std::size_t kBytes = 1 << 16;
};
static_assert(sizeof(Shared) <= Shared::kBytes);

// Both arrays get the sum.
STRETTO_WIDE void add_both(float* a, float* b, std::size_t count) {
  STRETTO_LOOP_OF_VECTORS
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

STRETTO_WIDE void add(float* a, const float* b, std::size_t count) {
  STRETTO_LOOP_OF_VECTORS
  for (std::size_t i = 0; i < count; ++i) a[i] += b[i];
}

class Bare final : public Library {
 public:
  Bare(int rank, int size, const std::string& folder)
      : Library(rank, size), yields_(allowed_cores() < size) {
    if (size > kMaxRanks) throw std::runtime_error("at most 64 ranks");
    // Where only a process's ancestors may read its memory, this asks for an exception.
    (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    share_memory(folder + "/bare.memory");
    shared_->processes[static_cast<std::size_t>(rank)] = ::getpid();
  }

  std::string version() const override {
    return "loads, stores, process_vm_readv and process_vm_writev";
  }

  std::shared_ptr<float> allocate_registered(std::size_t count) override {
    if (count * sizeof(float) > kMaxBytes) return nullptr;
    std::shared_ptr<float> buffer = lend(0);
    if (buffer == nullptr) buffer = lend(1);
    if (buffer != nullptr) std::fill_n(buffer.get(), count, 0.F);
    return buffer;
  }

  std::function<void()> make_call(const Job& job) override {
    if (job.operation == "barrier") return [this] { meet(); };
    if (job.operation == "copy") return own_copy(job);
    if (job.operation == "broadcast" && job.count * sizeof(float) <= kFewBytes) {
      return [this, job] { broadcast_few(job); };
    }
    const bool divides = job.count % static_cast<std::size_t>(size_) == 0;
    if (!divides && job.operation != "broadcast") return {};
    const bool mapped = is_mapped(job.input) && is_mapped(job.output);
    if (job.algorithm == "staged") {
      // Mapped buffers are where it stages, so none may be in use.
      if (mapped || (job.operation == "all_reduce" && job.input != job.output)) return {};
      return staged_call(job);
    }
    if (!mapped && !can_read_private(job)) return {};
    if (job.operation == "all_reduce" && job.input == job.output) {
      if (mapped) return [this, job] { reduce_mapped(job.share); };
      piece_.resize(std::min(job.share, kPieceBytes / sizeof(float)));
      return [this, job] { reduce_private(job); };
    }
    return copying_call(job, mapped);
  }

 private:
  static std::function<void()> own_copy(const Job& job) {
    auto* const to = reinterpret_cast<std::byte*>(job.output);
    const auto* const from = reinterpret_cast<const std::byte*>(job.input);
    const std::size_t bytes = job.count * sizeof(float);
    if (job.algorithm == "past_cache") return [=] { copy_past_cache(to, from, bytes); };
    return [=] {
      std::memcpy(to, from, bytes);
      // Nobody reads the copy between two calls of a batch: without this the compiler could drop
      // the copy.
      asm volatile("" : : "r"(to) : "memory");
    };
  }

  // Rank 0 makes the memory and writes its path into `note`. No named file could stay behind.
  void share_memory(const std::string& note) {
    const std::size_t bytes =
        Shared::kBytes + static_cast<std::size_t>(size_) * kBuffersOfRank * kMaxBytes;
    int descriptor = -1;
    if (rank_ == 0) {
      descriptor = ::memfd_create("stretto_bench_bare", 0);
      if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
        throw std::runtime_error("there is no memory to share");
      }
      write_whole(note,
                  "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor));
    }
    for (int tries = 0; descriptor < 0 && tries < 10000; ++tries) {
      std::string path;
      if (std::ifstream(note) >> path) descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("rank 0 shares no memory");
    shared_ = static_cast<Shared*>(memory);
  }

  float* memory_of(int rank) const {
    auto* const begin = reinterpret_cast<std::byte*>(shared_) + Shared::kBytes;
    return reinterpret_cast<float*>(begin +
                                    static_cast<std::size_t>(rank) * kBuffersOfRank * kMaxBytes);
  }

  bool is_mapped(const float* buffer) const {
    return buffer >= memory_of(rank_) && buffer < memory_of(rank_ + 1);
  }

  // All ranks ask for theirs in the same order, so an operation's buffers lie at the same place on
  // each.
  std::shared_ptr<float> lend(std::size_t index) {
    if (lent_[index]) return nullptr;
    lent_[index] = true;
    return {memory_of(rank_) + index * kMaxBytes / sizeof(float),
            [this, index](float*) { lent_[index] = false; }};
  }

  void meet() {
    const std::uint64_t turn = ++met_;
    shared_->lines[static_cast<std::size_t>(rank_)].met.store(turn, std::memory_order_release);
    for (int i = 0; i < size_; ++i) {
      const auto& met = shared_->lines[static_cast<std::size_t>(i)].met;
      while (met.load(std::memory_order_acquire) < turn) {
        if (yields_) {
          ::sched_yield();
        } else {
          group::pause();
        }
      }
    }
  }

  void reduce_mapped(std::size_t share) {
    meet();
    if (size_ == 2) {
      add_both(of(0, share), of(1, share), share);
    } else {
      reduce_by_pieces(share);
    }
    meet();
  }

  void reduce_by_pieces(std::size_t share) {
    std::array<float, 4096> sum;
    for (std::size_t first = 0; first < share; first += sum.size()) {
      const std::size_t count = std::min(sum.size(), share - first);
      std::copy_n(of(0, share) + first, count, sum.data());
      for (int i = 1; i < size_; ++i) add(sum.data(), of(i, share) + first, count);
      for (int i = 0; i < size_; ++i) std::copy_n(sum.data(), count, of(i, share) + first);
    }
  }

  // This rank's share of the buffer of the rank that comes `distance` ranks after it.
  float* of(int distance, std::size_t share) const {
    return memory_of((rank_ + distance) % size_) + share * static_cast<std::size_t>(rank_);
  }

  void reduce_private(const Job& job) {
    meet();
    const std::size_t begin = job.share * static_cast<std::size_t>(rank_);
    for (std::size_t first = 0; first < job.share; first += piece_.size()) {
      const std::size_t count = std::min(piece_.size(), job.share - first);
      for (int i = 1; i < size_; ++i) {
        fetch((rank_ + i) % size_, begin + first, piece_.data(), count);
        add(job.output + begin + first, piece_.data(), count);
      }
      // All of it is still in this core's cache.
      for (int i = 1; i < size_; ++i) {
        store((rank_ + i) % size_, begin + first, job.output + begin + first, count);
      }
    }
    meet();
  }

  std::function<void()> copying_call(const Job& job, bool mapped) {
    const auto copy = [this, job, mapped](int rank, std::size_t begin, float* to,
                                          std::size_t count) {
      if (rank == rank_) {
        std::copy_n(job.input + begin, count, to);
      } else if (mapped) {
        std::copy_n(memory_of(rank) + (job.input - memory_of(rank_)) + begin, count, to);
      } else {
        fetch(rank, begin, to, count);
      }
    };
    if (job.operation == "broadcast") {
      return [this, job, copy] {
        meet();
        if (rank_ != 0) copy(0, 0, job.output, job.count);
        meet();
      };
    }
    const bool gathers = job.operation == "all_gather";
    if (!gathers && job.operation != "all_to_all") return {};
    const std::size_t begin = gathers ? 0 : job.share * static_cast<std::size_t>(rank_);
    return [this, job, copy, begin] {
      meet();
      for_each_rank(job, [&](int other, std::size_t share) {
        copy(other, begin, job.output + share, job.share);
      });
      meet();
    };
  }

  // The slot number `slot` of what `rank` stages at this turn.
  float* staged(int rank, int slot) const {
    const std::size_t slots = turn_ % 2 * static_cast<std::size_t>(size_);
    return memory_of(rank) + (slots + static_cast<std::size_t>(slot)) * kStagedCount;
  }

  std::function<void()> staged_call(const Job& job) {
    using Move = void (Bare::*)(const Job&, std::size_t, std::size_t);
    const Move move = job.operation == "all_reduce"   ? &Bare::reduce_staged
                      : job.operation == "all_gather" ? &Bare::gather_staged
                      : job.operation == "all_to_all" ? &Bare::exchange_staged
                      : job.operation == "broadcast"  ? &Bare::broadcast_staged
                                                      : nullptr;
    if (move == nullptr) return {};
    const std::size_t total = job.operation == "broadcast" ? job.count : job.share;
    return [this, job, move, total] {
      for (std::size_t first = 0; first < total; first += kStagedCount, ++turn_) {
        (this->*move)(job, first, std::min(kStagedCount, total - first));
      }
    };
  }

  void broadcast_staged(const Job& job, std::size_t first, std::size_t count) {
    if (rank_ == 0) std::copy_n(job.input + first, count, staged(0, 0));
    meet();
    if (rank_ != 0) std::copy_n(staged(0, 0), count, job.output + first);
  }

  void gather_staged(const Job& job, std::size_t first, std::size_t count) {
    std::copy_n(job.input + first, count, staged(rank_, 0));
    meet();
    for_each_rank(job, [&](int other, std::size_t share) {
      const float* const from = other == rank_ ? job.input + first : staged(other, 0);
      std::copy_n(from, count, job.output + share + first);
    });
  }

  void exchange_staged(const Job& job, std::size_t first, std::size_t count) {
    for_each_rank(job, [&](int other, std::size_t share) {
      float* const to = other == rank_ ? job.output + share + first : staged(rank_, other);
      std::copy_n(job.input + share + first, count, to);
    });
    meet();
    for_each_rank(job, [&](int other, std::size_t share) {
      if (other != rank_) std::copy_n(staged(other, rank_), count, job.output + share + first);
    });
  }

  void reduce_staged(const Job& job, std::size_t first, std::size_t count) {
    for_each_rank(job, [&](int other, std::size_t share) {
      if (other != rank_) std::copy_n(job.input + share + first, count, staged(rank_, other));
    });
    meet();
    float* const sum = job.output + job.share * static_cast<std::size_t>(rank_) + first;
    for_each_rank(job, [&](int other, std::size_t) {
      if (other != rank_) add(sum, staged(other, rank_), count);
    });
    std::copy_n(sum, count, staged(rank_, rank_));
    meet();
    for_each_rank(job, [&](int other, std::size_t share) {
      if (other != rank_) std::copy_n(staged(other, other), count, job.output + share + first);
    });
  }

  // Calls `use` for each rank, from this one on, with the place where that rank's share begins.
  template <class Use>
  void for_each_rank(const Job& job, const Use& use) const {
    for (int i = 0; i < size_; ++i) {
      const int other = (rank_ + i) % size_;
      use(other, static_cast<std::size_t>(other) * job.share);
    }
  }

  void broadcast_few(const Job& job) {
    auto* const few = reinterpret_cast<float*>(shared_->few[met_ % 2].data());
    if (rank_ == 0) std::copy_n(job.input, job.count, few);
    meet();
    if (rank_ != 0) std::copy_n(few, job.count, job.output);
  }

  // All ranks get the same answer.
  bool can_read_private(const Job& job) {
    shared_->buffers[static_cast<std::size_t>(rank_)] = job.input;
    shared_->refused[static_cast<std::size_t>(rank_)] = false;
    meet();
    float number = 0;
    for (int i = 1; i < size_; ++i) {
      if (!try_fetch((rank_ + i) % size_, 0, &number, 1)) {
        shared_->refused[static_cast<std::size_t>(rank_)] = true;
      }
    }
    meet();
    const auto& refused = shared_->refused;
    return std::none_of(refused.begin(), refused.begin() + size_,
                        [](const std::atomic<bool>& one) { return one.load(); });
  }

  void fetch(int rank, std::size_t begin, float* to, std::size_t count) {
    if (!try_fetch(rank, begin, to, count)) throw std::runtime_error("process_vm_readv has failed");
  }

  void store(int rank, std::size_t begin, float* from, std::size_t count) {
    if (!copies(::process_vm_writev, rank, begin, from, count)) {
      throw std::runtime_error("process_vm_writev has failed");
    }
  }

  bool try_fetch(int rank, std::size_t begin, float* to, std::size_t count) {
    return copies(::process_vm_readv, rank, begin, to, count);
  }

  // Copies between elements of the buffer of `rank` and this rank's memory; returns whether it
  // could.
  template <class Copy>
  bool copies(const Copy& copy, int rank, std::size_t begin, float* own, std::size_t count) {
    const auto i = static_cast<std::size_t>(rank);
    float* const theirs = shared_->buffers[i].load(std::memory_order_relaxed) + begin;
    const iovec local{own, count * sizeof(float)};
    const iovec remote{theirs, count * sizeof(float)};
    const auto copied = copy(shared_->processes[i], &local, 1, &remote, 1, 0);
    return copied == static_cast<ssize_t>(count * sizeof(float));
  }

  bool yields_;
  Shared* shared_ = nullptr;
  std::uint64_t met_ = 0;
  std::uint64_t turn_ = 0;  // Counts pieces that were staged.
  std::array<bool, kBuffersOfRank> lent_{};
  std::vector<float> piece_;
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  using stretto::bench::Bare;
  using stretto::bench::number_behind;
  return stretto::bench::drive_or_explain(
      [&] {
        return std::make_unique<Bare>(number_behind(argc, argv, "--rank"),
                                      number_behind(argc, argv, "--ranks"),
                                      stretto::bench::meeting_place_of(argc, argv).folder);
      },
      argc, argv);
}
