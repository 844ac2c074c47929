# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Compiler options for our own code. Defines the target `stretto_build`, which every target of this
# project links privately, so that none of the options reach users of the library.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Kind of build" FORCE)
endif()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(STRETTO_CCACHE ccache)
mark_as_advanced(STRETTO_CCACHE)
if(STRETTO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this setting ccache does not cache any source that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${STRETTO_CCACHE})
endif()

add_library(stretto_build INTERFACE)
# Private headers are beside the sources, public headers in include/.
target_include_directories(stretto_build INTERFACE
  ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
# -fPIC for programs too: they can then share precompiled headers with libraries. -ffp-contract=off:
# a fused multiply-add rounds once instead of twice, and only some processors have it. Without
# fused instructions, all ranks of a job and all SIMD targets of a loop round alike.
target_compile_options(stretto_build INTERFACE -fPIC -ffp-contract=off
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache has to see which precompiled header a preprocessed file used.
  target_compile_options(stretto_build INTERFACE -fpch-preprocess)
  if(STRETTO_UNITY)
    # In a unity build, g++ treats the combined sources as headers, and warns about classes with
    # members of types without linkage, as if the classes differed from source to source. In tests,
    # a constant of one source may shadow that of another.
    target_compile_options(stretto_build INTERFACE -Wno-subobject-linkage
      $<$<BOOL:$<TARGET_PROPERTY:STRETTO_IS_TEST>>:-Wno-shadow>)
  endif()
endif()
if(STRETTO_WARNINGS_AS_ERRORS)
  target_compile_options(stretto_build INTERFACE -Werror)
endif()
# Tests take longer to compile than to run. With -O1 and line numbers only, they compile in two
# thirds of the time.
set(quick_to_compile $<BOOL:$<TARGET_PROPERTY:STRETTO_IS_TEST>>)
if(STRETTO_SANITIZE)
  set(quick_to_compile 1)
endif()
# The default build (RelWithDebInfo) has line numbers only, too, which saves a quarter of the time.
# Debug has full debug information.
set(STRETTO_DEBUG_LEVEL 1 CACHE STRING
  "-g of RelWithDebInfo and of tests; 0, without line numbers, takes a fifth of the time less")
target_compile_options(stretto_build INTERFACE $<${quick_to_compile}:-O1>
  $<$<OR:${quick_to_compile},$<CONFIG:RelWithDebInfo>>:-g${STRETTO_DEBUG_LEVEL}>)
if(STRETTO_SANITIZE)
  set(sanitize -fsanitize=${STRETTO_SANITIZE})
  target_compile_options(stretto_build INTERFACE ${sanitize} -fno-omit-frame-pointer)
  target_link_options(stretto_build INTERFACE ${sanitize})
  if(STRETTO_SANITIZE MATCHES "undefined")
    # The vptr check opens a pipe to inspect an object's type, and reports valid objects as broken
    # in tests that have used up all file descriptors. A null dereference ends a program anyway, and
    # AddressSanitizer finds most accesses beyond an object; with both checks enabled the kernels
    # take twice as long to compile.
    target_compile_options(stretto_build INTERFACE -fno-sanitize-recover=undefined
      -fno-sanitize=vptr,null,object-size)
  endif()
  if(STRETTO_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ warns that ThreadSanitizer does not understand fences. It therefore cannot check those
    # before a rank goes to sleep; TransportSleepTest.NoWakeUpIsLost looks for lost wake-ups.
    target_compile_options(stretto_build INTERFACE -Wno-tsan)
  endif()
endif()

# Precompiles the standard headers that nearly every source includes, which saves a third of the
# time. `kind` is library or test. ./dev tidy compiles each header alone, so that no header relies
# on this.
function(stretto_use_common_header target kind)
  set(header stretto_${kind}_header)
  if(NOT TARGET ${header})
    set(source ${CMAKE_BINARY_DIR}/${header}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "// Exists so that its target has a source.\n")
    add_library(${header} OBJECT ${source})
    target_link_libraries(${header} PRIVATE stretto_build ${STRETTO_EXTERNAL_base})
    set(headers <algorithm> <atomic> <chrono> <functional> <map> <memory> <mutex> <optional> <span>
      <string> <thread> <vector> <fmt/format.h>)
    if(kind STREQUAL "test")
      set_target_properties(${header} PROPERTIES STRETTO_IS_TEST ON)
      target_link_libraries(${header} PRIVATE GTest::gtest)
      list(APPEND headers <gtest/gtest.h>)
    endif()
    target_precompile_headers(${header} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${header})
endfunction()
