#!/usr/bin/env bash
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# For ./dev check: Clang checks who holds which lock (stretto/base/mutex.h) in every source that
# takes one. Sources that include libtorch are checked only if the argument names the folder of its
# TorchConfig.cmake. Fails if Clang finds an error, or misses a deliberate one.

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

look_at() { xargs -n 1 -P "${STRETTO_JOBS:-$(nproc)}" "${look[@]}" "$@"; }

{
  find stretto/group -name '*.cc'
  grep -rlE --include=*.cc 'MutexLock|EngineLock' stretto
} | grep -vE '_test\.cc$|^stretto/(c10d|torch|torch_device)/' | sort -u | look_at

[[ -n ${1:-} ]] || exit 0
include=$1/../../../include
grep -lE 'MutexLock|EngineLock' stretto/{c10d,torch,torch_device}/*.cc | grep -v '_test\.cc$' |
  look_at -DFMT_HEADER_ONLY=1 -Wno-inconsistent-missing-override \
    -isystem "$include" -isystem "$include/torch/csrc/api/include" \
    "-I$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')"
