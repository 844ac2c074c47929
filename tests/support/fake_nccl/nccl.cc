// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The half of the double that is NCCL: see fake.h.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_nccl/calls.h"
#include "tests/support/fake_nccl/fake.h"

extern "C" {
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
}

namespace stretto::fake_nccl {
namespace {

using nccl::kInProgress;
using nccl::kSuccess;
using nccl::RedOp;
using nccl::UniqueId;
using Clock = std::chrono::steady_clock;

constexpr ResultCode kInvalidArgument = 4;
constexpr ResultCode kInvalidUsage = 5;
constexpr int kFirstMadeOp = 5;

std::map<std::string, std::shared_ptr<World>>& worlds() {
  static auto* const all = new std::map<std::string, std::shared_ptr<World>>;
  return *all;
}

// All communicators that have ever been made.
std::vector<std::unique_ptr<nccl::OpaqueComm>>& comms() {
  static auto* const all = new std::vector<std::unique_ptr<nccl::OpaqueComm>>;
  return *all;
}

}  // namespace
}  // namespace stretto::fake_nccl

namespace stretto::nccl {

struct OpaqueComm {
  std::shared_ptr<fake_nccl::World> world;
  int rank = 0;
  int size = 1;
  int device = 0;
  bool is_blocking = false;  // Calls return when they are done or are on the stream.
  bool is_aborted = false;
  bool is_finalized = false;
  ResultCode error = kSuccess;
  std::map<RedOp, double> factors;  // Factors of operations that were made.
  RedOp made = 5;
  // A group of calls that has returned but not reached the stream yet.
  std::vector<fake_nccl::Call> launching;
  StreamHandle launching_on = nullptr;
  fake_nccl::Clock::time_point launched_at;
  bool is_on_its_way = false;  // It is being enqueued, without the lock.
  int running = 0;             // Groups on the stream.
  int in_graphs = 0;
};

}  // namespace stretto::nccl

namespace stretto::fake_nccl {
namespace {

struct Group {
  int depth = 0;
  Comm comm = nullptr;
  StreamHandle stream = nullptr;
  std::vector<Call> calls;
};
thread_local Group group;

Bytes contribution(const Call& call, std::size_t begin) {
  const std::size_t width = bytes_of(call.type);
  const std::byte* const from = reach(call.from) + begin * width;
  Bytes bytes(from, from + call.count * width);
  if (call.op < kFirstMadeOp) return bytes;
  with_type(call.type, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < call.count; ++i) {
      write<T>(bytes.data() + i * width, call.factor * read<T>(bytes.data() + i * width));
    }
  });
  return bytes;
}

void post(Comm comm, int to, const Call& call, Bytes bytes) {
  const std::lock_guard held(shared().mutex);
  comm->world->messages[{comm->rank, to}].push_back({call.what(), std::move(bytes)});
  shared().changed.notify_all();
}

// Gives this rank's data to other ranks.
void give(Comm comm, const Call& call) {
  const std::size_t width = bytes_of(call.type);
  for (int r = 0; r < comm->size; ++r) {
    const auto to = static_cast<std::size_t>(r);
    if (call.kind == Kind::all_reduce || (call.kind == Kind::reduce && r == call.peer)) {
      post(comm, r, call, contribution(call, 0));
    } else if (call.kind == Kind::reduce_scatter) {
      post(comm, r, call, contribution(call, to * call.count));
    } else if (call.kind == Kind::all_gather || (call.kind == Kind::send && r == call.peer) ||
               (call.kind == Kind::broadcast && comm->rank == call.peer)) {
      const std::byte* const from = reach(call.from);
      post(comm, r, call, Bytes(from, from + call.count * width));
    }
  }
}

// Returns nothing if the communicator is aborted meanwhile.
std::optional<Bytes> take_from(Comm comm, int from, const Call& call) {
  std::unique_lock held(shared().mutex);
  auto& queue = comm->world->messages[{from, comm->rank}];
  shared().changed.wait(
      held, [&] { return comm->is_aborted || (!queue.empty() && !shared().control.stalls); });
  if (comm->is_aborted) return std::nullopt;
  Message message = std::move(queue.front());
  queue.pop_front();
  if (message.what != call.what()) {
    shared().misused("ranks have called " + message.what + " and " + call.what());
  }
  message.bytes.resize(call.count * bytes_of(call.type));
  return std::move(message.bytes);
}

