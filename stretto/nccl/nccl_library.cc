// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/nccl_library.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/half.h"
#include "stretto/base/log.h"
#include "stretto/base/thread.h"

namespace stretto::nccl {
namespace {

// Delay of NCCL's failures, so that the group has time to hear who has died.
constexpr Duration kHearsay = std::chrono::seconds(1);
// How long the communicator may take to end: in order, and by abort.
constexpr Duration kEndWell = std::chrono::seconds(2);
constexpr Duration kGiveBackTime = std::chrono::seconds(10);

// A factor as NCCL reads it: a scalar of the type that is reduced.
union Scalar {
  Half f16;
  BFloat16 bf16;
  float f32;
  double f64;
};

Scalar scalar_of(double factor, Type type) {
  Scalar scalar{.f64 = factor};
  if (type == Type::f16) scalar.f16 = Half(static_cast<float>(factor));
  if (type == Type::bf16) scalar.bf16 = BFloat16(static_cast<float>(factor));
  if (type == Type::f32) scalar.f32 = static_cast<float>(factor);
  return scalar;
}

}  // namespace

Result<std::unique_ptr<NcclLibrary>> NcclLibrary::make(std::shared_ptr<const Nccl> nccl,
                                                       std::shared_ptr<const Driver> driver,
                                                       const Meeting& meeting) {
  std::unique_ptr<NcclLibrary> library(
      new NcclLibrary(std::move(nccl), std::move(driver), meeting.rank, meeting.size));
  STRETTO_ASSIGN_OR_RETURN(library->stream_, library->driver_->make_stream());
  STRETTO_ASSIGN_OR_RETURN(library->capture_stream_, library->driver_->make_stream());
  const Status status = library->set_up_communicator(meeting);
  if (!status.ok()) {
    library->abandon();
    return status;
  }
  log(LogLevel::info, "{} from {} runs collectives on device {}", library->nccl_->name,
      library->nccl_->file, library->driver_->number());
  return library;
}

Status NcclLibrary::set_up_communicator(const Meeting& meeting) {
  UniqueId id{};
  if (rank_ == 0) {
    const ResultCode made = nccl_->call.get_unique_id(&id);
    STRETTO_RETURN_IF_ERROR(nccl_->status_of_call("ncclGetUniqueId", made));
  }
  STRETTO_RETURN_IF_ERROR(meeting.share_id(id));
  shared_->name = fmt::format("stretto, {} ranks", size_);
  config_.comm_name = shared_->name.c_str();
  {
    const Driver::Current current(*driver_);
    const MutexLock held(shared_->mutex);
    const ResultCode begun =
        nccl_->call.comm_init_rank_config(&shared_->comm, size_, id, rank_, &config_);
    STRETTO_RETURN_IF_ERROR(nccl_->status_of_call("ncclCommInitRankConfig", begun, shared_->comm));
  }
  ResultCode result = kInProgress;
  STRETTO_RETURN_IF_ERROR(meeting.wait([&] {
    const MutexLock held(shared_->mutex);
    result = nccl_->state_of(shared_->comm);
    return result != kInProgress;
  }));
  const MutexLock held(shared_->mutex);
  return nccl_->status_of_call("ncclCommInitRankConfig", result, shared_->comm);
}

NcclLibrary::~NcclLibrary() {
  const Driver::Current current(*driver_);
  if (!abandoned_) end_comm(end_well() ? nccl_->call.comm_destroy : nccl_->call.comm_abort);
  if (ended_.wait_for(kGiveBackTime) != std::future_status::ready) {
    log(LogLevel::warning, "{} does not end: it is left what it uses on device {}", nccl_->name,
        driver_->number());
    ending_.detach();
    return;
  }
  if (ending_.joinable()) ending_.join();
  const DriverInterface& call = driver_->call();
  for (const Scratch& scratch : scratch_) (void)call.free(scratch.data);
  for (StreamHandle stream : {stream_, capture_stream_}) {
    if (stream != nullptr) (void)call.stream_destroy(stream);
  }
}

// Ends all operations and finalizes the communicator: a collective that has ended here may still
// have messages under way to other ranks. Returns whether that succeeded in time.
bool NcclLibrary::end_well() {
  const MutexLock held(shared_->mutex);
  const Deadline until = Deadline::after(kEndWell);
  const auto may_wait = [&] { return failure_.ok() && !until.passed(); };
  while (!running_.empty() && may_wait()) {
    move();
    while (!running_.empty() && find_end(running_.front().number)) continue;
    ::sched_yield();
  }
  shared_->is_ending = true;  // A finalized one takes no calls.
  ResultCode result = failure_.ok() ? nccl_->call.comm_finalize(shared_->comm) : kInProgress;
  while (result == kInProgress && may_wait()) {
    result = nccl_->state_of(shared_->comm);
    ::sched_yield();
  }
  return result == kSuccess;
}

// Runs `end` on a thread of its own, since it may wait: NCCL frees memory of the device, which
// waits for all kernels there, also those of communicators that are still to be aborted; it may
// wait for other ranks of the host to do the same, and for the end of graphs that hold its calls.
void NcclLibrary::end_comm(ResultCode (*end)(Comm)) {
  const auto told = std::make_shared<std::promise<void>>();
  ended_ = told->get_future();
  const auto act = [end, told, driver = driver_, shared = shared_, marks = marks_] {
    const Driver::Current current(*driver);
    MutexLock held(shared->mutex);
    Comm const comm = std::exchange(shared->comm, nullptr);
    shared->is_ending = true;
    held.unlock();
    if (comm != nullptr) (void)end(comm);
    held.lock();
    shared->is_ending = false;
    told->set_value();
  };
  Result<std::thread> started = start_thread("stretto-nccl", act);
  if (!started.ok()) return act();
  ending_ = std::move(*started);
}

LibraryFailure NcclLibrary::failure() const {
  const bool counts = !failure_.ok() && Clock::now() - failed_at_ >= kHearsay;
  // A Status keeps its text as a string, which ends with a zero.
  return counts ? LibraryFailure{failure_.code(), failure_.message().data()} : LibraryFailure();
}

bool NcclLibrary::can_run(const OperationDescriptor& operation) const {
  const bool moves = operation.collective != Collective::barrier &&
                     operation.collective != Collective::point_to_point;
  return moves && *nccl::refusal(operation, 1) == '\0';
}

Result<bool> NcclLibrary::is_captured(void* of_caller) {
  auto* const stream = static_cast<StreamHandle>(of_caller);
  Result<bool> captured = driver_->is_captured(stream);
  if (captured.status().code() == StatusCode::invalid_argument) {
    return Status(StatusCode::invalid_argument,
                  std::string(captured.status().message()) +
                      "; or name the stream that is captured, by a StreamGuard");
  }
  return captured;
}

Result<Mark> NcclLibrary::mark(void* of_caller, bool is_captured) {
  auto* const stream = static_cast<StreamHandle>(of_caller);
  std::shared_ptr<CapturedEnd> end;
  std::uint64_t begun = 0;  // The capture that has operations of this communicator already.
  if (is_captured) {
    STRETTO_ASSIGN_OR_RETURN(end, CapturedEnd::make(driver_, marks_, stream));
    STRETTO_ASSIGN_OR_RETURN(begun, driver_->capture_of(capture_stream_));
  }
  STRETTO_ASSIGN_OR_RETURN(const int number, marks_->add(stream));
  if (end != nullptr) {
    MutexLock held(mutex_);
    const auto is_other = [&](std::uint64_t capture) { return capture != end->capture(); };
    const auto waits_for_ranks = [&](const auto& each) { return is_other(each.second->capture()); };
    if ((begun != 0 && is_other(begun)) || std::ranges::any_of(captured_, waits_for_ranks)) {
      held.unlock();
      marks_->forget(number);
      return Status(StatusCode::invalid_argument,
                    "another CUDA graph is capturing operations of this communicator; end that "
                    "first");
    }
    captured_[number] = end;
  }
  return Mark{number, std::move(end)};
}

void NcclLibrary::forget(int mark) {
  {
    const MutexLock held(mutex_);
    captured_.erase(mark);  // Before another call gets its number.
  }
  marks_->forget(mark);
}

NcclLibrary::Running* NcclLibrary::find(int operation) {
  const auto found = std::ranges::find(running_, operation, &Running::number);
  return found == running_.end() ? nullptr : &*found;
}

// Null while results still have to be copied to memory of the host: has_ended() begins those
// copies.
std::shared_ptr<DeviceEnd> NcclLibrary::end_on_device(int operation) {
  const Running* const running = find(operation);
  if (running == nullptr || !failure_.ok()) return nullptr;
  const bool is_launched = running->phase == Running::Phase::copying ||
                           (running->phase == Running::Phase::running && running->after.empty());
  return is_launched ? running->end : nullptr;
}

void NcclLibrary::take_mark(int mark, Running& running) {
  running.mark = mark;
  const MutexLock held(mutex_);
  const auto captured = captured_.extract(mark);
  if (captured.empty()) return;
  running.end = captured.mapped();
  running.is_captured = has_captured_ = true;
}

int NcclLibrary::start(const LibraryCall& call) {
  const Driver::Current current(*driver_);
  const MutexLock held(shared_->mutex);
  Launch launch = make_launch(call, rank_, size_);
  Running& running = running_.emplace_back();
  running.number = next_number_;
  next_number_ = next_number_ == std::numeric_limits<int>::max() ? 0 : next_number_ + 1;
  running.launch = std::move(launch);
  stage(running);
  if (!failure_.ok()) return running.number;
  if (call.mark >= 0) take_mark(call.mark, running);
  make_end(running);
  move();
  return running.number;
}

// Stages messages in scratch if they lie in memory of the host, or are sent from where something is
// received. Messages are counted in bytes.
void NcclLibrary::stage(Running& running) {
  for (Step& step : running.launch.steps) {
    const bool sends = step.kind == Step::Kind::send;
    if (!sends && step.kind != Step::Kind::receive) continue;
    const bool is_on_host = device_of(sends ? step.from : step.to) < 0;
    if (!is_on_host && !(sends && running.launch.overwrites_sends)) continue;
    std::byte* const copy = take_scratch(running, step.count);
    if (copy == nullptr) return;
    if (sends) {
      running.before.push_back({std::exchange(step.from, copy), copy, step.count});
    } else {
      running.after.push_back({copy, std::exchange(step.to, copy), step.count});
    }
    if (is_on_host) running.needs_stream_alone = true;
  }
}

bool NcclLibrary::has_ended(int operation) {
  const Driver::Current current(*driver_);
  const MutexLock held(shared_->mutex);
  return find_end(operation);
}

bool NcclLibrary::find_end(int operation) {
  move();
  Running* const found = find(operation);
  if (found == nullptr || !failure_.ok()) return false;
  const bool is_under_way =
      found->phase == Running::Phase::running || found->phase == Running::Phase::copying;
  if (!is_under_way || !is_done(*found)) return false;
  if (found->phase == Running::Phase::running && !found->after.empty()) {
    found->phase = Running::Phase::copying;
    for (const Copy& copy : found->after) {
      const int result =
          driver_->call().copy(address_of(copy.to), address_of(copy.from), copy.bytes, stream_);
      if (result != 0) fail(driver_->status_of_call("cuMemcpyAsync", result));
    }
    record_end(*found);
    return false;
  }
  if (!found->is_captured) {
    for (const std::size_t scratch : found->scratch) scratch_[scratch].in_use = false;
  }
  running_.erase(std::ranges::find(running_, operation, &Running::number));
  return true;
}

// Begins what can be begun. While NCCL is still taking a call, it takes no other.
void NcclLibrary::move() {
  if (!failure_.ok() || abandoned_) return;
  const ResultCode now = nccl_->state_of(shared_->comm);
  if (now == kInProgress) return;
  if (!is_good("ncclCommGetAsyncError", now)) return;
  for (Running& running : running_) {
    if (running.phase == Running::Phase::launching) {
      running.phase = Running::Phase::running;
      record_end(running);
    }
    // A copy from or to memory of the host may block this thread, which holds the lock, until the
    // stream has done all its work; that may wait for a rank that has died. So such a launch gets
    // the stream to itself, when the program's own stream has passed its mark.
    if (running.phase == Running::Phase::queued) {
      if (running.needs_stream_alone && !can_have_stream_alone(running)) return;
      begin(running);
      if (running.phase == Running::Phase::launching || !failure_.ok()) return;
    }
    if (running.needs_stream_alone) return;
  }
}

bool NcclLibrary::can_have_stream_alone(const Running& running) const {
  return &running == &running_.front() && (!running.mark || marks_->has_passed(*running.mark));
}

void NcclLibrary::begin(Running& running) {
  StreamHandle stream = stream_of(running);
  if (running.mark) {
    const Status waits = marks_->let_wait(stream, *running.mark);
    if (!waits.ok()) return fail(waits);
  }
  for (const Copy& copy : running.before) {
    const int result =
        driver_->call().copy(address_of(copy.to), address_of(copy.from), copy.bytes, stream);
    if (result != 0) return fail(driver_->status_of_call("cuMemcpyAsync", result));
  }
  const ResultCode result = running.launch.steps.empty() ? kSuccess : begin_steps(running);
  if (!failure_.ok() || !is_good("ncclGroupEnd", result)) return;
  if (result == kInProgress) {
    running.phase = Running::Phase::launching;
    return;
  }
  running.phase = Running::Phase::running;
  record_end(running);
}

// As one group: NCCL takes all steps or none, and none waits for another.
ResultCode NcclLibrary::begin_steps(const Running& running) {
  const Launch& launch = running.launch;
  RedOp op = launch.op;
  if (launch.factor) {
    const Type type = launch.steps.front().type;
    Scalar scalar = scalar_of(*launch.factor, type);
    const ResultCode made = nccl_->call.red_op_create_pre_mul_sum(
        &op, &scalar, type, kScalarHostImmediate, shared_->comm);
    if (!is_good("ncclRedOpCreatePreMulSum", made)) return made;
  }
  if (!is_good("ncclGroupStart", nccl_->call.group_start())) return kSuccess;
  for (const Step& step : launch.steps) {
    if (!is_good("a collective", begin_step(step, op, stream_of(running)))) break;
  }
  const ResultCode ended = nccl_->call.group_end();
  if (launch.factor) (void)nccl_->call.red_op_destroy(op, shared_->comm);
  return ended;
}

ResultCode NcclLibrary::begin_step(const Step& step, RedOp op, StreamHandle stream) {
  const Interface& call = nccl_->call;
  Comm const comm = shared_->comm;
  switch (step.kind) {
    case Step::Kind::all_reduce:
      return call.all_reduce(step.from, step.to, step.count, step.type, op, comm, stream);
    case Step::Kind::reduce:
      return call.reduce(step.from, step.to, step.count, step.type, op, step.peer, comm, stream);
    case Step::Kind::reduce_scatter:
      return call.reduce_scatter(step.from, step.to, step.count, step.type, op, comm, stream);
    case Step::Kind::all_gather:
      return call.all_gather(step.from, step.to, step.count, step.type, comm, stream);
    case Step::Kind::broadcast:
      return call.broadcast(step.from, step.to, step.count, step.type, step.peer, comm, stream);
    case Step::Kind::send:
      return call.send(step.from, step.count, step.type, step.peer, comm, stream);
    case Step::Kind::receive:
      return call.receive(step.to, step.count, step.type, step.peer, comm, stream);
  }
  return kSuccess;
}

// Called before anything of the operation is on the device: after that, nothing may fail for lack
// of memory.
void NcclLibrary::make_end(Running& running) {
  if (running.end != nullptr) return;
  Result<cuda::Marks::Event> event = marks_->take_event();
  if (!event.ok()) return fail(event.status());
  running.end = std::make_shared<RecordedEnd>(driver_, marks_, *event);
}

void NcclLibrary::record_end(const Running& running) {
  const int result = driver_->call().event_record(running.end->event(), stream_of(running));
  if (result != 0) fail(driver_->status_of_call("cuEventRecord", result));
}

// A captured operation counts as done: it begins and ends whenever its graph runs.
bool NcclLibrary::is_done(const Running& running) {
  if (running.is_captured) return true;
  const int result = driver_->call().event_query(running.end->event());
  if (result != 0 && result != DriverInterface::kNotReady)
    fail(driver_->status_of_call("cuEventQuery", result));
  return result == 0;
}

// Takes the smallest block that fits.
std::byte* NcclLibrary::take_scratch(Running& running, std::size_t bytes) {
  const auto size_or_most = [&](const Scratch& one) {
    return one.in_use || one.bytes < bytes ? SIZE_MAX : one.bytes;
  };
  auto found = std::ranges::min_element(scratch_, {}, size_or_most);
  if (found == scratch_.end() || size_or_most(*found) == SIZE_MAX) {
    if (!make_scratch(bytes)) {
      fail(status_of(StatusCode::out_of_memory,
                     "the device has no {} bytes left for what has to be copied", bytes));
      return nullptr;
    }
    found = std::prev(scratch_.end());
  }
  found->in_use = true;
  running.scratch.push_back(static_cast<std::size_t>(found - scratch_.begin()));
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(found->data));
}

