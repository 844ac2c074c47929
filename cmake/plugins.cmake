# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# libstretto_mpi.so and libstretto_ucx.so, plug-ins that let an MPI library or UCX move messages.
# Each is built if CMake finds its library, and loaded at run time by the programs that ask for it,
# so that nothing else depends on MPI or UCX. MPI_HOME chooses the MPI, CMAKE_PREFIX_PATH the UCX.

# Defines the target stretto::mpi if there is an MPI; CMake's own target exists even if none was
# found. MPI_CXX_SKIP_MPICXX leaves out the C++ bindings, which MPI 3 removed: we use only the C
# interface. Not with sanitizers, because MPI leaks memory, which they report.
function(stretto_find_mpi)
  if(NOT STRETTO_SANITIZE)
    set(MPI_CXX_SKIP_MPICXX ON)
    find_package(MPI QUIET COMPONENTS CXX)
    if(MPI_CXX_FOUND AND NOT TARGET stretto::mpi)
      add_library(stretto::mpi ALIAS MPI::MPI_CXX)
    endif()
  endif()
endfunction()

# Builds libstretto_<name>.so from stretto/transport/<name> in `folder`.
function(stretto_compile_plugin target name library folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/stretto/transport/${name}/*.cc)
  add_library(${target} MODULE ${sources})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden
    OUTPUT_NAME stretto_${name} LIBRARY_OUTPUT_DIRECTORY ${folder})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE stretto_build ${library})
endfunction()

# Builds the plug-in beside the programs of the build folder, where they look for it first.
function(stretto_add_plugin name library)
  if(TARGET ${library})
    stretto_compile_plugin(stretto_${name} ${name} ${library} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
    install(TARGETS stretto_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

function(stretto_add_plugins)
  stretto_find_mpi()
  stretto_add_plugin(mpi stretto::mpi)
  # Defines ucx::ucp if there is UCX. Not with a sanitizer, which does not see how UCX uses memory.
  if(NOT STRETTO_SANITIZE)
    find_package(ucx QUIET)
  endif()
  stretto_add_plugin(ucx ucx::ucp)
endfunction()
