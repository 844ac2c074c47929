// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/base/status.h"
#include "stretto/base/view.h"

// CUDA's driver, in declarations of our own.
namespace stretto::cuda {

using StreamHandle = struct OpaqueStream*;  // A CUstream, which is a cudaStream_t.

// CUmemLocation says where memory is, CUmemAccessDesc who may use it and how, CUmemAllocationProp
// what memory to make.
struct MemoryLocation {
  int type = 1;  // A device,
  int number = 0;
};
struct MemoryAccess {
  MemoryLocation location;
  int flags = 3;  // Reads and writes.
};
struct MemoryProperties {
  int type = 1;          // Pinned: it stays there.
  int handle_types = 1;  // It is exported as a file descriptor.
  MemoryLocation location;
  void* of_windows = nullptr;
  unsigned char flags[8] = {};
};
static_assert(sizeof(MemoryProperties) == 32, "as in cuda.h");

// The functions that we use. Neither the driver nor its header is needed to build. The driver is
// there wherever a device is, and its streams and memory are those of the program's CUDA runtime,
// whichever that is.
struct DriverInterface {
  static constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY.
  static constexpr int kNoDevice = 100;   // CUDA_ERROR_NO_DEVICE.
  static constexpr int kNotReady = 600;   // CUDA_ERROR_NOT_READY.

  int (*init)(unsigned flags);
  int (*get_error_string)(int error, const char** text);
  int (*device_get_count)(int* count);
  int (*device_get)(int* device, int number);
  int (*device_get_uuid)(void* uuid, int device);  // 16 bytes.
  int (*primary_context_retain)(void** context, int device);
  int (*primary_context_release)(int device);
  int (*context_push)(void* context);
  int (*context_pop)(void** context);
  int (*stream_priority_range)(int* least, int* greatest);
  int (*stream_create)(StreamHandle* stream, unsigned flags, int priority);
  int (*stream_destroy)(StreamHandle stream);
  int (*stream_query)(StreamHandle stream);
  int (*stream_wait_event)(StreamHandle stream, void* event, unsigned flags);
  int (*stream_is_capturing)(StreamHandle stream, int* status);
  int (*stream_capture_info)(StreamHandle stream, int* status, std::uint64_t* id, void** graph,
                             const void** nodes, std::size_t* node_count);
  int (*exchange_capture_mode)(int* mode);
  int (*event_create)(void** event, unsigned flags);
  int (*event_record)(void* event, StreamHandle stream);
  int (*event_query)(void* event);
  int (*event_destroy)(void* event);
  int (*pointer_attribute)(void* value, int attribute, std::uint64_t pointer);
  int (*allocate)(std::uint64_t* pointer, std::size_t bytes);
  int (*free)(std::uint64_t pointer);
  int (*copy)(std::uint64_t to, std::uint64_t from, std::size_t bytes, StreamHandle stream);
  int (*context_synchronize)();
  int (*clear)(std::uint64_t pointer, unsigned char value, std::size_t bytes);
  int (*pin)(void* data, std::size_t bytes, unsigned flags);
  int (*unpin)(void* data);
  // Memory, ranges of addresses, and mappings of memory to addresses.
  int (*memory_granularity)(std::size_t* bytes, const MemoryProperties* like, int option);
  int (*memory_create)(std::uint64_t* handle, std::size_t bytes, const MemoryProperties* like,
                       unsigned long long flags);
  int (*memory_release)(std::uint64_t handle);
  int (*memory_export)(void* descriptor, std::uint64_t handle, int type, unsigned long long flags);
  int (*memory_import)(std::uint64_t* handle, void* descriptor, int type);
  int (*address_reserve)(std::uint64_t* pointer, std::size_t bytes, std::size_t alignment,
                         std::uint64_t wanted, unsigned long long flags);
  int (*address_free)(std::uint64_t pointer, std::size_t bytes);
  int (*memory_map)(std::uint64_t pointer, std::size_t bytes, std::size_t offset,
                    std::uint64_t handle, unsigned long long flags);
  int (*memory_unmap)(std::uint64_t pointer, std::size_t bytes);
  int (*memory_set_access)(std::uint64_t pointer, std::size_t bytes, const MemoryAccess* access,
                           std::size_t count);
};

inline std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// A device of this process, used through its driver. Any thread. Only functions that say so wait.
class Driver {
 public:
  // Opens device `number` of those that the process sees, counted from 0. Loads `path`, or the
  // system's libcuda.so.1 if that is empty. Fails with invalid_argument, saying which, if there is
  // no driver or no such device.
  static Result<std::shared_ptr<const Driver>> open(const std::string& path, int number);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // How many devices the process sees. Fails as open() does.
  static Result<int> count(const std::string& path);

