// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/device/placed_model.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "stretto/torch_device/streams.h"

namespace stretto::testing {
namespace {

void* fake_device() {
  static void* const library = [] {
    ::setenv("STRETTO_CUDA_DRIVER", STRETTO_BIN_DIR "/libfake_nccl.so", 1);   // NOLINT
    ::setenv("STRETTO_NCCL_LIBRARY", STRETTO_BIN_DIR "/libfake_nccl.so", 1);  // NOLINT
    void* const loaded = ::dlopen(STRETTO_BIN_DIR "/libfake_device.so", RTLD_NOW);
    if (loaded == nullptr) throw std::runtime_error(::dlerror());
    return loaded;
  }();
  return library;
}

template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(fake_device(), name));
}

}  // namespace

void load_fake_device() { find<void(int)>("fake_device_set_delay")(2000); }

torch::Device device_of(const Communicator& communicator) {
  load_fake_device();
  return {torch::kPrivateUse1, static_cast<c10::DeviceIndex>(communicator.rank().value())};
}

void use_new_stream(torch::Device device) {
  find<std::int64_t(int, std::int64_t)>("fake_device_use_stream")(device.index(), -1);
}

void use_default_stream(torch::Device device) {
  find<std::int64_t(int, std::int64_t)>("fake_device_use_stream")(device.index(), 0);
}

unsigned devices_come_back_to() { return find<unsigned()>("fake_device_came_back_to")(); }

void synchronize(torch::Device device) {
  c10::impl::getDeviceGuardImpl(device.type())->synchronizeStream(current_stream(device));
}

}  // namespace stretto::testing
