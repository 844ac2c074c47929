#!/usr/bin/env bash
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Builds the GPU code with nvcc 12 and links it. PyPI has the headers and the library of CUDA 12 but
# no nvcc, so nvcc comes from Debian 13 (non-free, under NVIDIA's license).
#   scripts/cuda12_check.sh [FOLDER]
# Downloads all of these (110 MB) to FOLDER (default: build/cuda12) if they are not there yet;
# installs nothing.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:-build/cuda12}")
debian_package=http://deb.debian.org/debian/pool/non-free/n/nvidia-cuda-toolkit/\
nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb
debian_sha256=cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319

# Creates the folders that NVIDIA's installer would create.
fill_toolkit() {
  local packages=$folder/packages toolkit=$folder/toolkit name
  mkdir -p "$packages" "$toolkit"/{bin,include,nvvm/bin,nvvm/libdevice}
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
    --target "$packages" nvidia-cuda-runtime-cu12==12.4.* nvidia-cuda-nvcc-cu12==12.4.* \
    nvidia-cuda-cccl-cu12==12.4.*
  for name in cuda_runtime cuda_nvcc cuda_cccl; do
    cp -r "$packages/nvidia/$name/include/." "$toolkit/include"
  done
  cp -r "$packages/nvidia/cuda_runtime/lib" "$toolkit"
  /usr/lib/apt/apt-helper -qq download-file "$debian_package" "$packages/toolkit.deb" \
    "SHA256:$debian_sha256"
  dpkg-deb -x "$packages/toolkit.deb" "$packages/debian"
  cp "$packages"/debian/usr/bin/{cudafe++,fatbinary,ptxas,nvlink,bin2c} "$toolkit/bin"
  cp -r "$packages"/debian/usr/lib/nvidia-cuda-toolkit/bin/crt "$toolkit/bin"
  cp "$packages/debian/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$toolkit/nvvm/bin"
  cp "$packages"/debian/usr/lib/nvidia-cuda-toolkit/libdevice/* "$toolkit/nvvm/libdevice"
  cat > "$toolkit/bin/nvcc.profile" << 'TEXT'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"
TEXT
  # nvcc comes last, because its presence means that the toolkit is complete.
  cp "$packages/debian/usr/lib/nvidia-cuda-toolkit/bin/nvcc" "$toolkit/bin"
}

[[ -x $folder/toolkit/bin/nvcc ]] || fill_toolkit
"$folder/toolkit/bin/nvcc" --version | tail -n 2
cmake -S . -B "$folder/build" -G Ninja -DSTRETTO_CUDA=ON -DSTRETTO_TORCH=OFF -DSTRETTO_TESTS=OFF \
  "-DSTRETTO_NVCC=$folder/toolkit/bin/nvcc" \
  "-DSTRETTO_CUDART=$folder/toolkit/lib/libcudart.so.12" > "$folder/cmake.log"
cmake --build "$folder/build" --target stretto_cuda_kernels
ls -l "$folder"/build/bin/libstretto_cuda_kernels.so