bool reduce_all(Comm comm, const Call& call) {
  Bytes result;
  const std::size_t width = bytes_of(call.type);
  for (int r = 0; r < comm->size; ++r) {
    std::optional<Bytes> other = take_from(comm, r, call);
    if (!other) return false;
    if (r == 0) {
      result = std::move(*other);
      continue;
    }
    with_type(call.type, [&](auto zero) {
      using T = decltype(zero);
      for (std::size_t i = 0; i < call.count; ++i) {
        std::byte* const at = result.data() + i * width;
        write<T>(at, combine(call.op, read<T>(at), read<T>(other->data() + i * width)));
      }
    });
  }
  if (call.op == nccl::kAverage) {
    with_type(call.type, [&](auto zero) {
      using T = decltype(zero);
      for (std::size_t i = 0; i < call.count; ++i) {
        std::byte* const at = result.data() + i * width;
        write<T>(at, read<T>(at) / comm->size);
      }
    });
  }
  std::copy(result.begin(), result.end(), reach(call.to));
  return true;
}

// Takes this rank's data from other ranks. Returns false if the communicator is aborted meanwhile.
bool take(Comm comm, const Call& call) {
  const std::size_t bytes = call.count * bytes_of(call.type);
  const auto copy_from = [&](int from, std::size_t offset) {
    const std::optional<Bytes> got = take_from(comm, from, call);
    if (got) std::copy(got->begin(), got->end(), reach(call.to) + offset);
    return got.has_value();
  };
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      return reduce_all(comm, call);
    case Kind::reduce:
      return comm->rank != call.peer || reduce_all(comm, call);
    case Kind::all_gather:
      for (int r = 0; r < comm->size; ++r) {
        if (!copy_from(r, static_cast<std::size_t>(r) * bytes)) return false;
      }
      return true;
    case Kind::broadcast:
    case Kind::receive:
      return copy_from(call.peer, 0);
    default:
      return true;
  }
}

// Runs on the stream. All data is given before any is taken, as NCCL runs a group's calls at once.
void run(Comm comm, const std::vector<Call>& calls) {
  for (const Call& call : calls) give(comm, call);
  for (const Call& call : calls) {
    if (!take(comm, call)) break;
  }
  const std::lock_guard held(shared().mutex);
  --comm->running;
  shared().changed.notify_all();
}

void launch(Comm comm, const std::vector<Call>& calls) {
  const auto count = [comm] {
    const std::lock_guard held(shared().mutex);
    ++comm->running;
  };
  if (!is_captured(comm->launching_on)) {
    count();
    return enqueue(comm->launching_on, [=] { run(comm, calls); });
  }
  // A graph that holds the calls delays the end of the communicator.
  const auto hold = [comm](int change) {
    const std::lock_guard held(shared().mutex);
    comm->in_graphs += change;
    shared().changed.notify_all();
  };
  hold(1);
  enqueue(comm->launching_on, [=, held = std::shared_ptr<void>(comm, [hold](void*) { hold(-1); })] {
    count();
    run(comm, calls);
  });
}

// Returns whether the launched calls have reached the stream; enqueues them if it is time. Call
// with the lock held; it is released meanwhile.
bool reaches_stream(Comm comm) {
  if (comm->is_on_its_way) return false;
  if (comm->launching.empty()) return true;
  if (Clock::now() < comm->launched_at || shared().control.holds_launches) return false;
  const std::vector<Call> calls = std::exchange(comm->launching, {});
  comm->is_on_its_way = true;
  shared().mutex.unlock();
  launch(comm, calls);
  shared().mutex.lock();
  comm->is_on_its_way = false;
  shared().changed.notify_all();
  return true;
}

// Stands for NCCL's own thread, which launches without being asked.
class Launcher {
 public:
  // Call with the lock held.
  static void launch_late(Comm comm) {
    static auto* const launcher = new Launcher;
    launcher->due_.push_back(comm);
    launcher->arrived_.notify_one();
  }

 private:
  Launcher() {
    std::thread([this] { run(); }).detach();
  }
  void run() {
    std::unique_lock held(shared().mutex);
    while (true) {
      arrived_.wait(held, [&] { return !due_.empty(); });
      Comm const comm = due_.front();
      due_.pop_front();
      const auto at = comm->launched_at;
      StreamHandle const on = comm->launching_on;
      held.unlock();
      std::this_thread::sleep_until(at);
      const bool waits_to_be_asked = is_captured(on);
      // The double's context is the device's number plus one.
      cuCtxPushCurrent_v2(reinterpret_cast<void*>(static_cast<std::uintptr_t>(comm->device) + 1));
      held.lock();
      if (!waits_to_be_asked && !comm->is_aborted) (void)reaches_stream(comm);
      cuCtxPopCurrent_v2(nullptr);
    }
  }

