# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Looks for libtorch and sets STRETTO_HAVE_TORCH. Defines `stretto_libtorch`.

set(STRETTO_TORCH_MINIMUM 2.11)
set(STRETTO_HAVE_TORCH OFF)

# pip's build isolation hides installed packages from a build but leaves them in place. The folder
# is not cached: the next pip that builds here may belong to another environment.
if(SKBUILD AND NOT Torch_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import importlib.util, os, sysconfig
torch = importlib.util.find_spec('torch')
print(os.path.dirname(torch.origin) if torch else sysconfig.get_path('purelib') + '/torch')"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(Torch_DIR ${folder}/share/cmake/Torch)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/libtorch.cmake)

# A sanitized program needs a sanitized libtorch, which nobody distributes, so only the core is
# checked.
if(STRETTO_TORCH STREQUAL "AUTO" AND STRETTO_SANITIZE)
  message(STATUS "torch: off, because libtorch is not built with -fsanitize=${STRETTO_SANITIZE}")
elseif(STRETTO_TORCH)
  stretto_find_torch()
  if(NOT Torch_VERSION)
    set(reason "not found; Torch_DIR can name the folder of TorchConfig.cmake")
  elseif(Torch_VERSION VERSION_LESS STRETTO_TORCH_MINIMUM)
    set(reason "${Torch_VERSION} is older than ${STRETTO_TORCH_MINIMUM}")
  else()
    set(STRETTO_HAVE_TORCH ON)
    message(STATUS "torch: ${Torch_VERSION} in ${Torch_DIR}")
  endif()
  if(NOT STRETTO_HAVE_TORCH AND STRETTO_TORCH STREQUAL "AUTO")
    message(STATUS "torch: ${reason}; building without the torch layer")
  elseif(NOT STRETTO_HAVE_TORCH AND SKBUILD AND NOT Torch_VERSION)
    message(FATAL_ERROR "There is no PyTorch in ${Torch_DIR}. Install torch first, into the Python "
      "that this wheel is for; where it is elsewhere (a user's folder, a venv with the system's "
      "packages), pip hides it from what it builds: pip install scikit-build-core, then "
      "pip install --no-build-isolation .")
  elseif(NOT STRETTO_HAVE_TORCH)
    message(FATAL_ERROR "STRETTO_TORCH=${STRETTO_TORCH}, but libtorch is ${reason}")
  endif()
else()
  message(STATUS "torch: off")
endif()

if(STRETTO_HAVE_TORCH)
  stretto_add_libtorch()
  # Precompiles <torch/torch.h> for all targets that use it: it takes longer to compile than all of
  # stretto. But g++ instantiates torch's templates at the end of every source, even an empty one,
  # which takes ten seconds. So the torch sources of the library are compiled as one.
  set(source ${CMAKE_CURRENT_BINARY_DIR}/torch_header.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Exists so that its target has a source.\n")
  add_library(stretto_torch_header OBJECT ${source})
  target_link_libraries(stretto_torch_header PRIVATE stretto_build stretto_libtorch)
  # The -g level of tests in every build: a source compiled without -g may use a precompiled header
  # with it.
  target_compile_options(stretto_torch_header PRIVATE -g${STRETTO_DEBUG_LEVEL})
  target_precompile_headers(stretto_torch_header PRIVATE <torch/torch.h>)
endif()
