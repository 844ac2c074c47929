// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Streams, events and graphs of the double's devices: see fake.h.

#include <algorithm>
#include <array>
#include <condition_variable>
#include <set>
#include <vector>

#include "tests/support/fake_nccl/fake.h"

namespace stretto::fake_nccl {
namespace {

constexpr int kSuccess = 0;
constexpr int kNotReady = 600;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureMerge = 902;
constexpr int kCaptureUnjoined = 904;
constexpr int kCaptureIsolation = 905;
constexpr int kCaptureImplicit = 906;
constexpr int kCapturedEvent = 907;
constexpr int kRelaxed = 2;
constexpr std::size_t kMostDevices = 8;

thread_local int capture_mode = 0;

// The work of streams while they were captured. Only the order that events and streams define holds
// when the graph runs.
struct Graph {
  struct Node {
    std::function<void()> work;
    std::set<std::size_t> after;
  };
  std::vector<Node> nodes;
  const std::uint64_t number = ++last_number();
  bool is_ended = false;
  bool is_spoiled = false;

  static std::uint64_t& last_number() {
    static std::uint64_t last = 0;
    return last;
  }
  int spoil(int error) {
    is_spoiled = true;
    return error;
  }
  bool all_lead_to(const std::set<std::size_t>& last) const {
    std::set<std::size_t> found = last;
    for (std::size_t i = nodes.size(); i-- > 0;) {
      if (!found.contains(i)) return false;
      found.insert(nodes[i].after.begin(), nodes[i].after.end());
    }
    return true;
  }
  void run() const {
    std::vector<bool> done(nodes.size());
    std::vector<std::size_t> ready;
    do {
      ready.clear();
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const bool may_run = std::ranges::all_of(nodes[i].after, [&](auto b) { return done[b]; });
        if (!done[i] && may_run) ready.push_back(i);
      }
      if (ready.empty()) return;
      std::unique_lock held(shared().mutex);
      const std::size_t next = ready[shared().random() % ready.size()];
      held.unlock();
      nodes[next].work();
      done[next] = true;
    } while (true);
  }
};

}  // namespace
}  // namespace stretto::fake_nccl

namespace stretto::cuda {

// A stream is a thread that does its work in order.
struct OpaqueStream {
  std::deque<std::function<void()>> work;
  std::uint64_t begun = 0;  // How much work was enqueued.
  std::uint64_t ended = 0;
  bool stops = false;
  std::condition_variable arrived;  // Tells the thread of new work.
  std::thread thread;
  // While the stream is captured: its graph, and the nodes that the next one follows.
  std::shared_ptr<fake_nccl::Graph> graph;
  std::set<std::size_t> last;