  std::deque<Comm> due_;
  std::condition_variable arrived_;
};

// Returns the state that a caller sees. Call with the lock held.
ResultCode state_of(Comm comm) {
  const Control& control = shared().control;
  if (comm->is_aborted) shared().misused("a communicator was used after its abort");
  if (control.failing_rank == comm->rank) comm->error = control.error;
  if (comm->error != kSuccess) return comm->error;
  if (comm->world->arrived < comm->size || control.stalls_connecting) return kInProgress;
  if (!reaches_stream(comm)) return kInProgress;
  const bool is_held = comm->running > 0 || comm->in_graphs > 0;
  return comm->is_finalized && is_held ? kInProgress : kSuccess;
}

// For a blocking communicator: waits until the other ranks have come, or until its calls have run.
ResultCode wait_for(Comm comm, std::unique_lock<std::mutex>& held) {
  shared().changed.wait(held, [&] { return comm->is_aborted || state_of(comm) != kInProgress; });
  return state_of(comm);
}

// Launches the calls of the calling thread's group.
ResultCode launch_group(std::unique_lock<std::mutex>& held) {
  Comm const comm = std::exchange(group.comm, nullptr);
  if (comm == nullptr) return kSuccess;
  std::vector<Call> calls = std::exchange(group.calls, {});
  if (state_of(comm) == kInProgress) {
    shared().misused("a launch while another is under way");
    return kInvalidUsage;
  }
  for (const Call& sent : calls) {
    for (const Call& other : calls) {
      if (overlap(sent, other)) shared().misused("a message into what is being sent");
    }
  }
  ++shared().control.launches;
  comm->launching = std::move(calls);
  comm->launching_on = group.stream;
  comm->launched_at = Clock::now();
  if (comm->is_blocking) return wait_for(comm, held);
  comm->launched_at += shared().delay();
  Launcher::launch_late(comm);
  return kInProgress;
}

ResultCode add(Call call, Comm comm, StreamHandle stream) {
  std::unique_lock held(shared().mutex);
  const bool is_launched = group.depth == 0 && comm->is_blocking;
  if (group.depth == 0 && !is_launched) shared().misused("a collective outside of a group");
  if (current_device() != comm->device) {
    shared().misused("a collective on another device than its communicator's");
  }
  if ((call.from != nullptr && !is_device_memory(call.from)) ||
      (call.to != nullptr && !is_device_memory(call.to))) {
    shared().misused("a collective on memory of the host");
    return kInvalidArgument;
  }
  group.comm = comm;
  group.stream = stream;
  const auto is_registered = [&](const void* data) {
    return data == nullptr || stretto::fake_nccl::is_registered(comm, data);
  };
  call.is_registered = is_registered(call.from) && is_registered(call.to);
  if (call.op >= kFirstMadeOp) call.factor = comm->factors[call.op];
  group.calls.push_back(call);
  return is_launched ? launch_group(held) : kSuccess;
}

}  // namespace

bool is_finalized(Comm comm) { return comm->is_finalized; }

}  // namespace stretto::fake_nccl

using namespace stretto::fake_nccl;
using stretto::nccl::Config;
using stretto::nccl::kInProgress;
using stretto::nccl::kSuccess;
using stretto::nccl::RedOp;
using stretto::nccl::UniqueId;

