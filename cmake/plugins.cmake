# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# libstretto_mpi.so and libstretto_ucx.so, by which an MPI library or UCX moves messages: built
# where CMake finds those, loaded by who asks for them, so that nothing else depends on them.
# MPI_HOME says which MPI, CMAKE_PREFIX_PATH where UCX is.

# MPI's header pretends to be C, which is all that is used: the C++ bindings are gone since MPI 3.
# Leaves stretto::mpi where there is one: CMake's own target exists where it found nothing, too. MPI
# leaves memory behind, and says so to nobody but a sanitizer.
function(stretto_find_mpi)
  if(NOT STRETTO_SANITIZE)
    set(MPI_CXX_SKIP_MPICXX ON)
    find_package(MPI QUIET COMPONENTS CXX)
    if(MPI_CXX_FOUND AND NOT TARGET stretto::mpi)
      add_library(stretto::mpi ALIAS MPI::MPI_CXX)
    endif()
  endif()
endfunction()

# libstretto_<name>.so of stretto/transport/<name> in `folder`.
function(stretto_compile_plugin target name library folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/stretto/transport/${name}/*.cc)
  add_library(${target} MODULE ${sources})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden
    OUTPUT_NAME stretto_${name} LIBRARY_OUTPUT_DIRECTORY ${folder})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE stretto_build ${library})
endfunction()

# Beside the programs of the build folder, where they look for it first.
function(stretto_add_plugin name library)
  if(TARGET ${library})
    stretto_compile_plugin(stretto_${name} ${name} ${library} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
    install(TARGETS stretto_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

function(stretto_add_plugins)
  stretto_find_mpi()
  stretto_add_plugin(mpi stretto::mpi)
  # Leaves ucx::ucp where there is UCX; a sanitizer knows nothing of what that does in memory.
  if(NOT STRETTO_SANITIZE)
    find_package(ucx QUIET)
  endif()
  stretto_add_plugin(ucx ucx::ucp)
endfunction()
