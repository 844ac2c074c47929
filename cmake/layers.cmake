# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# One static library per layer. Only stretto/layers.txt says which layer may use which: its arrows
# become link dependencies here and include rules in scripts/tidy.py.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(hwy REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

# Third-party libraries that each layer uses.
set(STRETTO_EXTERNAL_base fmt::fmt spdlog::spdlog Threads::Threads ${CMAKE_DL_LIBS})
set(STRETTO_EXTERNAL_kernel hwy::hwy)
set(STRETTO_EXTERNAL_communicator $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
set(STRETTO_EXTERNAL_bootstrap OpenSSL::SSL OpenSSL::Crypto)
# Layers that need libtorch. c10d is not a library: python.cmake makes a Python module of it.
set(STRETTO_TORCH_LAYERS torch_device torch c10d)
set(STRETTO_EXTERNAL_torch_device $<BUILD_INTERFACE:stretto_libtorch>)
set(STRETTO_EXTERNAL_torch $<BUILD_INTERFACE:stretto_libtorch>)
set(STRETTO_EXTERNAL_programs CLI11::CLI11 nlohmann_json::nlohmann_json)

# Sets STRETTO_LAYERS (all layers), STRETTO_CORE_LAYERS (those that need no optional library), and
# STRETTO_USES_<layer> for each layer.
function(stretto_read_layers)
  set(path ${PROJECT_SOURCE_DIR}/stretto/layers.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(STRINGS ${path} lines REGEX "^[a-z]")
  set(layers)
  foreach(line IN LISTS lines)
    separate_arguments(words UNIX_COMMAND "${line}")
    list(POP_FRONT words layer)
    list(APPEND layers ${layer})
    set(STRETTO_USES_${layer} ${words} PARENT_SCOPE)
  endforeach()
  set(STRETTO_LAYERS ${layers} PARENT_SCOPE)
  list(REMOVE_ITEM layers ${STRETTO_TORCH_LAYERS})
  set(STRETTO_CORE_LAYERS ${layers} PARENT_SCOPE)
endfunction()

# Sets `result` to the sources of `folder` that belong to a library: without tests, benchmarks,
# fuzzers, plug-ins loaded at run time, and sources that need CUDA (see cuda.cmake).
function(stretto_library_sources result folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|_fuzz)\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/cuda/runtime/|/transport/(mpi|ucx)/")
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# Sets `result` to whether any of the files includes libtorch or its layers.
function(stretto_includes_torch result)
  set(${result} OFF PARENT_SCOPE)
  foreach(path IN LISTS ARGN)
    file(STRINGS ${path} hits LIMIT_COUNT 1
      REGEX "^#include [<\"](torch/|ATen/|c10/|stretto/torch[./_])")
    if(hits)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# Sources that STRETTO_UNITY must compile alone: they define a name that another source of their
# target also defines, or include a different system header for the same names.
set_source_files_properties(
  stretto/bootstrap/file_store.cc
  stretto/schedule/estimate.cc stretto/schedule/estimate_two_level.cc
  stretto/transport/packets/stream_plane.cc stretto/transport/tcp/connection_state.cc
  tools/doctor.cc tools/plan.cc tools/top.cc
  tests/allocation/second_call_test.cc tests/contract/transport_leaving_test.cc
  tests/contract/transport_test.cc tests/contract/waiting_test.cc
  tests/simulation/seeded_run.cc
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# Highway's tables are constants in functions. Unless GCC may give equal constants one address, it
# copies a table to the stack for each vector, 1 KiB at a time. AddressSanitizer mistakes the shared
# constant for a variable that is out of scope.
if(NOT STRETTO_SANITIZE)
  set_source_files_properties(stretto/kernel/indices.cc stretto/kernel/select.cc PROPERTIES
    COMPILE_OPTIONS -fmerge-all-constants)
  # These files loop over whole gradients. At -O2 GCC vectorizes only loops whose trip count it
  # knows, which leaves these loops four times as slow.
  set_source_files_properties(
    stretto/reducer/compressed_exchange.cc stretto/reducer/compressed_messages.cc
    stretto/reducer/factored_exchange.cc PROPERTIES COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O3>)
endif()

function(stretto_compile_together target)
  if(STRETTO_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

function(stretto_add_layer layer)
  stretto_library_sources(sources stretto/${layer})
  set(target stretto_${layer})
  add_library(${target} STATIC ${sources})
  add_library(stretto::${layer} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${layer})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:stretto_build>
    PUBLIC ${STRETTO_EXTERNAL_${layer}})
  foreach(used IN LISTS STRETTO_USES_${layer})
    if(TARGET stretto_${used})
      target_link_libraries(${target} PUBLIC stretto_${used})
    endif()
  endforeach()
  if(layer IN_LIST STRETTO_TORCH_LAYERS)
    target_precompile_headers(${target} REUSE_FROM stretto_torch_header)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  else()
    stretto_use_common_header(${target} library)
    if(NOT layer STREQUAL "kernel")  # It includes itself once for each SIMD target.
      stretto_compile_together(${target})
    endif()
  endif()
endfunction()

function(stretto_add_layers)
  set(layers ${STRETTO_CORE_LAYERS})
  if(STRETTO_HAVE_TORCH)
    list(APPEND layers torch_device torch)
  endif()
  foreach(layer IN LISTS layers)
    stretto_add_layer(${layer})
  endforeach()
endfunction()

# Defines the target `stretto`, which links all layers of the core.
function(stretto_add_umbrella)
  add_library(stretto INTERFACE)
  add_library(stretto::stretto ALIAS stretto)
  foreach(layer IN LISTS STRETTO_CORE_LAYERS)
    target_link_libraries(stretto INTERFACE stretto_${layer})
  endforeach()
  # <stretto/torch.h> includes <stretto/stretto.h>, so a program that links the one needs the other.
  if(TARGET stretto_torch)
    target_link_libraries(stretto_torch INTERFACE stretto)
  endif()
endfunction()

# Builds the same code as one libstretto.so, which exports only the symbols named in stretto.map.
function(stretto_add_shared)
  set(map ${PROJECT_SOURCE_DIR}/cmake/stretto.map)
  add_library(stretto_shared SHARED)
  add_library(stretto::shared ALIAS stretto_shared)
  set_target_properties(stretto_shared PROPERTIES EXPORT_NAME shared OUTPUT_NAME stretto
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${map} LINKER_LANGUAGE CXX)
  target_compile_features(stretto_shared PUBLIC cxx_std_20)
  target_include_directories(stretto_shared INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(stretto_shared PUBLIC fmt::fmt PRIVATE stretto_build)
  target_link_options(stretto_shared PRIVATE
    -Wl,-Bsymbolic-functions -Wl,--version-script=${map})
  foreach(layer IN LISTS STRETTO_CORE_LAYERS)
    target_sources(stretto_shared PRIVATE $<TARGET_OBJECTS:stretto_${layer}>)
    target_link_libraries(stretto_shared PRIVATE ${STRETTO_EXTERNAL_${layer}})
  endforeach()
endfunction()

# Builds the `stretto` program from tools/. All but main.cc is a library, so that tests can link it.
function(stretto_add_tool)
  stretto_library_sources(sources tools)
  list(FILTER sources EXCLUDE REGEX "/tools/main\\.cc$")
  add_library(stretto_tool_parts STATIC ${sources})
  target_link_libraries(stretto_tool_parts PRIVATE stretto_build
    PUBLIC stretto ${STRETTO_EXTERNAL_programs})
  stretto_use_common_header(stretto_tool_parts library)
  stretto_compile_together(stretto_tool_parts)
  add_executable(stretto_tool tools/main.cc)
  set_target_properties(stretto_tool PROPERTIES OUTPUT_NAME stretto)
  target_link_libraries(stretto_tool PRIVATE stretto_build stretto_tool_parts)
endfunction()

stretto_read_layers()
