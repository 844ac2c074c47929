# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# `cmake --install` puts headers, libraries and the `stretto` program where find_package(stretto)
# finds them: targets stretto::stretto, and stretto::torch where it was built with libtorch.

include(CMakePackageConfigHelpers)

set(STRETTO_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)

set(installed stretto)
foreach(layer IN LISTS STRETTO_LAYERS)
  if(TARGET stretto_${layer})
    list(APPEND installed stretto_${layer})
  endif()
endforeach()
install(TARGETS ${installed} EXPORT strettoTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT strettoTargets NAMESPACE stretto:: DESTINATION ${STRETTO_CMAKE_DIR})
if(TARGET stretto_tool)
  install(TARGETS stretto_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY stretto DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

configure_package_config_file(cmake/strettoConfig.cmake.in strettoConfig.cmake
  INSTALL_DESTINATION ${STRETTO_CMAKE_DIR})
write_basic_package_version_file(strettoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strettoConfig.cmake
  ${PROJECT_BINARY_DIR}/strettoConfigVersion.cmake DESTINATION ${STRETTO_CMAKE_DIR})
