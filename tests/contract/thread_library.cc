// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/contract/thread_library.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>

#include "stretto/kernel/reduce.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/rank_list.h"

namespace stretto::testing {
namespace {

// Where the ranks of a group meet.
struct Hub {
  struct Round {
    std::vector<LibraryCall> calls;
    int arrived = 0;
    int read = 0;  // By how many ranks it was read.
  };
  std::mutex mutex;
  std::map<int, Round> rounds;
};

class ThreadLibrary final : public CollectiveLibrary {
 public:
  ThreadLibrary(std::shared_ptr<Hub> hub, std::shared_ptr<LibraryFacts> facts, int rank, int size,
                bool gives_buffers_back)
      : hub_(std::move(hub)),
        facts_(std::move(facts)),
        rank_(static_cast<std::size_t>(rank)),
        size_(static_cast<std::size_t>(size)),
        gives_buffers_back_(gives_buffers_back) {}

  const char* name() const override { return "threads"; }
  LibraryFailure failure() const override {
    return facts_->has_failed ? LibraryFailure{StatusCode::out_of_memory, "threads says: no memory"}
                              : LibraryFailure();
  }
  bool can_run(const OperationDescriptor& operation) const override {
    if (!reduces(operation.collective)) return true;
    return operation.op != ReduceOp::mean && accumulation_dtype(operation.dtype) == operation.dtype;
  }
  bool gives_buffers_back() const override { return gives_buffers_back_; }

  int start(const LibraryCall& call) override {
    ++facts_->started;
    facts_->last_output = call.output;
    const std::lock_guard lock(hub_->mutex);
    Hub::Round& round = hub_->rounds[next_];
    round.calls.resize(size_);
    round.calls[rank_] = call;
    ++round.arrived;
    has_read_[next_] = false;
    return next_++;
  }

  bool has_ended(int operation) override {
    if (facts_->is_stuck) return false;
    const std::lock_guard lock(hub_->mutex);
    Hub::Round& round = hub_->rounds[operation];
    if (std::cmp_less(round.arrived, size_)) return false;
    std::vector<std::byte>& result = results_[operation];
    if (!std::exchange(has_read_[operation], true)) {
      // The output is not written yet: it may be an input that others have not read.
      std::vector<LibraryCall> calls = round.calls;
      result.resize(output_bytes(calls[rank_]));
      calls[rank_].output = result.data();
      run(calls);
      ++round.read;
    }
    if (!std::cmp_equal(round.read, size_)) return false;
    if (!result.empty()) {
      std::memcpy(round.calls[rank_].output, result.data(), result.size());
    }
    return true;
  }

  void abandon() override { ++facts_->abandoned; }

 private:
  static std::size_t sum(const std::size_t* counts, std::size_t of) {
    return std::accumulate(counts, counts + of, std::size_t{0});
  }

  std::size_t output_bytes(const LibraryCall& own) const {
    const OperationDescriptor& operation = own.operation;
    std::size_t count = operation.count;
    switch (operation.collective) {
      case Collective::reduce_scatter:
      case Collective::scatter:
        count = own.counts[rank_];
        break;
      case Collective::reduce:
      case Collective::gather:
        if (std::cmp_not_equal(operation.root, rank_)) count = 0;
        break;
      case Collective::all_to_all:
        count = sum(own.received, size_);
        break;
      default:
        break;
    }
    return count * size_bytes(operation.dtype);
  }

  // Computes this rank's output.
  void run(const std::vector<LibraryCall>& calls) const {
    const LibraryCall& own = calls[rank_];
    const OperationDescriptor& operation = own.operation;
    const auto root = static_cast<std::size_t>(std::max(0, operation.root));
    const bool is_root = rank_ == root;
    const auto move = [&](std::size_t to, const LibraryCall& from, std::size_t at,
                          std::size_t count) {
      const std::size_t bytes = size_bytes(operation.dtype);
      if (count > 0) std::memcpy(own.output + to * bytes, from.input + at * bytes, count * bytes);
    };
    switch (operation.collective) {
      case Collective::all_reduce:
        return reduce(calls, 0, operation.count);
      case Collective::reduce:
        return is_root ? reduce(calls, 0, operation.count) : void();
      case Collective::reduce_scatter:
        return reduce(calls, sum(own.counts, rank_), own.counts[rank_]);
      case Collective::broadcast:
        return move(0, calls[root], 0, operation.count);
      case Collective::scatter:
        return move(0, calls[root], sum(own.counts, rank_), own.counts[rank_]);
      case Collective::all_gather:
      case Collective::gather:
        for (std::size_t r = 0; r < size_; ++r) {
          const bool takes = operation.collective == Collective::all_gather || is_root;
          if (takes) move(sum(own.counts, r), calls[r], 0, own.counts[r]);
        }
        return;
      case Collective::all_to_all:
        for (std::size_t r = 0; r < size_; ++r) {
          move(sum(own.received, r), calls[r], sum(calls[r].counts, rank_), own.received[r]);
        }
        return;
      default:
        return;
    }
  }

  void reduce(const std::vector<LibraryCall>& calls, std::size_t begin, std::size_t count) const {
    const OperationDescriptor& operation = calls[rank_].operation;
    std::vector<kernel::Input> inputs;
    for (const LibraryCall& call : calls) {
      inputs.push_back({call.input + begin * size_bytes(operation.dtype), operation.dtype});
    }
    void* const output = calls[rank_].output;
    kernel::reduce({.dtype = operation.dtype,
                    .output_dtype = operation.dtype,
                    .op = operation.op,
                    .count = count,
                    .inputs = inputs,
                    .outputs = {&output, 1}})
        .or_throw();
  }

  std::shared_ptr<Hub> hub_;
  std::shared_ptr<LibraryFacts> facts_;
  std::size_t rank_;
  std::size_t size_;
  bool gives_buffers_back_;
  int next_ = 0;
  std::map<int, bool> has_read_;
  std::map<int, std::vector<std::byte>> results_;
};

// A hub for each group of a job.
class Hubs {
 public:
  std::shared_ptr<Hub> of(std::uint64_t group) {
    const std::lock_guard lock(mutex_);
    auto& hub = hubs_[group];
    if (hub == nullptr) hub = std::make_shared<Hub>();
    return hub;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Hub>> hubs_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_library_ranks(
    int size, const std::shared_ptr<LibraryFacts>& facts, Duration timeout,
    bool gives_buffers_back) {
  auto endpoints = transport::loopback::make_world({.ranks = size}).or_throw();
  const auto hubs = std::make_shared<Hubs>();
  const auto make_library = [=](const execution::Membership& group,
                                const communicator::LibraryMeeting&) {
    if (group.rank.value() == facts->lacks_memory) throw std::bad_alloc();
    return Result<std::unique_ptr<CollectiveLibrary>>(std::make_unique<ThreadLibrary>(
        hubs->of(group.group), facts, group.rank.value(), static_cast<int>(group.members.size()),
        gives_buffers_back));
  };
  return make_ranks(endpoints, {}, {.timeout = timeout, .library = {.make = make_library}});
}

}  // namespace stretto::testing
