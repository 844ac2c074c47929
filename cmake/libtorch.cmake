# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Finds libtorch and defines how to link it, both for the build and, installed, for
# find_package(stretto COMPONENTS torch). PyTorch's own package file is not used: that of a PyTorch
# with CUDA, as on PyPI, fails where the CUDA toolkit is missing, which stretto does not need.

# Looks for Torch_DIR (also in CMAKE_PREFIX_PATH), and sets `Torch_VERSION` to the version found
# there.
function(stretto_find_torch)
  find_path(Torch_DIR TorchConfigVersion.cmake HINTS ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
    PATH_SUFFIXES share/cmake/Torch Torch DOC "The folder of TorchConfig.cmake")
  if(EXISTS ${Torch_DIR}/TorchConfigVersion.cmake)
    include(${Torch_DIR}/TorchConfigVersion.cmake)
    set(Torch_VERSION ${PACKAGE_VERSION} PARENT_SCOPE)
  endif()
endfunction()

# Defines `stretto_libtorch`: the libtorch of Torch_DIR, with its headers as system headers. Sets
# `STRETTO_TORCH_PREFIX`.
function(stretto_add_libtorch)
  if(TARGET stretto_libtorch)
    return()
  endif()
  get_filename_component(prefix ${Torch_DIR}/../../.. ABSOLUTE)
  set(STRETTO_TORCH_PREFIX ${prefix} PARENT_SCOPE)
  add_library(stretto_libtorch INTERFACE)
  target_include_directories(stretto_libtorch SYSTEM INTERFACE ${prefix}/include
    ${prefix}/include/torch/csrc/api/include)
  # libtorch's include folder has its own fmt headers without a library; they are newer than the fmt
  # that our core links. The versions have different namespaces, so one program may use both.
  target_compile_definitions(stretto_libtorch INTERFACE FMT_HEADER_ONLY=1
    USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  # libtorch.so would also load the device libraries, of which no program uses a symbol.
  target_link_libraries(stretto_libtorch INTERFACE ${prefix}/lib/libtorch_cpu.so
    ${prefix}/lib/libc10.so "-Wl,--no-as-needed,\"${prefix}/lib/libtorch.so\" -Wl,--as-needed")
endfunction()
