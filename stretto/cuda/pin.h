// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <utility>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/cuda_driver/driver.h"

namespace stretto::cuda {

// Locks pages of the host for all devices of the process, as long as what is returned lives.
inline Result<std::shared_ptr<void>> pin(std::shared_ptr<const Driver> driver, ByteSpan bytes) {
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
