// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Memory, streams and events of the device: see device.h.

#include "tests/support/fake_device/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include "stretto/base/environment.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/cuda_driver/symbol_table.h"
#include "stretto/torch_device/streams.h"
#include "tests/support/fake_nccl/fake.h"

namespace stretto::fake_device {
namespace {

using cuda::Driver;

constexpr int kDevices = 8;
constexpr int kNotReady = 600;

// Sleeps between two polls, so that others get the cores and the lock of the double.
void nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

// The double, and the streams that have been made on each of its devices.
struct Double {
  Double() {
    const std::string file = process_environment().get("STRETTO_CUDA_DRIVER").value_or("");
    for (int number = 0; number < kDevices; ++number) {
      drivers.at(static_cast<std::size_t>(number)) = Driver::open(file, number).or_throw();
    }
    cuda::SymbolTable::open({file})
        .or_throw()
        .find_all({{"fake_nccl_reach", &reach},
                   {"fake_nccl_enqueue", &enqueue},
                   {"fake_nccl_change", &change},
                   {"cuStreamBeginCapture_v2", &begin_capture},
                   {"cuStreamEndCapture", &end_capture},
                   {"cuGraphLaunch", &launch},
                   {"cuGraphDestroy", &destroy}})
        .or_throw();
  }

  const Driver& driver(c10::DeviceIndex index) const {
    return *drivers.at(static_cast<std::size_t>(index));
  }
  // Stream 0 is the default stream of the device.
  cuda::StreamHandle stream(const c10::Stream& of) {
    const std::lock_guard held(mutex);
    return of.id() == 0 ? nullptr : streams.at(static_cast<std::size_t>(of.id() - 1));
  }

