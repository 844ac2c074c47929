# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# The backend of torch.distributed as a Python package in <build>/python: the module stretto._c from
# stretto/c10d, and the Python files of python/stretto beside it. `pip install .` installs the same.
# It is built if libtorch belongs to a PyTorch whose Python has its headers installed.

set(STRETTO_PYTHON "" CACHE FILEPATH "The Python of the PyTorch that Torch_DIR belongs to")

# If `python` can use this PyTorch, sets `result` to Python's include folder and the file name
# suffix of its modules.
function(stretto_ask_python result python)
  set(${result} PARENT_SCOPE)
  execute_process(COMMAND ${python} -c "import importlib.util, os, sysconfig
torch = importlib.util.find_spec('torch')
folder = os.path.dirname(torch.origin) if torch else sysconfig.get_path('purelib') + '/torch'
include = sysconfig.get_path('include')
if os.path.exists(include + '/Python.h'):
    print(os.path.realpath(folder), include, sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE answer ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(LENGTH answer length)
  if(length EQUAL 3)
    list(POP_FRONT answer torch)
    if(torch STREQUAL STRETTO_TORCH_PACKAGE)
      set(${result} ${answer} PARENT_SCOPE)
    endif()
  endif()
endfunction()

function(stretto_find_python)
  file(REAL_PATH ${STRETTO_TORCH_PREFIX} STRETTO_TORCH_PACKAGE)
  # site-packages is in PREFIX/lib/python3.N/, and the interpreter in PREFIX/bin.
  get_filename_component(prefix ${STRETTO_TORCH_PACKAGE}/../../../.. ABSOLUTE)
  foreach(python IN ITEMS ${STRETTO_PYTHON} ${prefix}/bin/python3 ${Python_EXECUTABLE} python3)
    stretto_ask_python(answer ${python})
    if(answer)
      list(GET answer 0 include)
      list(GET answer 1 suffix)
      set(STRETTO_PYTHON ${python} CACHE FILEPATH "" FORCE)
      set(STRETTO_PYTHON_INCLUDE ${include} PARENT_SCOPE)
      set(STRETTO_PYTHON_SUFFIX ${suffix} PARENT_SCOPE)
      set(STRETTO_HAVE_PYTHON ON PARENT_SCOPE)
      message(STATUS "python: ${python}")
      return()
    endif()
  endforeach()
  message(STATUS "python: off; no Python with headers (python3-dev) uses ${STRETTO_TORCH_PACKAGE}")
endfunction()

set(STRETTO_HAVE_PYTHON OFF)
if(STRETTO_HAVE_TORCH)
  stretto_find_python()
endif()
if(SKBUILD AND NOT STRETTO_HAVE_PYTHON)
  message(FATAL_ERROR "The Python of ${Torch_DIR} has no headers, which the wheel's module needs: "
    "install python3-dev (Debian), python3-devel or the like, of the same version of Python")
endif()

# Static libraries export their symbols, so a version script names the one symbol that the module
# exports.
function(stretto_add_python)
  if(NOT STRETTO_HAVE_PYTHON)
    return()
  endif()
  stretto_library_sources(sources stretto/c10d)
  set(package ${CMAKE_BINARY_DIR}/python/stretto)
  set(map ${PROJECT_SOURCE_DIR}/cmake/python.map)
  set(torch_python ${STRETTO_TORCH_PREFIX}/lib/libtorch_python.so)
  add_library(stretto_python MODULE ${sources})
  set_target_properties(stretto_python PROPERTIES PREFIX "" OUTPUT_NAME _c
    SUFFIX ${STRETTO_PYTHON_SUFFIX} LIBRARY_OUTPUT_DIRECTORY ${package} LINK_DEPENDS ${map}
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0 CXX_VISIBILITY_PRESET hidden
    INSTALL_RPATH "$ORIGIN/lib" LINKER_LANGUAGE CXX)
  target_include_directories(stretto_python SYSTEM PRIVATE ${STRETTO_PYTHON_INCLUDE})
  target_link_libraries(stretto_python PRIVATE stretto_build stretto_job
    stretto_torch_device ${torch_python})
  target_link_options(stretto_python PRIVATE -Wl,--version-script=${map} -Wl,--gc-sections)
  stretto_add_python_files(${package})
  stretto_install_python()
endfunction()

# Adds the Python files of the package. They are links, so that changes in python/stretto take
# effect at once.
function(stretto_add_python_files package)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" STRETTO_BUILT_FOR_TORCH ${Torch_VERSION})
  file(MAKE_DIRECTORY ${package})
  configure_file(python/built_for.py.in ${package}/built_for.py @ONLY)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/stretto/*)
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME)
    file(CREATE_LINK ${file} ${package}/${name} SYMBOLIC)
  endforeach()
  # The metadata that pip would write: by it PyTorch finds the backend if <build>/python is in
  # PYTHONPATH.
  set(metadata ${package}-${PROJECT_VERSION}.dist-info)
  file(WRITE ${metadata}/METADATA
    "Metadata-Version: 2.1\nName: stretto\nVersion: ${PROJECT_VERSION}\n")
  file(WRITE ${metadata}/entry_points.txt
    "[torch.backends]\nstretto = stretto.autoload:register\n")
endfunction()

# Installs the files of a wheel besides python/stretto, with the libraries that the core uses and
# PyTorch does not. They are installed only by name: cmake --install BUILD --component wheel.
function(stretto_install_python)
  set_target_properties(stretto_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  install(TARGETS stretto_python LIBRARY DESTINATION stretto COMPONENT wheel
    EXCLUDE_FROM_ALL)
  install(TARGETS stretto_tool RUNTIME DESTINATION stretto/bin COMPONENT wheel
    EXCLUDE_FROM_ALL)
  install(FILES ${CMAKE_BINARY_DIR}/python/stretto/built_for.py DESTINATION stretto
    COMPONENT wheel EXCLUDE_FROM_ALL)
  install(IMPORTED_RUNTIME_ARTIFACTS fmt::fmt spdlog::spdlog hwy::hwy
    LIBRARY DESTINATION stretto/lib COMPONENT wheel EXCLUDE_FROM_ALL)
endfunction()
