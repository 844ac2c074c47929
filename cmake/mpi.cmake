# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# libstretto_mpi.so, by which an MPI library moves messages: built where CMake finds an MPI, loaded
# by who asks for it, so that nothing else depends on an MPI. MPI_HOME says which one.

# Its header pretends to be C, which is all that is used: the C++ bindings are gone since MPI 3.
# Leaves MPI::MPI_CXX where there is one. MPI leaves memory behind, and says so to nobody but a
# sanitizer.
function(stretto_find_mpi)
  if(NOT STRETTO_SANITIZE)
    set(MPI_CXX_SKIP_MPICXX ON)
    find_package(MPI QUIET COMPONENTS CXX)
  endif()
endfunction()

function(stretto_add_mpi_plugin)
  stretto_find_mpi()
  if(NOT TARGET MPI::MPI_CXX)
    return()
  endif()
  # Beside the programs of the build folder, where they look for it first.
  add_library(stretto_mpi MODULE ${PROJECT_SOURCE_DIR}/stretto/transport/mpi/plugin.cc)
  set_target_properties(stretto_mpi PROPERTIES CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_include_directories(stretto_mpi PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(stretto_mpi PRIVATE stretto_build MPI::MPI_CXX)
endfunction()
