// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The plug-in: base/collective_library.h on an MPI library. Uses nothing else of stretto.

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/signals_blocked.h"
#include "stretto/transport/mpi/mpi_process.h"

namespace stretto::transport::mpi {
namespace {

// The type for reductions. MPI_DATATYPE_NULL: MPI has no such numbers, or reduces them differently
// from stretto.
MPI_Datatype number_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i8:
      return MPI_INT8_T;
    case DType::i16:
      return MPI_INT16_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::u64:
      return MPI_UINT64_T;
    case DType::c64:
      return MPI_C_FLOAT_COMPLEX;
    case DType::c128:
      return MPI_C_DOUBLE_COMPLEX;
    default:
      return MPI_DATATYPE_NULL;
  }
}

// MPI_OP_NULL likewise: MPI's minimum may lose a NaN, and its product of complex numbers is C's.
MPI_Op reduction(ReduceOp op, DType dtype) {
  const bool is_complex = dtype == DType::c64 || dtype == DType::c128;
  const bool is_float = dtype == DType::f32 || dtype == DType::f64;
  if (op == ReduceOp::sum) return MPI_SUM;
  if (op == ReduceOp::product && !is_complex) return MPI_PROD;
  if (is_complex || is_float) return MPI_OP_NULL;
  switch (op) {
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::bit_and:
      return MPI_BAND;
    case ReduceOp::bit_or:
      return MPI_BOR;
    case ReduceOp::bit_xor:
      return MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

// The type for data that is only moved: any of that size.
MPI_Datatype moved_type(DType dtype) {
  switch (size_bytes(dtype)) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    case 8:
      return MPI_UINT64_T;
    default:
      return MPI_C_DOUBLE_COMPLEX;
  }
}

// Counts and where they begin, as MPI wants them.
struct Layout {
  RankVector<int> counts;
  std::vector<int> begins;
  bool is_even = true;
  bool fits = true;

  void assign(const std::size_t* of_ranks, int ranks) {
    counts.clear();
    begins.clear();
    is_even = fits = true;
    std::size_t begin = 0;
    for (int r = 0; r < ranks && of_ranks != nullptr; ++r) {
      counts.push_back(static_cast<int>(of_ranks[r]));
      begins.push_back(static_cast<int>(begin));
      begin += of_ranks[r];
      is_even = is_even && of_ranks[r] == of_ranks[0];
    }
    fits = begin <= std::numeric_limits<int>::max();
  }
};

// Tags tell apart the groups that a process makes at the same time; any MPI has more than this.
constexpr std::size_t kTags = 1 << 14;

// A tag is a hash of its group, so two groups may have the same. The later one waits for its turn,
// as MPI might take one for the other. If threads of another rank make these two in another order,
// the deadline ends both. Never destroyed: threads may wait here when the process ends.
struct TagsInUse {
  std::mutex mutex;
  std::condition_variable freed;
  bool is_in_use[kTags] = {};

  static TagsInUse& of_process() {
    static TagsInUse& tags = *new TagsInUse;
    return tags;
  }
  void take(std::size_t tag) {
    std::unique_lock lock(mutex);
    freed.wait(lock, [&] { return !is_in_use[tag]; });
    is_in_use[tag] = true;
  }
  void give_back(std::size_t tag) {
    const std::lock_guard lock(mutex);
    is_in_use[tag] = false;
    freed.notify_all();
  }
};

// A communicator that is being made. The thread that makes it shares this, and may go on when
// nobody waits for it any more: MPI waits for all ranks of a group, maybe for ever. It does not
// hold mpi_mutex, since another rank may have to make another group first.
struct Making {
  TagsInUse& tags = TagsInUse::of_process();
  MPI_Group members = MPI_GROUP_NULL;
  std::size_t tag = 0;
  MPI_Comm comm = MPI_COMM_NULL;
  int error = MPI_SUCCESS;
  std::atomic<bool> is_given_up = false;
  std::atomic<bool> has_ended = false;

  void run() {
    tags.take(tag);
    if (!is_given_up) {
      error = MPI_Comm_create_group(MPI_COMM_WORLD, members, static_cast<int>(tag), &comm);
    }
    tags.give_back(tag);
    has_ended = true;
    --unended;  // Nothing here calls MPI any more.
  }
};

class MpiCollectives final : public CollectiveLibrary {
 public:
  // To be called with mpi_mutex held, like all that calls MPI.
  explicit MpiCollectives(const LibraryGroup& group)
      : rank_(group.rank), size_(group.size), name_(library_name()) {
    MPI_Group world = MPI_GROUP_NULL;
    check(MPI_Comm_group(MPI_COMM_WORLD, &world));
    check(MPI_Group_incl(world, group.size, group.members, &making_->members));
    if (!failure_.empty()) return;
    MPI_Group_free(&world);
    making_->tag = group.number % kTags;
    ++unended;
    try {
      const SignalsBlocked signals_blocked;
      thread_ = std::thread([making = making_] { making->run(); });
    } catch (const std::exception& cause) {
      --unended;
      failure_ =
          std::string("the thread that makes the group could not be started: ") + cause.what();
    }
  }

  ~MpiCollectives() override {
    if (thread_.joinable()) {  // MPI cannot be finalized before what the thread does has ended.
      making_->is_given_up = true;
      thread_.detach();
      return;
    }
    const std::lock_guard lock(mpi_mutex);
    int is_over = 0;
    MPI_Finalized(&is_over);
    // MPI may still read the lists of collectives that have not ended.
    if (is_left_) (void)new std::deque<Running>(std::move(running_));
    if (is_over == 0 && !is_left_ && comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

  const char* name() const override { return name_.c_str(); }
  LibraryFailure failure() const override {
    return {failure_.empty() ? StatusCode::ok : StatusCode::system, failure_.c_str()};
  }
  bool gives_buffers_back() const override { return false; }

  bool is_connected() override {
    if (!thread_.joinable()) return true;
    if (!making_->has_ended) return false;
    thread_.join();
    const std::lock_guard lock(mpi_mutex);
    check(making_->error);
    if (!failure_.empty()) return true;
    comm_ = making_->comm;
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Group_free(&making_->members);
    return true;
  }

  // A barrier is not handed on: it is no more than the meeting before any handing over.
  bool can_run(const OperationDescriptor& operation) const override {
    const Collective collective = operation.collective;
    if (collective == Collective::barrier || collective == Collective::point_to_point) return false;
    // In an all_to_all with unequal counts, each rank knows only its own.
    const bool is_counted = collective != Collective::all_to_all || operation.layout == 0;
    if (is_counted && operation.count > std::numeric_limits<int>::max()) return false;
    if (!reduces(collective)) return true;
    return number_type(operation.dtype) != MPI_DATATYPE_NULL &&
           reduction(operation.op, operation.dtype) != MPI_OP_NULL;
  }

  int start(const LibraryCall& call) override {
    const std::lock_guard lock(mpi_mutex);
    int number = 0;
    while (number < static_cast<int>(running_.size()) && at(number).is_running) ++number;
    if (number == static_cast<int>(running_.size())) running_.emplace_back();
    Running& running = at(number);
    running.is_running = true;
    running.counts.assign(call.counts, size_);
    running.received.assign(call.received, size_);
    if (running.counts.fits && running.received.fits) {
      check(begin(call, running));
    } else if (failure_.empty()) {
      failure_ =
          "MPI counts elements by int, and this rank exchanges more: name an algorithm of "
          "stretto's, such as pairwise";
    }
    return number;
  }

  bool has_ended(int operation) override {
    const std::lock_guard lock(mpi_mutex);
    int flag = 0;
    if (!failure_.empty()) return false;
    check(MPI_Test(&at(operation).request, &flag, MPI_STATUS_IGNORE));
    if (flag == 0 || !failure_.empty()) return false;
    at(operation).is_running = false;
    return true;
  }

  void abandon() override {
    const std::lock_guard lock(mpi_mutex);
    for (const Running& running : running_) is_left_ = is_left_ || running.is_running;
    if (is_left_) ++unended;
  }

 private:
  struct Running {
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_running = false;
    Layout counts;
    Layout received;
  };
  Running& at(int number) { return running_[static_cast<std::size_t>(number)]; }

  int begin(const LibraryCall& call, Running& running) {
    const OperationDescriptor& operation = call.operation;
    MPI_Request* const request = &running.request;
    const MPI_Datatype type =
        reduces(operation.collective) ? number_type(operation.dtype) : moved_type(operation.dtype);
    const MPI_Op op = reduction(operation.op, operation.dtype);
    const int count = static_cast<int>(operation.count);
    const int root = operation.root;
    const Layout& of = running.counts;
    switch (operation.collective) {
      case Collective::all_reduce:
        return MPI_Iallreduce(call.input, call.output, count, type, op, comm_, request);
      case Collective::reduce:
        return MPI_Ireduce(call.input, call.output, count, type, op, root, comm_, request);
      case Collective::reduce_scatter:
        if (of.is_even) {
          return MPI_Ireduce_scatter_block(call.input, call.output, of.counts[rank_], type, op,
                                           comm_, request);
        }
        return MPI_Ireduce_scatter(call.input, call.output, of.counts.data(), type, op, comm_,
                                   request);
      case Collective::broadcast:
        if (rank_ == root) {
          std::memcpy(call.output, call.input, operation.count * size_bytes(operation.dtype));
        }
        return MPI_Ibcast(call.output, count, type, root, comm_, request);
      default:
        return begin_shares(call, type, running);
    }
  }

  // Begins a collective whose data belongs to single ranks and is only moved.
  int begin_shares(const LibraryCall& call, MPI_Datatype type, Running& running) {
    MPI_Request* const request = &running.request;
    const int root = call.operation.root;
    const Layout& of = running.counts;
    const Layout& from = running.received;
    const int own = of.counts[rank_];
    switch (call.operation.collective) {
      case Collective::all_gather:
        if (of.is_even) {
          return MPI_Iallgather(call.input, own, type, call.output, own, type, comm_, request);
        }
        return MPI_Iallgatherv(call.input, own, type, call.output, of.counts.data(),
                               of.begins.data(), type, comm_, request);
      case Collective::gather:
        return MPI_Igatherv(call.input, own, type, call.output, of.counts.data(), of.begins.data(),
                            type, root, comm_, request);
      case Collective::scatter:
        return MPI_Iscatterv(call.input, of.counts.data(), of.begins.data(), type, call.output, own,
                             type, root, comm_, request);
      default:  // All ranks know whether it has counts of its own.
        if (call.operation.layout == 0 && of.is_even) {
          return MPI_Ialltoall(call.input, own, type, call.output, own, type, comm_, request);
        }
        return MPI_Ialltoallv(call.input, of.counts.data(), of.begins.data(), type, call.output,
                              from.counts.data(), from.begins.data(), type, comm_, request);
    }
  }

  void check(int error) {
    if (error != MPI_SUCCESS && failure_.empty()) failure_ = name_ + " says: " + describe(error);
  }

  int rank_;
  int size_;
  std::string name_;
  std::string failure_;
  std::shared_ptr<Making> making_ = std::make_shared<Making>();
  std::thread thread_;  // Joinable until is_connected().
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<Running> running_;  // A deque: its lists stay in place.
  bool is_left_ = false;
};

}  // namespace
}  // namespace stretto::transport::mpi

extern "C" __attribute__((visibility("default"))) stretto::CollectiveLibrary* STRETTO_MAKE_LIBRARY(
    const stretto::LibraryGroup& group, char* text, std::size_t text_bytes) {
  using namespace stretto::transport::mpi;
  std::unique_ptr<MpiCollectives> library;  // Destroyed after `lock` is released, since its end
                                            // takes the mutex.
  const std::lock_guard lock(mpi_mutex);
  std::string why = start(MPI_THREAD_MULTIPLE);
  if (why.empty()) why = check_place(group.job_rank, group.job_size);
  if (why.empty()) {
    library = std::make_unique<MpiCollectives>(group);
    why = library->failure().text;
  }
  if (why.empty()) return library.release();
  std::snprintf(text, text_bytes, "%s", why.c_str());
  return nullptr;
}
