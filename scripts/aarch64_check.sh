#!/usr/bin/env bash
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Builds the library without torch for 64-bit Arm, and runs tests of its layers in an emulator:
# arithmetic, algorithms, codecs, and ranks that are threads and processes.
#   scripts/aarch64_check.sh [FOLDER]
# Needs Debian's g++-12-aarch64-linux-gnu and qemu-user-static. Downloads the libraries for Arm (5
# MB) to FOLDER (default: build/aarch64) if they are not there yet; installs nothing. An emulator
# orders memory as its host does, so this does not test whether the memory orders suffice.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:-build/aarch64}")
root=$folder/root
packages=(libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libhwy-dev libhwy1 libssl-dev libssl3
  libgtest-dev libgmock-dev librapidcheck-dev)
layers=(base kernel codec schedule transport group communicator bootstrap job reducer)

# Tests of things that the emulator does not do, or does as its own process: limits on memory and
# threads, counts of descriptors, the system's information on a connection, whether a system call
# exists, which program a process runs.
left_out=Thread.SaysWhichLimits*:ConnectionState.SaysForHowLong*:MemoryShortage.*:\
MemoryTest.NoDescriptorLeaks:HostListenerTest.KeepsNoDescriptor*:StripedLink.*:\
TcpLink.ASilentNetwork*:TcpLink.WhatHasBeenWrittenArrives*:\
StatusBoard.IsEmptyWhereTheSystem*:OwnFolder.StaysKnown*:OwnFolder.IsThatOfAProgram*

fill_root() {
  local debs=$folder/packages
  mkdir -p "$debs" "$root"
  dpkg --print-foreign-architectures | grep -q arm64 ||
    { echo "apt does not know packages for Arm: dpkg --add-architecture arm64; apt-get update" >&2
      exit 1; }
  (cd "$debs" && apt-get download -qq "${packages[@]/%/:arm64}" nlohmann-json3-dev libcli11-dev)
  local deb
  for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$root"; done
}

[[ -e $root/usr/include/hwy/highway.h ]] || fill_root
libraries=$root/usr/lib/aarch64-linux-gnu
emulator=(qemu-aarch64-static -L /usr/aarch64-linux-gnu
  -E "LD_LIBRARY_PATH=$libraries:/usr/aarch64-linux-gnu/lib")
cat > "$folder/toolchain.cmake" << TEXT
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_FIND_ROOT_PATH "$root")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind IN ITEMS LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_\${kind} ONLY)
endforeach()
set(CMAKE_CXX_FLAGS_INIT "-isystem $root/usr/include/aarch64-linux-gnu")
foreach(kind IN ITEMS EXE SHARED)
  set(CMAKE_\${kind}_LINKER_FLAGS_INIT "-Wl,-rpath-link,$libraries")
endforeach()
TEXT
PKG_CONFIG_LIBDIR=$libraries/pkgconfig cmake -S . -B "$folder/build" -G Ninja \
  "-DCMAKE_TOOLCHAIN_FILE=$folder/toolchain.cmake" -DSTRETTO_TORCH=OFF -DSTRETTO_UNITY=ON \
  > "$folder/cmake.log"
programs=("${layers[@]/#/stretto_}")
cmake --build "$folder/build" --target stretto_tool "${programs[@]/%/_test}"
for layer in "${layers[@]}"; do
  echo "$layer:"
  "${emulator[@]}" "$folder/build/bin/stretto_${layer}_test" "--gtest_filter=-$left_out" \
    --gtest_brief=1 2> "$folder/$layer.log" | tail -n 3
done
