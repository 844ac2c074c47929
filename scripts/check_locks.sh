#!/usr/bin/env bash
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# For ./dev check: Clang looks at who holds which lock (stretto/base/mutex.h) in every source that
# takes one. Fails if it finds something, and if it does not find what is wrong on purpose.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

look=(clang++-14 -fsyntax-only -std=c++20 -I. -Iinclude -Wthread-safety -Werror)

if "${look[@]}" -xc++ - 2> /dev/null <<'CPP'; then
#include "stretto/group/engine.h"
void end(stretto::group::Engine& engine) { engine.ended(); }
CPP
  echo "clang++-14 does not see that the lock of the engine is not held"
  exit 1
fi

{
  find stretto/group -name '*.cc'
  grep -rlE --include=*.cc 'MutexLock|EngineLock' stretto
} | grep -v '_test\.cc$' | sort -u |
  xargs -n 1 -P "${STRETTO_JOBS:-$(nproc)}" "${look[@]}"