extern "C" {

ResultCode ncclGetVersion(int* version) {
  const std::lock_guard held(shared().mutex);
  *version = shared().control.version;
  return kSuccess;
}
const char* ncclGetErrorString(ResultCode result) {
  return result == 6 ? "remote process exited or there was a network error" : "an error";
}
const char* ncclGetLastError(Comm) { return "said by the double"; }
ResultCode ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  const std::lock_guard held(shared().mutex);
  const int number = ++made;
  std::memcpy(id->bytes, &number, sizeof(number));
  return kSuccess;
}
ResultCode ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, void* bytes) {
  std::unique_lock held(shared().mutex);
  const Config& config = *static_cast<const Config*>(bytes);
  if (config.size_bytes != 72 || config.magic != 0xcafebeef || !has_context()) {
    return stretto::fake_nccl::kInvalidArgument;
  }
  auto& world = worlds()[std::string(id.bytes, sizeof(id.bytes))];
  if (world == nullptr) world = std::make_shared<World>();
  ++world->arrived;
  ++shared().control.connections;
  *comm = comms().emplace_back(std::make_unique<stretto::nccl::OpaqueComm>()).get();
  (*comm)->world = world;
  (*comm)->rank = rank;
  (*comm)->size = ranks;
  (*comm)->device = current_device();
  (*comm)->is_blocking = config.blocking == 1;
  shared().changed.notify_all();
  return (*comm)->is_blocking ? wait_for(*comm, held) : kInProgress;
}
ResultCode ncclCommGetAsyncError(Comm comm, ResultCode* state) {
  const std::lock_guard held(shared().mutex);
  *state = state_of(comm);
  return kSuccess;
}
ResultCode ncclCommFinalize(Comm comm) {
  std::unique_lock held(shared().mutex);
  comm->is_finalized = true;
  return comm->is_blocking ? wait_for(comm, held) : kInProgress;
}
ResultCode ncclCommDestroy(Comm comm) {
  const std::lock_guard held(shared().mutex);
  if (!comm->is_finalized || comm->running > 0) shared().misused("destroyed while it runs");
  forget_registrations(comm);
  return kSuccess;  // It is kept, so that later use is detected.
}
ResultCode ncclCommAbort(Comm comm) {
  std::unique_lock held(shared().mutex);
  comm->is_aborted = true;
  forget_registrations(comm);
  ++shared().control.aborts;
  if (comm->device == shared().control.full_device) shared().control.full_stream = nullptr;
  shared().changed.notify_all();
  // An abort frees device memory, which waits for all kernels of the device, whoever has launched
  // them.
  const auto runs = [&](const auto& c) {
    return c->device == comm->device && (c->running > 0 || c->is_on_its_way);
  };
  const auto is_idle = [&] { return std::ranges::none_of(comms(), runs); };
  if (!shared().changed.wait_for(held, std::chrono::seconds(5), is_idle)) {
    shared().misused("an abort waited in vain for kernels of another communicator");
  }
  shared().changed.wait(held, [&] { return comm->in_graphs == 0; });
  return kSuccess;
}
ResultCode ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, Type type, int residence, Comm comm) {
  const std::lock_guard held(shared().mutex);
  if (residence != 1) return stretto::fake_nccl::kInvalidArgument;
  *op = comm->made++;
  comm->factors[*op] = with_type(
      type, [&](auto zero) { return read<decltype(zero)>(static_cast<const std::byte*>(scalar)); });
  return kSuccess;
}
ResultCode ncclRedOpDestroy(RedOp, Comm) { return kSuccess; }
ResultCode ncclGroupStart() {
  ++group.depth;
  return kSuccess;
}
ResultCode ncclGroupEnd() {
  --group.depth;
  std::unique_lock held(shared().mutex);
  return launch_group(held);
}
ResultCode ncclAllReduce(const void* from, void* to, std::size_t count, Type type, RedOp op,
                         Comm comm, StreamHandle stream) {
  return add(
      {.kind = Kind::all_reduce, .from = from, .to = to, .count = count, .type = type, .op = op},
      comm, stream);
}
ResultCode ncclReduce(const void* from, void* to, std::size_t count, Type type, RedOp op, int root,
                      Comm comm, StreamHandle stream) {
  return add({.kind = Kind::reduce,
              .from = from,
              .to = to,
              .count = count,
              .type = type,
              .op = op,
              .peer = root},
             comm, stream);
}
ResultCode ncclReduceScatter(const void* from, void* to, std::size_t count, Type type, RedOp op,
                             Comm comm, StreamHandle stream) {
  return add({.kind = Kind::reduce_scatter,
              .from = from,
              .to = to,
              .count = count,
              .type = type,
              .op = op},
             comm, stream);
}
ResultCode ncclBroadcast(const void* from, void* to, std::size_t count, Type type, int root,
                         Comm comm, StreamHandle stream) {
  return add(
      {.kind = Kind::broadcast, .from = from, .to = to, .count = count, .type = type, .peer = root},
      comm, stream);
}
ResultCode ncclAllGather(const void* from, void* to, std::size_t count, Type type, Comm comm,
                         StreamHandle stream) {
  return add({.kind = Kind::all_gather, .from = from, .to = to, .count = count, .type = type}, comm,
             stream);
}
ResultCode ncclSend(const void* from, std::size_t count, Type type, int peer, Comm comm,
                    StreamHandle stream) {
  return add({.kind = Kind::send, .from = from, .count = count, .type = type, .peer = peer}, comm,
             stream);
}
ResultCode ncclRecv(void* to, std::size_t count, Type type, int peer, Comm comm,
                    StreamHandle stream) {
  return add({.kind = Kind::receive, .to = to, .count = count, .type = type, .peer = peer}, comm,
             stream);
}
}
