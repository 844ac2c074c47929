// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda_driver/driver.h"

#include <utility>

#include "stretto/base/stream_guard.h"
#include "stretto/cuda_driver/symbol_table.h"

namespace stretto::cuda {
namespace {

Status refuse_capture() {
  return {StatusCode::invalid_argument,
          "a CUDA graph is being captured, which cannot hold this; call this before the capture or "
          "after it"};
}

}  // namespace

Result<std::shared_ptr<Driver>> Driver::load(const std::string& path) {
  const std::string file = path.empty() ? "libcuda.so.1" : path;
  Result<SymbolTable> symbols = SymbolTable::open({file});
  if (!symbols.ok()) {
    return status_of(StatusCode::invalid_argument, "there is no driver of a GPU here: {}",
                     symbols.status().message());
  }
  DriverInterface call{};
  const Status found = symbols->find_all({
      {"cuInit", &call.init},
      {"cuGetErrorString", &call.get_error_string},
      {"cuDeviceGetCount", &call.device_get_count},
      {"cuDeviceGet", &call.device_get},
      {"cuDeviceGetUuid_v2", &call.device_get_uuid},
      {"cuDevicePrimaryCtxRetain", &call.primary_context_retain},
      {"cuDevicePrimaryCtxRelease_v2", &call.primary_context_release},
      {"cuCtxPushCurrent_v2", &call.context_push},
      {"cuCtxPopCurrent_v2", &call.context_pop},
      {"cuCtxGetStreamPriorityRange", &call.stream_priority_range},
      {"cuStreamCreateWithPriority", &call.stream_create},
      {"cuStreamDestroy_v2", &call.stream_destroy},
      {"cuStreamQuery", &call.stream_query},
      {"cuStreamWaitEvent", &call.stream_wait_event},
      {"cuStreamIsCapturing", &call.stream_is_capturing},
      {"cuStreamGetCaptureInfo_v2", &call.stream_capture_info},
      {"cuThreadExchangeStreamCaptureMode", &call.exchange_capture_mode},
      {"cuEventCreate", &call.event_create},
      {"cuEventRecord", &call.event_record},
      {"cuEventQuery", &call.event_query},
      {"cuEventDestroy_v2", &call.event_destroy},
      {"cuPointerGetAttribute", &call.pointer_attribute},
      {"cuMemAlloc_v2", &call.allocate},
      {"cuMemFree_v2", &call.free},
      {"cuMemcpyAsync", &call.copy},
      {"cuCtxSynchronize", &call.context_synchronize},
      {"cuMemsetD8_v2", &call.clear},
      {"cuMemHostRegister_v2", &call.pin},
      {"cuMemHostUnregister", &call.unpin},
      {"cuMemGetAllocationGranularity", &call.memory_granularity},
      {"cuMemCreate", &call.memory_create},
      {"cuMemRelease", &call.memory_release},
      {"cuMemExportToShareableHandle", &call.memory_export},
      {"cuMemImportFromShareableHandle", &call.memory_import},
      {"cuMemAddressReserve", &call.address_reserve},
      {"cuMemAddressFree", &call.address_free},
      {"cuMemMap", &call.memory_map},
      {"cuMemUnmap", &call.memory_unmap},
      {"cuMemSetAccess", &call.memory_set_access},
  });
  STRETTO_RETURN_IF_ERROR(found);
  std::shared_ptr<Driver> driver(new Driver(call));
  const int result = call.init(0);
  driver->sees_no_device_ = result == DriverInterface::kNoDevice;  // count() returns 0.
  if (!driver->sees_no_device_) STRETTO_RETURN_IF_ERROR(driver->status_of_call("cuInit", result));
  return driver;
}

Result<int> Driver::count_devices() const {
  int count = 0;
  if (sees_no_device_) return count;
  STRETTO_RETURN_IF_ERROR(status_of_call("cuDeviceGetCount", call_.device_get_count(&count)));
  return count;
}

Result<int> Driver::count(const std::string& path) {
  STRETTO_ASSIGN_OR_RETURN(const auto driver, load(path));
  return driver->count_devices();
}

Result<std::shared_ptr<const Driver>> Driver::open(const std::string& path, int number) {
  STRETTO_ASSIGN_OR_RETURN(auto driver, load(path));
  const DriverInterface& call = driver->call_;
  STRETTO_ASSIGN_OR_RETURN(const int count, driver->count_devices());
  if (number < 0 || number >= count) {
    return status_of(StatusCode::invalid_argument,
                     "device {} is not one of the {} that this process sees", number, count);
  }
  STRETTO_RETURN_IF_ERROR(
      driver->status_of_call("cuDeviceGet", call.device_get(&driver->device_, number)));
  STRETTO_RETURN_IF_ERROR(driver->status_of_call(
      "cuDevicePrimaryCtxRetain", call.primary_context_retain(&driver->context_, driver->device_)));
  driver->number_ = number;
  return std::shared_ptr<const Driver>(std::move(driver));
}

Driver::~Driver() {
  if (context_ != nullptr) (void)call_.primary_context_release(device_);
}

Result<std::array<std::byte, 16>> Driver::id() const {
  std::array<std::byte, 16> uuid{};
  STRETTO_RETURN_IF_ERROR(
      status_of_call("cuDeviceGetUuid", call_.device_get_uuid(uuid.data(), device_)));
  return uuid;
}

Status Driver::status_of_call(const char* what, int error) const {
  if (error == 0) return {};
  const char* text = nullptr;
  (void)call_.get_error_string(error, &text);
  return status_of(
      error == DriverInterface::kOutOfMemory ? StatusCode::out_of_memory : StatusCode::system,
      "{}: {} ({})", what, text == nullptr ? "an unknown error" : text, error);
}

int Driver::device_of(const void* data) const {
  constexpr int kMemoryType = 2;
  constexpr int kIsManaged = 8;
  constexpr int kOrdinal = 9;
  constexpr unsigned kOfDevice = 2;
  constexpr unsigned kUnified = 4;
  const Current current(*this);
  const auto ask = [&](int attribute, void* answer) {
    return call_.pointer_attribute(answer, attribute, address_of(data));
  };
  // For memory that it does not know, which is the host's, the driver returns an invalid value. A
  // device that has failed returns its failure instead. Then take the memory for this device's, so
  // that its user gets the failure.
  constexpr int kUnknown = 1;
  unsigned type = 0;
  const int error = ask(kMemoryType, &type);
  if (error != 0) return error == kUnknown ? -1 : number_;
  if (type != kOfDevice && type != kUnified) return -1;
  unsigned is_managed = 0;
  int device = number_;
  if (type == kUnified || ask(kIsManaged, &is_managed) != 0 || is_managed != 0) return number_;
  return ask(kOrdinal, &device) == 0 ? device : number_;
}

Result<StreamHandle> Driver::make_stream() const {
  constexpr unsigned kNonBlocking = 1;
  const Current current(*this);
  int least = 0;
  int greatest = 0;
  STRETTO_RETURN_IF_ERROR(status_of_call("cuCtxGetStreamPriorityRange",
                                         call_.stream_priority_range(&least, &greatest)));
  StreamHandle stream = nullptr;
  STRETTO_RETURN_IF_ERROR(status_of_call("cuStreamCreateWithPriority",
                                         call_.stream_create(&stream, kNonBlocking, greatest)));
  return stream;
}

Result<void*> Driver::make_event() const {
  constexpr unsigned kDisableTiming = 2;
  const Current current(*this);
  void* event = nullptr;
  STRETTO_RETURN_IF_ERROR(
      status_of_call("cuEventCreate", call_.event_create(&event, kDisableTiming)));
  return event;
}

// Asks in the only way that spoils no capture, of this stream or of one that waits for it.
Result<bool> Driver::is_captured(StreamHandle stream) const {
  constexpr int kCapturesImplicitly = 906;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
  const Current current(*this);
  int status = 0;
  const int error = call_.stream_is_capturing(stream, &status);
  if (error == kCapturesImplicitly) return refuse_capture();
  STRETTO_RETURN_IF_ERROR(
      status_of_call(stream == nullptr ? "the default stream" : "a stream", error));
  return status != 0;
}

Result<std::uint64_t> Driver::capture_of(StreamHandle stream) const {
  const Current current(*this);
  int status = 0;
  std::uint64_t number = 0;
  const int error = call_.stream_capture_info(stream, &status, &number, nullptr, nullptr, nullptr);
  STRETTO_RETURN_IF_ERROR(status_of_call("cuStreamGetCaptureInfo", error));
  return status == 0 ? 0 : number;
}

Status Driver::check_no_capture(StreamHandle stream) const {
  STRETTO_ASSIGN_OR_RETURN(const bool is_captured, this->is_captured(stream));
  return is_captured ? refuse_capture() : Status();
}

Status Driver::check_no_capture() const {
  STRETTO_RETURN_IF_ERROR(check_no_capture(nullptr));
  return check_no_capture(static_cast<StreamHandle>(StreamGuard::current()));
}

bool Driver::wait_to_free() const {
  constexpr int kFirstOfCaptures = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
  constexpr int kLastOfCaptures = 908;   // CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.
  if (check_no_capture().code() == StatusCode::invalid_argument) return false;
  const Current current(*this);
  const int result = call_.context_synchronize();
  return result < kFirstOfCaptures || result > kLastOfCaptures;
}

Status Driver::clear(void* data, std::size_t bytes) const {
  const Current current(*this);
  STRETTO_RETURN_IF_ERROR(status_of_call("cuMemsetD8", call_.clear(address_of(data), 0, bytes)));
  return status_of_call("cuCtxSynchronize", call_.context_synchronize());
}

Result<std::shared_ptr<void>> pin(std::shared_ptr<const Driver> driver, ByteSpan bytes) {
  constexpr unsigned kPinForAllContexts = 1;  // CU_MEMHOSTREGISTER_PORTABLE.
  const Driver::Current current(*driver);
  STRETTO_RETURN_IF_ERROR(driver->status_of_call(
      "cuMemHostRegister", driver->call().pin(bytes.data(), bytes.size(), kPinForAllContexts)));
  return std::shared_ptr<void>(bytes.data(), [driver = std::move(driver)](void* data) {
    const Driver::Current there(*driver);
    (void)driver->call().unpin(data);
  });
}

}  // namespace stretto::cuda