  const DriverInterface& call() const { return call_; }
  int number() const { return number_; }
  // The driver's own number of the device, as in MemoryLocation.
  int device() const { return device_; }
  // The same in every process that has this device, whatever number it has there.
  Result<std::array<std::byte, 16>> id() const;
  // The status of call `what`: ok, or out_of_memory or system with the driver's text.
  Status status_of_call(const char* what, int error) const;
  // The number of the device whose memory `data` is in; -1: the host's. This device's number, too,
  // if the driver moves the memory between devices and the host by itself, or if the device has
  // failed.
  int device_of(const void* data) const;
  // A stream of high priority that does not wait for the default stream.
  Result<StreamHandle> make_stream() const;
  // An event, which records no times.
  Result<void*> make_event() const;
  // Whether a CUDA graph captures `stream`. For the default stream, fails with invalid_argument if
  // a graph captures a stream that implicitly waits for it: work that is begun on the default
  // stream then fails, and spoils the graph. Fails with system if the device has failed, as all
  // later calls do.
  Result<bool> is_captured(StreamHandle stream) const;
  // The number of the capture of `stream`, another one for each capture; 0 if there is none.
  Result<std::uint64_t> capture_of(StreamHandle stream) const;
  // Ok if no graph captures `stream`; else invalid_argument, too.
  Status check_no_capture(StreamHandle stream) const;
  // The same for the default stream and the calling thread's (StreamGuard), for calls that wait for
  // the whole device: they would spoil a graph.
  Status check_no_capture() const;
  // Waits for all that the process has begun on the device, before memory there is freed. False if
  // a CUDA graph is being captured: the memory may still be in use. True if the device has failed:
  // it runs nothing any more.
  bool wait_to_free() const;
  // Zeroes memory of this device, and waits for all that the process has begun there.
  Status clear(void* data, std::size_t bytes) const;

  // Makes the device the thread's current one while this lives. Calls of the thread then do not
  // spoil a CUDA graph that another thread is capturing, as they would in the capture mode that
  // threads begin with.
  class Current {
   public:
    explicit Current(const Driver& driver)
        : driver_(driver), is_pushed_(driver.call_.context_push(driver.context_) == 0) {
      (void)driver_.call_.exchange_capture_mode(&capture_mode_);
    }
    ~Current() {
      (void)driver_.call_.exchange_capture_mode(&capture_mode_);
      void* before = nullptr;
      // If the push failed, this would pop the program's own context.
      if (is_pushed_) (void)driver_.call_.context_pop(&before);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
    bool is_pushed_;
    int capture_mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then what the thread had before.
  };

 private:
  explicit Driver(const DriverInterface& call) : call_(call) {}
  static Result<std::shared_ptr<Driver>> load(const std::string& path);
  Result<int> count_devices() const;

  DriverInterface call_;
  int number_ = 0;
  bool sees_no_device_ = false;
  int device_ = 0;
  void* context_ = nullptr;  // The device's primary one, which CUDA's runtime uses as well.
};

// Page-locks memory of the host for all devices of the process, while the returned object lives.
Result<std::shared_ptr<void>> pin(std::shared_ptr<const Driver> driver, ByteSpan bytes);

}  // namespace stretto::cuda