  std::array<std::shared_ptr<const Driver>, kDevices> drivers;
  std::byte* (*reach)(const void*) = nullptr;
  void (*enqueue)(cuda::StreamHandle, void (*)(void*), void*, void (*)(void*)) = nullptr;
  void (*change)(void (*)(fake_nccl::Control&, void*), void*) = nullptr;
  int (*begin_capture)(cuda::StreamHandle, int mode) = nullptr;
  int (*end_capture)(cuda::StreamHandle, void** graph) = nullptr;
  int (*launch)(void* graph, cuda::StreamHandle) = nullptr;
  int (*destroy)(void* graph) = nullptr;
  std::mutex mutex;
  std::deque<cuda::StreamHandle> streams;
};

Double& the_double() {
  static auto* const loaded = new Double;  // It must outlive what tests leave behind.
  return *loaded;
}

void change(const std::function<void(fake_nccl::Control&)>& how) {
  the_double().change(
      [](fake_nccl::Control& control, void* what) {
        (*static_cast<const std::function<void(fake_nccl::Control&)>*>(what))(control);
      },
      const_cast<void*>(static_cast<const void*>(&how)));
}

thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<c10::StreamId, kDevices> streams_now{};

c10::Device with_index(c10::Device device) {
  return {kType, device.has_index() ? device.index() : device_now};
}

c10::Stream make_stream(c10::Device device) {
  Double& all = the_double();
  const c10::Device on = with_index(device);
  const Driver& driver = all.driver(on.index());
  const Driver::Current current(driver);
  constexpr unsigned kNonBlocking = 1;
  constexpr int kGreatest = -5;
  cuda::StreamHandle made = nullptr;
  driver
      .status_of_call("cuStreamCreateWithPriority",
                      driver.call().stream_create(&made, kNonBlocking, kGreatest))
      .or_throw();
  const std::lock_guard held(all.mutex);
  all.streams.push_back(made);
  return c10::Stream(c10::Stream::UNSAFE, on, static_cast<c10::StreamId>(all.streams.size()));
}

struct Block {
  c10::Stream stream;
  std::uint64_t data = 0;
  std::size_t bytes = 0;
  std::mutex mutex = {};
  std::vector<c10::Stream> others = {};  // Other streams that use the block.
};

// Overwrites freed memory, to imitate an allocator that gives it to the same stream again.
void poison(void* block) {
  const std::unique_ptr<Block> freed(static_cast<Block*>(block));
  for (const c10::Stream& other : freed->others) let_wait(freed->stream, other);
  auto* const first = the_double().reach(reinterpret_cast<const void*>(freed->data));
  enqueue(freed->stream,
          [first, bytes = freed->bytes] { std::fill_n(first, bytes, std::byte{0xEE}); });
}

void use_on(const c10::DataPtr& data, const c10::Stream& stream) {
  auto* const block = data.cast_context<Block>(&poison);
  if (block == nullptr) return;  // The memory was not made by this allocator.
  const std::lock_guard held(block->mutex);
  block->others.push_back(stream);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, device_now);
    if (bytes == 0) return {nullptr, nullptr, &poison_nothing, device};
    const Driver& driver = the_double().driver(device_now);
    const Driver::Current current(driver);
    std::unique_ptr<Block> block(new Block{.stream = current_stream(device), .bytes = bytes});
    driver.status_of_call("cuMemAlloc", driver.call().allocate(&block->data, bytes)).or_throw();
    auto* const data = reinterpret_cast<void*>(block->data);
    return {data, block.release(), &poison, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const auto* const first = reach(from);
    enqueue(current_stream(current_device()),
            [first, bytes, target = reach(to)] { std::copy_n(first, bytes, target); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    change(
        [](auto& control) { control.exportable_bytes += std::exchange(control.cached_bytes, 0); });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { use_on(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

 private:
  static void poison_nothing(void*) {}
};

// Like CUDA's guard, which makes a context on the device that was current before.
class OtherDevice {
 public:
  explicit OtherDevice(c10::DeviceIndex device) : before_(std::exchange(device_now, device)) {}
  OtherDevice(const OtherDevice&) = delete;
  OtherDevice& operator=(const OtherDevice&) = delete;
  ~OtherDevice() {
    device_now = before_;
    came_back_to() |= 1u << before_;
  }
  // One bit for each device.
  static std::atomic<unsigned>& came_back_to() {
    static std::atomic<unsigned> devices{0};
    return devices;
  }

 private:
  const c10::DeviceIndex before_;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return current_device(); }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) device_now = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, with_index(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return make_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return make_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device());
    streams_now.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return the_double().stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Driver& driver = the_double().driver(stream.device_index());
    const Driver::Current current(driver);
    return driver.call().stream_query(the_double().stream(stream)) != kNotReady;
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& stream) const override {
    const Driver& driver = the_double().driver(stream.device_index());
    return driver.is_captured(the_double().stream(stream)).or_throw();
  }
#endif
  void synchronizeStream(const c10::Stream& stream) const override {
    while (!queryStream(stream)) nap();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    use_on(data, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const OtherDevice there(stream.device_index());
    const Driver& driver = the_double().driver(stream.device_index());
    const Driver::Current current(driver);
    if (*event == nullptr) (void)driver.call().event_create(event, 0);
    (void)driver.call().event_record(*event, the_double().stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const OtherDevice there(stream.device_index());
    const Driver& driver = the_double().driver(stream.device_index());
    const Driver::Current current(driver);
    (void)driver.call().stream_wait_event(the_double().stream(stream), event, 0);
  }
  bool queryEvent(void* event) const override {
    const Driver& driver = the_double().driver(0);
    const Driver::Current current(driver);
    return event == nullptr || driver.call().event_query(event) != kNotReady;
  }
  void synchronizeEvent(void* event) const override {
    while (!queryEvent(event)) nap();
  }
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) return;
    const OtherDevice there(device);
    (void)the_double().driver(0).call().event_destroy(event);
  }
};

// Pinned memory, which is never freed, since streams may be reading it.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::lock_guard held(mutex_);
    const auto& block = blocks_.emplace_back(std::max(bytes, std::size_t{1}));
    auto* const data = const_cast<std::byte*>(block.data());
    return {data, data, [](void*) {}, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool has(const void* data) const {
    const std::lock_guard held(mutex_);
    return std::ranges::any_of(blocks_, [&](const auto& block) {
      return data >= block.data() && data < block.data() + block.size();
    });
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::vector<std::byte>> blocks_;
};

// What PyTorch, and above all autograd, asks of the accelerator.
class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return device_now; }
  void setCurrentDevice(c10::DeviceIndex index) const override { device_now = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(device_now, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_; }
  bool isPinnedPtr(const void* data) const override { return pinned_.has(data); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();  // Only the CPU draws random numbers.
  }

 private:
  mutable PinnedMemory pinned_;
};

const bool is_registered = [] {
  c10::register_privateuse1_backend("fake_device");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kType, new Allocator);
  c10::impl::registerDeviceGuard(kType, new Guard);
  return true;
}();

// The calling thread's current stream of a device. Makes that device the thread's current one.
struct CurrentStream {
  explicit CurrentStream(int number)
      : device(kType, static_cast<c10::DeviceIndex>(number)),
        current(the_double().driver(device.index())),
        handle(the_double().stream(current_stream(device))) {}