// Scratch is kept until the end, since freeing memory of a device may wait for all that runs there.
// So when sizes grow, each block is twice as long as the one before, if there is room: all blocks
// that are too short then take no more than the last.
bool NcclLibrary::make_scratch(std::size_t bytes) {
  std::size_t most = std::max<std::size_t>(bytes, 1);
  for (const Scratch& one : scratch_) most = one.in_use ? most : std::max(most, 2 * one.bytes);
  for (const std::size_t size : {most, bytes}) {
    Scratch made{.bytes = size};
    if (driver_->call().allocate(&made.data, size) != 0) continue;
    scratch_.push_back(made);
    return true;
  }
  return false;
}

// Ends NCCL's kernels, whichever rank they wait for.
void NcclLibrary::abandon() {
  abandoned_ = true;
  abandoned_at_ = Clock::now();
  end_comm(nccl_->call.comm_abort);
}

// The abort has to end before the stream is asked: until then NCCL may launch what it was still
// taking.
bool NcclLibrary::has_given_back() {
  const Driver::Current current(*driver_);
  // If graphs hold calls, the abort waits for their end, and only its kernels end within kEndWell.
  const bool is_aborted = ended_.wait_for(Duration::zero()) == std::future_status::ready ||
                          (has_captured_ && Clock::now() - abandoned_at_ >= kEndWell);
  if (is_aborted && driver_->call().stream_query(stream_) != DriverInterface::kNotReady)
    return true;
  if (Clock::now() - abandoned_at_ < kGiveBackTime) return false;
  log(LogLevel::warning, "{} has been aborted, but the device has not ended its work in {:g} s",
      nccl_->name, seconds(kGiveBackTime));
  return true;
}

void NcclLibrary::fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  failed_at_ = Clock::now();
}

bool NcclLibrary::is_good(const char* call, ResultCode result) {
  const Status status = nccl_->status_of_call(call, result, shared_->comm);
  if (!status.ok()) fail(status.with_context(nccl_->name + " says"));
  return status.ok();
}

}  // namespace stretto::nccl
