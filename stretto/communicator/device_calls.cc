// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/device_calls.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/call_back.h"
#include "stretto/base/stream_guard.h"
#include "stretto/communicator/arguments.h"

namespace stretto::communicator {
namespace {

// Whether a rank may have no bytes in a call in which others have some.
bool may_be_empty(const CollectiveCall& call) {
  const Collective collective = call.operation.collective;
  return call.shares && (collective == Collective::gather || collective == Collective::scatter ||
                         collective == Collective::all_to_all);
}

// The kinds of memory in which a call's buffers lie. Empty buffers count only if all are empty: by
// where they begin.
struct Kinds {
  bool host = false;
  bool device = false;
  bool registered = false;  // Device memory that devices.is_registered().
  bool unregistered = false;
  bool misaligned = false;  // Device memory not aligned to elements.
  int elsewhere = -1;       // The number of another device than this rank's.
};

// The two parts of a complex number are read separately.
bool is_aligned(const void* data, DType dtype) {
  const std::size_t alignment = size_bytes(dtype) / (is_complex(dtype) ? 2 : 1);
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

Kinds kinds_of(const CollectiveCall& call, const DeviceOperations& devices) {
  Kinds kinds;
  bool begins_on_device = false;
  const auto look = [&](const void* data, std::size_t bytes) {
    if (bytes == 0) {
      begins_on_device = begins_on_device ||
                         (data != nullptr && may_be_empty(call) && devices.device_of(data) >= 0);
      return;
    }
    const int device = devices.device_of(data);
    (device >= 0 ? kinds.device : kinds.host) = true;
    if (device < 0) return;
    if (device != devices.device()) kinds.elsewhere = device;
    (devices.is_registered(data) ? kinds.registered : kinds.unregistered) = true;
    if (!is_aligned(data, call.operation.dtype)) kinds.misaligned = true;
  };
  look(call.input.data(), call.input.size());
  look(call.output.data(), call.output.size());
  static const BufferParts kWhole;
  const BufferParts& parts = call.packing ? call.packing->parts : kWhole;
  look(parts.source.data, parts.source.bytes());
  for (const ConstView& view : parts.more) look(view.data, view.bytes());
  for (const View& view : parts.targets) look(view.data, view.bytes());
  kinds.device = kinds.device || (begins_on_device && !kinds.host);
  return kinds;
}

// Whether a library runs the call wherever this rank's buffers lie, as they may be empty.
bool is_on_either(const CollectiveCall& call, const DeviceOperations& devices) {
  return devices.takes_host_memory() && may_be_empty(call);
}

// Not if ranks may have empty shares, as they cannot see where those of others lie; and not if
// inputs are copied first, as the copy lies in other memory.
bool can_be_registered(const CollectiveCall& call, const DeviceOperations& devices) {
  const bool is_copied = call.operation.collective == Collective::all_to_all && call.packing &&
                         call.packing->parts.has_sources();
  return !is_on_either(call, devices) && !is_copied;
}

// The stream behind which the calling thread's operations begin.
struct CallerStream {
  void* handle = nullptr;
  bool is_captured = false;  // By a CUDA graph.
};

void check_call(const CollectiveCall& call, const Kinds& kinds, const DeviceCaller& caller,
                const CallerStream& stream) {
  const Caller who{.rank = caller.rank, .operation = name(call.operation.collective)};
  check(who, caller.algorithm.empty(),
        "the buffers lie in memory of a device, where no algorithm can be named");
  check(who, !(kinds.host && kinds.device) || is_on_either(call, caller.devices),
        "some buffers lie in memory of a device and some in memory of the host");
  if (kinds.elsewhere >= 0) {
    refuse(who, fmt::format("a buffer lies in memory of device {0}, and {1} works on device {2} of "
                            "this process; allocate it there, or start this rank with "
                            "STRETTO_DEVICE={0}",
                            kinds.elsewhere, caller.devices.name(), caller.devices.device()));
  }
  check(who, !kinds.misaligned,
        "a buffer in memory of a device is not aligned to its elements, which kernels cannot read "
        "there; let it begin at a multiple of their size");
  check(who, !(kinds.host && stream.is_captured),
        "a CUDA graph is being captured, and some buffers lie in memory of the host");
  check(who, !(kinds.registered && kinds.unregistered),
        "some buffers lie in memory that allocate() has made and some in other memory of the "
        "device: all of them have to, on all ranks, or none");
  check(who, !kinds.registered || can_be_registered(call, caller.devices),
        "memory that allocate() has made is neither for unequal shares nor for all_to_all in place "
        "or on lists; use other memory of the device");
  static const BufferParts kWhole;
  const std::string_view why =
      caller.devices.refusal(call.operation, call.packing ? call.packing->parts : kWhole);
  if (!why.empty()) refuse(who, fmt::format("{} {}", caller.devices.name(), why));
}

// The device's result; throws if it is a failure.
template <class T>
T of_device(const Result<T>& said, const CollectiveCall& call, const DeviceCaller& caller) {
  if (said.ok()) return said.value();
  const auto what = name(call.operation.collective);
  said.status().with_context(fmt::format("rank {}: {}", caller.job_rank.value(), what)).or_throw();
  return {};
}

// The parts as one buffer, if each begins where the one before it ends.
template <class AnyView>
std::optional<AnyView> as_one(const std::vector<AnyView>& parts) {
  AnyView whole;
  for (const AnyView& part : parts) {
    if (part.count == 0) continue;
    if (whole.count == 0) {
      whole = part;
    } else if (part.data == whole.data + whole.bytes() && part.dtype == whole.dtype) {
      whole.count += part.count;
    } else {
      return std::nullopt;
    }
  }
  return whole;
}

// Whether schedules read every input before they overwrite it: buffers that do not overlap, or are
// in place.
bool are_apart_or_in_place(Collective collective, ConstByteSpan input, ConstByteSpan output) {
  const bool is_apart =
      input.data() + input.size() <= output.data() || output.data() + output.size() <= input.data();
  const bool are_same = input.data() == output.data() && input.size() == output.size();
  return is_apart || (are_same && collective != Collective::all_to_all);
}

// Turns a list of adjacent buffers into one buffer, which needs no packing.
void join_lists(CollectiveCall& call) {
  if (!call.packing || call.packing->parts.factor != 1) return;
  const BufferParts& parts = call.packing->parts;
  std::vector<ConstView> sources{parts.source};
  sources.insert(sources.end(), parts.more.begin(), parts.more.end());
  const auto source = as_one(sources);
  const auto target = as_one(parts.targets);
  if (!source || !target) return;
  const ConstByteSpan input = source->count > 0 ? source->span() : call.input;
  const ByteSpan output = target->count > 0 ? target->span() : call.output;
  if (!are_apart_or_in_place(call.operation.collective, input, output)) return;
  call.input = input;
  call.output = output;
  call.packing.reset();
}

void take_to_device(CollectiveCall& call, const Kinds& kinds, const CallerStream& stream) {
  call.operation.algorithm = kinds.registered ? kRegisteredDeviceAlgorithm : kDeviceAlgorithm;
  if (stream.is_captured) {
    call.operation.algorithm =
        kinds.registered ? kCapturedRegisteredDeviceAlgorithm : kCapturedDeviceAlgorithm;
  }
  if (!call.packing) call.packing.emplace();
  call.packing->kind = transport::MemoryKind::device;
}

// Calls that a CUDA graph has captured. Nothing is left to do for the host.
class CapturedOperation final : public group::Operation {
 public:
  CapturedOperation(const OperationInfo& info, std::vector<std::shared_ptr<DeviceEnd>> ends)
      : info_(info), ends_(std::move(ends)) {}

  bool poll() override { return true; }
  Status wait(Deadline) override { return wait_on_device(); }
  Status wait_on_device() override {
    for (const auto& end : ends_) {
      const Status status = end->let_wait(StreamGuard::current());
      if (status.ok()) continue;
      if (is_waited_for_) return {};  // The completed graph has the wait.
      return status.with_context("no stream can wait for what a graph captured");
    }
    is_waited_for_ = true;
    return {};
  }
  void end() override {
    if (!is_waited_for_) (void)wait_on_device();
  }
  bool is_captured() const override { return true; }
  void then(Continuation continuation) override { call_back(continuation, Status()); }
  void abandon() override {}
  OperationInfo info() const override { return info_; }

 private:
  const OperationInfo info_;
  const std::vector<std::shared_ptr<DeviceEnd>> ends_;
  std::atomic<bool> is_waited_for_ = false;
};

}  // namespace

std::vector<std::shared_ptr<DeviceEnd>> go_by_memory(std::span<CollectiveCall> calls,
                                                     const DeviceCaller& caller) {
  DeviceOperations& devices = caller.devices;
  std::optional<CallerStream> stream;  // Looked up only if a call is on a device.
  for (CollectiveCall& call : calls) {
    if (call.operation.layout == kSetUpLayout) continue;
    const Kinds kinds = kinds_of(call, devices);
    if (!kinds.device && !(is_on_either(call, devices) && caller.algorithm.empty())) continue;
    if (!stream) {
      stream = {.handle = StreamGuard::current()};
      stream->is_captured = of_device(devices.is_captured(stream->handle), call, caller);
    }
    if (caller.packs_parts) join_lists(call);
    check_call(call, kinds, caller, *stream);
    take_to_device(call, kinds, *stream);
  }
  std::vector<std::shared_ptr<DeviceEnd>> captured;
  if (!stream) return captured;
  for (CollectiveCall& call : calls) {
    if (!call.packing || !call.packing->is_on_device()) continue;
    Mark mark = of_device(devices.mark(stream->handle, stream->is_captured), call, caller);
    call.packing->mark = group::HeldMark(devices, mark.number);
    if (mark.captured != nullptr) captured.push_back(std::move(mark.captured));
  }
  return captured;
}

Work make_captured(Work begun, Collective last, std::vector<std::shared_ptr<DeviceEnd>> ends) {
  const OperationInfo info{.collective = last, .number = begun.number()};
  begun.wait();
  return Work(std::make_shared<CapturedOperation>(info, std::move(ends)));
}

void refuse_device_memory(std::span<const Transfer> messages, const DeviceCaller& caller) {
  for (const Transfer& message : messages) {
    const ConstView view = message.sends ? message.outgoing : ConstView(message.incoming);
    if (view.bytes() == 0 || caller.devices.device_of(view.data) < 0) continue;
    refuse({.rank = caller.rank, .operation = message.sends ? "send" : "recv"},
           "messages are not moved to or from memory of a device; copy them to memory of the host, "
           "or use all_to_all");
  }
}

}  // namespace stretto::communicator