  const c10::Device device;
  const Driver::Current current;
  const cuda::StreamHandle handle;
};

}  // namespace

c10::Device current_device() { return {kType, device_now}; }

c10::Stream current_stream(c10::Device device) {
  const c10::Device on = with_index(device);
  return c10::Stream(c10::Stream::UNSAFE, on, streams_now.at(static_cast<std::size_t>(on.index())));
}

std::byte* reach(const void* data) { return the_double().reach(data); }

void enqueue(const c10::Stream& stream, std::function<void()> work) {
  const Driver::Current current(the_double().driver(stream.device_index()));
  using Function = std::function<void()>;
  the_double().enqueue(
      the_double().stream(stream), [](void* what) { (*static_cast<Function*>(what))(); },
      new Function(std::move(work)), [](void* what) { delete static_cast<Function*>(what); });
}

void synchronize(const c10::Stream& stream) { Guard().synchronizeStream(stream); }

}  // namespace stretto::fake_device

// Programs in Python load this library and call these functions.
extern "C" {

// Makes stream `number` of the device the calling thread's current one there, or a new stream if
// `number` is -1. Returns its number.
std::int64_t fake_device_use_stream(int device, std::int64_t number) {
  using namespace stretto::fake_device;
  const c10::Device on(kType, static_cast<c10::DeviceIndex>(device));
  const c10::Stream stream =
      number < 0 ? make_stream(on) : c10::Stream(c10::Stream::UNSAFE, on, number);
  (void)Guard().exchangeStream(stream);
  return stream.id();
}

void fake_device_use_device(int device) {
  stretto::fake_device::device_now = static_cast<c10::DeviceIndex>(device);
}

// Captures the work on the calling thread's current stream, until the capture ends. The end returns
// a graph to launch, or null.
void fake_device_begin_capture(int device) {
  using namespace stretto::fake_device;
  (void)the_double().begin_capture(CurrentStream(device).handle, 0);
}
void* fake_device_end_capture(int device) {
  using namespace stretto::fake_device;
  void* graph = nullptr;
  (void)the_double().end_capture(CurrentStream(device).handle, &graph);
  return graph;
}
void fake_device_launch(int device, void* graph) {
  using namespace stretto::fake_device;
  (void)the_double().launch(graph, CurrentStream(device).handle);
}
void fake_device_destroy(void* graph) { (void)stretto::fake_device::the_double().destroy(graph); }

// Sets how late streams may be from now on.
void fake_device_set_delay(int longest_us) {
  stretto::fake_device::change([=](auto& control) { control.longest_delay_us = longest_us; });
}

// Returns how often NCCL or a kernel of stretto was called.
int fake_device_launches() {
  int launches = 0;
  stretto::fake_device::change(
      [&](const auto& control) { launches = control.launches + control.kernels; });
  return launches;
}
// Returns how many bytes of memory exist that others can map.
std::size_t fake_device_exported_bytes() {
  std::size_t bytes = 0;
  stretto::fake_device::change([&](const auto& control) { bytes = control.exported_bytes; });
  return bytes;
}
// Returns the devices, one bit each, that the guard has made current again after another device
// since the last call.
unsigned fake_device_came_back_to() {
  return stretto::fake_device::OtherDevice::came_back_to().exchange(0);
}
// Returns the first forbidden call, or an empty text.
const char* fake_device_misuse() {
  static std::string misuse;
  stretto::fake_device::change([](const auto& control) { misuse = control.misuse; });
  return misuse.c_str();
}
}
