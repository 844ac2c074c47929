# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# `cmake --install` installs the public headers (include/), the libraries and the `stretto` program
# so that find_package(stretto) finds them. The targets are stretto::stretto (static),
# stretto::shared (the same code as one shared library; a program links one of the two), and
# stretto::torch (static) if built with libtorch. For programs without CMake and without libtorch
# there is stretto.pc.

include(CMakePackageConfigHelpers)

set(STRETTO_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)

set(installed stretto stretto_shared)
foreach(layer IN LISTS STRETTO_LAYERS)
  if(TARGET stretto_${layer})
    list(APPEND installed stretto_${layer})
  endif()
endforeach()
install(TARGETS ${installed} EXPORT strettoTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT strettoTargets NAMESPACE stretto:: DESTINATION ${STRETTO_CMAKE_DIR})
if(TARGET stretto_tool)
  install(TARGETS stretto_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(NOT SKBUILD)  # A wheel contains all libraries that it needs.
  # Libraries outside the system's folders are found where they were at build time.
  foreach(target IN ITEMS stretto_tool stretto_shared stretto_mpi stretto_ucx stretto_cuda_kernels)
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    endif()
  endforeach()
endif()
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# In a link command, a static library comes after the libraries that use it.
set(STRETTO_PC_LIBS)
foreach(layer IN LISTS STRETTO_CORE_LAYERS)
  string(PREPEND STRETTO_PC_LIBS "-lstretto_${layer} ")
endforeach()
file(RELATIVE_PATH STRETTO_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/stretto.pc.in stretto.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/stretto.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(cmake/strettoConfig.cmake.in strettoConfig.cmake
  INSTALL_DESTINATION ${STRETTO_CMAKE_DIR})
write_basic_package_version_file(strettoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strettoConfig.cmake cmake/libtorch.cmake
  ${PROJECT_BINARY_DIR}/strettoConfigVersion.cmake DESTINATION ${STRETTO_CMAKE_DIR})
