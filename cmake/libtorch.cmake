# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Where libtorch is, and what links it: for the build, and, installed, for find_package(stretto
# COMPONENTS torch). PyTorch's own package file is not asked: of a PyTorch with CUDA, as PyPI has
# it, it ends where CUDA's toolkit is not, which is not needed here.

# Looks for Torch_DIR, by CMAKE_PREFIX_PATH too, and sets `Torch_VERSION` to what is there.
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
  # libtorch's include folder has a fmt of its own, newer than the one that our core links and
  # without a library. The versions live in different namespaces, so one program may hold both.
  target_compile_definitions(stretto_libtorch INTERFACE FMT_HEADER_ONLY=1
    USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  # libtorch.so brings those of devices, of which no program uses a symbol.
  target_link_libraries(stretto_libtorch INTERFACE ${prefix}/lib/libtorch_cpu.so
    ${prefix}/lib/libc10.so "-Wl,--no-as-needed,\"${prefix}/lib/libtorch.so\" -Wl,--as-needed")
endfunction()
