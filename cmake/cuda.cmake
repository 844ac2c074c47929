# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# libstretto_cuda_kernels.so, for GPUs: built if nvcc is found (STRETTO_NVCC chooses one), and
# loaded at run time by the programs that use it. Nothing else needs CUDA. We call nvcc directly
# instead of through CMake's CUDA support, because the latter first links a test program, for which
# the CUDA packages of PyPI lack the folders.

set(STRETTO_CUDA AUTO CACHE STRING "AUTO, ON or OFF: build the kernels for GPUs with nvcc")
set_property(CACHE STRETTO_CUDA PROPERTY STRINGS AUTO ON OFF)

set(STRETTO_CUDA_DEVICES 70 75 80 90 100 CACHE STRING
  "The devices to compile for (sm_70 and so on), one of a generation, if nvcc knows them")

# Sets `result` to the nvcc options that compile for these devices, and also embed code that later
# devices can translate.
function(stretto_cuda_devices result)
  execute_process(COMMAND ${STRETTO_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
  set(options)
  foreach(number IN LISTS STRETTO_CUDA_DEVICES)
    if(known MATCHES "compute_${number}\n")
      list(APPEND options -gencode arch=compute_${number},code=sm_${number})
      set(last ${number})
    endif()
  endforeach()
  list(APPEND options -gencode arch=compute_${last},code=compute_${last})
  set(${result} ${options} PARENT_SCOPE)
endfunction()

function(stretto_add_cuda)
  if(STRETTO_CUDA STREQUAL "OFF" OR STRETTO_SANITIZE)
    return()
  endif()
  find_program(STRETTO_NVCC nvcc)
  set(folder)
  if(STRETTO_NVCC)
    # nvcc prints where its headers and libraries are, if it knows C++20.
    execute_process(COMMAND ${STRETTO_NVCC} -std=c++20 --dryrun -c empty.cu ERROR_VARIABLE says)
    string(REGEX MATCH "#\\$ TOP=([^\n]*)" matched "${says}")
    get_filename_component(folder "${CMAKE_MATCH_1}" ABSOLUTE)
  endif()
  find_library(STRETTO_CUDART cudart_static PATHS ${folder}/lib64 ${folder}/lib)
  if(NOT STRETTO_CUDART OR NOT EXISTS ${folder}/include/cuda_runtime_api.h)
    if(STRETTO_CUDA STREQUAL "ON")
      message(FATAL_ERROR "STRETTO_CUDA is ON, but there is no nvcc 12 or later with its headers")
    endif()
    message(STATUS "no nvcc 12 or later with its headers: nothing for GPUs is built")
    return()
  endif()
  stretto_cuda_devices(devices)
  set(runtime ${PROJECT_SOURCE_DIR}/stretto/cuda/runtime)
  set(objects)
  foreach(name IN ITEMS kernels selection rounding)
    set(object ${CMAKE_BINARY_DIR}/stretto_cuda_${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${STRETTO_NVCC} -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr ${devices}
        --threads 0  # One thread per device: no other compilation is left by then.
        -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC -isystem ${folder}/include
        -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include -MD -MF ${object}.d
        -c ${runtime}/${name}.cu -o ${object}
      DEPENDS ${runtime}/${name}.cu DEPFILE ${object}.d COMMENT "Building ${name} for GPUs")
    list(APPEND objects ${object})
  endforeach()
  add_library(stretto_cuda_kernels MODULE ${objects})
  set_target_properties(stretto_cuda_kernels PROPERTIES LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_link_libraries(stretto_cuda_kernels PRIVATE stretto_build stretto_base ${STRETTO_CUDART}
    ${CMAKE_DL_LIBS} rt -Wl,--exclude-libs,ALL)
  install(TARGETS stretto_cuda_kernels LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  if(SKBUILD)  # A wheel built with nvcc contains these libraries beside its module.
    set_target_properties(stretto_cuda_kernels PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
    install(TARGETS stretto_cuda_kernels LIBRARY DESTINATION stretto COMPONENT wheel
      EXCLUDE_FROM_ALL)
    add_dependencies(stretto_python stretto_cuda_kernels)
  endif()
  if(STRETTO_TESTS)
    stretto_add_test_program(stretto_cuda_device_test OFF ${runtime}/device_test.cc)
    add_dependencies(stretto_cuda_device_test stretto_cuda_kernels)
  endif()
  if(TARGET gpu_driver)
    add_dependencies(gpu_driver stretto_cuda_kernels)
  endif()
endfunction()