  void run() {
    auto& common = fake_nccl::shared();
    std::unique_lock held(common.mutex);
    while (true) {
      arrived.wait(held, [&] { return stops || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      // Most work is in time, or tests would do little but wait.
      const auto delay =
          common.random() % 8 == 0 ? common.delay() : std::chrono::microseconds::zero();
      held.unlock();
      std::this_thread::sleep_for(delay);
      next();
      held.lock();
      ++ended;
      common.changed.notify_all();
    }
  }
};

}  // namespace stretto::cuda

namespace stretto::fake_nccl {
namespace {

auto& all_streams() {
  static auto* const all = new std::vector<std::unique_ptr<cuda::OpaqueStream>>;
  return *all;
}

cuda::OpaqueStream* make_stream() {
  const std::lock_guard held(shared().mutex);
  auto* const stream = all_streams().emplace_back(std::make_unique<cuda::OpaqueStream>()).get();
  stream->thread = std::thread([stream] { stream->run(); });
  return stream;
}

// Each device has its own default stream.
cuda::OpaqueStream* stream_of(StreamHandle stream) {
  static auto* const defaults = [] {
    auto* const made = new std::array<cuda::OpaqueStream*, kMostDevices>;
    for (cuda::OpaqueStream*& each : *made) {
      each = make_stream();
      each->thread.detach();
    }
    return made;
  }();
  return stream == nullptr ? defaults->at(static_cast<std::size_t>(current_device())) : stream;
}

struct Event {
  cuda::OpaqueStream* stream = nullptr;
  std::uint64_t after = 0;
  // Set if the stream was captured. As on a device, an event does not keep the graph.
  bool is_captured = false;
  std::weak_ptr<Graph> graph = {};
  std::set<std::size_t> last = {};
  bool is_done() const { return stream == nullptr || stream->ended >= after; }
};

// Lets `stream` join the capture of `event`, if it is captured. Returns an error if their captures
// do not match, or 0. Call with the lock held.
int join_capture(cuda::OpaqueStream& stream, const Event& event) {
  const std::shared_ptr<Graph> graph = event.graph.lock();
  if (!event.is_captured) {
    return stream.graph == nullptr ? kSuccess : stream.graph->spoil(kCaptureIsolation);
  }
  if (stream.graph != nullptr && stream.graph != graph) return stream.graph->spoil(kCaptureMerge);
  if (graph == nullptr || graph->is_ended) return kCapturedEvent;
  stream.graph = graph;
  stream.last.insert(event.last.begin(), event.last.end());
  return kSuccess;
}

}  // namespace

int Shared::refusal_on(StreamHandle stream) {
  if (!control.captures || stream != nullptr) return kSuccess;
  control.has_spoiled_capture = true;
  return kCaptureImplicit;
}

int Shared::refusal_of_question() {
  if ((!control.captures && captures == 0) || capture_mode == kRelaxed) return kSuccess;
  control.has_spoiled_capture = true;
  return kCaptureUnsupported;
}

void enqueue(StreamHandle stream, std::function<void()> work) {
  cuda::OpaqueStream* const to = stream_of(stream);
  const std::lock_guard held(shared().mutex);
  if (to->graph != nullptr) {
    to->graph->nodes.push_back({std::move(work), to->last});
    to->last = {to->graph->nodes.size() - 1};
    return;
  }
  to->work.push_back(std::move(work));
  ++to->begun;
  to->arrived.notify_one();
}

bool is_captured(StreamHandle stream) {
  const std::lock_guard held(shared().mutex);
  return stream != nullptr && stream->graph != nullptr;
}

void finish(StreamHandle stream) {
  const cuda::OpaqueStream* const of = stream_of(stream);
  std::unique_lock held(shared().mutex);
  if (of->graph != nullptr) return;
  shared().changed.wait(held, [of, all = of->begun] { return of->ended >= all; });
}

}  // namespace stretto::fake_nccl

using namespace stretto::fake_nccl;

extern "C" {

void fake_nccl_enqueue(StreamHandle stream, void (*work)(void*), void* what, void (*free)(void*)) {
  enqueue(stream, [work, owned = std::shared_ptr<void>(what, free)] { work(owned.get()); });
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return has_context() ? kSuccess : kInvalidContext;
}
int cuStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int priority) {
  if (!has_context()) return kInvalidContext;
  if (flags != 1 || priority != -5) return kInvalidValue;  // Must be of high priority.
  *stream = make_stream();
  return kSuccess;
}
int cuStreamDestroy_v2(StreamHandle stream) {
  {
    const std::lock_guard held(shared().mutex);
    stream->stops = true;
    stream->arrived.notify_one();
  }
  stream->thread.join();
  return kSuccess;  // Events may still refer to it.
}
int cuStreamQuery(StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  const auto* const of = stream_of(stream);
  const std::lock_guard held(shared().mutex);
  if (of->graph != nullptr) return of->graph->spoil(kCaptureUnsupported);
  if (const int refusal = shared().refusal_of_question()) return refusal;
  return of->ended == of->begun ? shared().control.stream_error : kNotReady;
}
int cuStreamIsCapturing(StreamHandle stream, int* status) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  *status = 0;
  if (stream == nullptr && shared().control.captures) return kCaptureImplicit;
  if (stream != nullptr && stream->graph != nullptr) *status = stream->graph->is_spoiled ? 2 : 1;
  return shared().control.stream_error;
}
int cuStreamGetCaptureInfo_v2(StreamHandle stream, int* status, std::uint64_t* number, void**,
                              const void**, std::size_t*) {
  if (const int error = cuStreamIsCapturing(stream, status)) return error;
  const std::lock_guard held(shared().mutex);
  if (*status != 0) *number = stream->graph->number;
  return kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
int cuStreamBeginCapture_v2(StreamHandle stream, int) {
  const std::lock_guard held(shared().mutex);
  if (stream == nullptr || stream->graph != nullptr) return kCaptureUnsupported;
  stream->graph = std::make_shared<Graph>();
  ++shared().captures;
  return kSuccess;
}
int cuStreamEndCapture(StreamHandle stream, void** graph) {
  std::shared_ptr<Graph> ended;  // Its work may take the lock when it is destroyed.
  const std::lock_guard held(shared().mutex);
  *graph = nullptr;
  ended = stream->graph;
  if (ended == nullptr) return kCaptureUnsupported;
  const bool is_joined = ended->all_lead_to(stream->last);
  for (const auto& each : all_streams()) {
    if (each->graph != ended) continue;
    each->graph.reset();
    each->last.clear();
  }
  ended->is_ended = true;
  --shared().captures;
  if (ended->is_spoiled) return kCaptureInvalidated;
  if (!is_joined) return kCaptureUnjoined;
  *graph = new std::shared_ptr<Graph>(ended);
  return kSuccess;
}
// An executable graph is another handle of the same graph.
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = new std::shared_ptr<Graph>(*static_cast<std::shared_ptr<Graph>*>(graph));
  return kSuccess;
}
int cuGraphLaunch(void* executable, StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  enqueue(stream, [graph = *static_cast<std::shared_ptr<Graph>*>(executable)] { graph->run(); });
  return kSuccess;
}
int cuGraphExecDestroy(void* executable) {
  delete static_cast<std::shared_ptr<Graph>*>(executable);
  return kSuccess;
}
int cuGraphDestroy(void* graph) { return cuGraphExecDestroy(graph); }

int cuStreamWaitEvent(StreamHandle stream, void* event, unsigned) {
  if (!has_context()) return kInvalidContext;
  auto* const waiting = stream_of(stream);
  Event at;
  {
    std::unique_lock held(shared().mutex);
    if (const int refusal = shared().refusal_on(stream)) return refusal;
    if (stream != nullptr && stream == shared().control.full_stream) {
      ++shared().control.waits_for_room;
      const auto has_room = [&] { return stream != shared().control.full_stream; };
      if (!shared().changed.wait_for(held, std::chrono::seconds(5), has_room)) {
        shared().misused("room on a stream was waited for in vain");
      }
    }
    at = *static_cast<Event*>(event);
    if (stream == nullptr && at.is_captured) {
      const std::shared_ptr<Graph> graph = at.graph.lock();
      return graph == nullptr ? kCapturedEvent : graph->spoil(kCaptureImplicit);
    }
    if (const int refusal = join_capture(*waiting, at)) return refusal;
    if (at.is_captured) return kSuccess;
  }
  enqueue(stream, [at] {
    std::unique_lock held(shared().mutex);
    shared().changed.wait(held, [&] { return at.is_done(); });
  });
  return kSuccess;
}
int cuEventCreate(void** event, unsigned) {
  if (!has_context()) return kInvalidContext;
  *event = new Event;
  const std::lock_guard held(shared().mutex);
  ++shared().control.events;
  return kSuccess;
}
int cuEventRecord(void* event, StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  auto* const of = stream_of(stream);
  const std::lock_guard held(shared().mutex);
  if (const int refusal = shared().refusal_on(stream)) return refusal;
  if (of->graph != nullptr && of->graph->is_spoiled) return kCaptureInvalidated;
  *static_cast<Event*>(event) = {of, of->begun, of->graph != nullptr, of->graph, of->last};
  return kSuccess;
}
int cuEventQuery(void* event) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  if (const int refusal = shared().refusal_of_question()) return refusal;
  const auto& of = *static_cast<Event*>(event);
  if (of.is_captured) {
    shared().misused("an event of a graph was asked for");
    return kCapturedEvent;
  }
  return of.is_done() ? kSuccess : kNotReady;
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  const std::lock_guard held(shared().mutex);
  --shared().control.events;
  return kSuccess;
}
int cuCtxSynchronize() {
  if (!has_context()) return kInvalidContext;
  std::unique_lock held(shared().mutex);
  if (const int refusal = shared().refusal_on(nullptr)) return refusal;
  if (shared().captures > 0) {  // Whatever the mode is.
    shared().control.has_spoiled_capture = true;
    return kCaptureUnsupported;
  }
  shared().changed.wait(held, [] {
    return std::ranges::all_of(all_streams(), [](const auto& s) { return s->ended == s->begun; });
  });
  return kSuccess;
}
}
