// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/page_locked.h"

#include <memory>
#include <utility>

#include "stretto/base/environment.h"
#include "stretto/base/log.h"
#include "stretto/cuda_driver/driver.h"

namespace stretto {
namespace {

Result<std::shared_ptr<void>> lock(ByteSpan bytes, int number) {
  const std::string file = process_environment().get("STRETTO_CUDA_DRIVER").value_or("");
  STRETTO_ASSIGN_OR_RETURN(auto driver, cuda::Driver::open(file, number));
  return cuda::pin(std::move(driver), bytes);
}

}  // namespace

Memory page_locked(Memory memory, int number) {
  const ByteSpan bytes = memory.bytes();
  if (bytes.empty()) return memory;
  auto locked = lock(bytes, number);
  if (!locked.ok()) {
    log(LogLevel::warning,
        "{} bytes of the host are not page-locked, so that a device copies them slowly: {}",
        bytes.size(), locked.status().message());
    return memory;
  }
  // Members are destroyed in the reverse order of their declaration.
  struct Both {
    Memory memory;
    std::shared_ptr<void> lock;
  };
  return {std::make_shared<Both>(Both{std::move(memory), std::move(*locked)}), bytes};
}

}  // namespace stretto
