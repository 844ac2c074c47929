#!/usr/bin/env bash
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Compiles what is for GPUs against CUDA 12, for the oldest device that it knows of ours (sm_70) and
# a newer one, by clang: Python's packages of CUDA 12 have all of it but nvcc itself.
#   scripts/cuda12_check.sh [FOLDER]     clang++-19 or newer on PATH, or named by CXX
# Takes Python's packages to FOLDER (build/cuda12) where they are not there yet.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build/cuda12}
cxx=${CXX:-clang++-19}
command -v "$cxx" > /dev/null || { printf 'cuda12_check: there is no %s\n' "$cxx" >&2; exit 1; }

if [[ ! -x $folder/cuda/bin/ptxas ]]; then
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/packages" \
    nvidia-cuda-nvcc-cu12==12.9.* nvidia-cuda-runtime-cu12==12.9.*
  mkdir -p "$folder/cuda"
  for package in cuda_nvcc cuda_runtime; do
    cp -r "$folder/packages/nvidia/$package/." "$folder/cuda"
  done
  chmod +x "$folder/cuda/bin/ptxas"
  # clang includes it for the sake of one macro, which nothing here uses.
  touch "$folder/cuda/include/curand_mtgp32_kernel.h"
fi

for device in sm_70 sm_90; do
  "$cxx" -x cuda --cuda-path="$folder/cuda" --cuda-gpu-arch=$device --cuda-device-only \
    -Wno-unknown-cuda-version -std=c++20 -O3 -ffp-contract=off -I. -Iinclude \
    -c stretto/cuda/runtime/kernels.cu -o "$folder/kernels.$device.cubin"
  printf 'kernels.cu for %s: %s bytes\n' $device "$(stat -c %s "$folder/kernels.$device.cubin")"
done
"$cxx" -x cuda --cuda-path="$folder/cuda" --cuda-host-only -Wno-unknown-cuda-version -std=c++20 \
  -I. -Iinclude -fsyntax-only stretto/cuda/runtime/kernels.cu
printf 'kernels.cu for the host\n'
