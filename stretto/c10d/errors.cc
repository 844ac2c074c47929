// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/errors.h"

#include <string>

#include <c10/util/Exception.h>

#include "stretto/base/mutex.h"

namespace stretto::c10d_backend {
namespace {

struct LastFailure {
  Mutex mutex;
  Status status STRETTO_GUARDED_BY(mutex);
};

LastFailure& remembered() {
  static auto* const last = new LastFailure;  // Never destroyed: static objects use it at exit.
  return *last;
}

void remember(const Status& status) {
  LastFailure& last = remembered();
  const MutexLock guard(last.mutex);
  last.status = status;
}

}  // namespace

void throw_for_torch(const Status& status) {
  const std::string text(status.message());
  if (status.code() == StatusCode::invalid_argument) C10_THROW_ERROR(ValueError, text);
  remember(status);
  C10_THROW_ERROR(DistBackendError, text);
}

Status last_failure() {
  LastFailure& last = remembered();
  const MutexLock guard(last.mutex);
  return last.status;
}

void forget_failures() { remember(Status()); }

}  // namespace stretto::c10d_backend
