# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Defines one GoogleTest program per layer from its *_test.cc, one per folder of tests/, and one
# program per example. Sources that include libtorch form a program of their own, which is not built
# without libtorch.

if(STRETTO_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()

# Seconds after which a test counts as hung: few, because a hang is a failure of this library.
set(STRETTO_TEST_TIMEOUT_SECONDS 60)
set(STRETTO_SUITE_TIMEOUT_SECONDS 300)

# The tests that `./dev test` skips, and `./dev check` and `./dev test --all` run: exhaustive
# sweeps, and tests that wait for limits of seconds to pass. These are GoogleTest name patterns.
string(JOIN ":" STRETTO_SLOW_TESTS
  Collectives.EqualTheSerialOracle* *EveryAlgorithm* *RandomPrograms* *Canary*
  *DisagreementMatrix* Network.* ManyRanks.*)

# Tests that run alone, of the programs that start whole jobs: they check how soon something
# happens, or need a core for each rank.
string(JOIN ":" STRETTO_SERIAL_TESTS
  Faults.* Backward.* *Interrupted.* SystemCall.* Fork.* RunRestart.* ManyRanks.* Bench.*
  CompressionBench.*)

# Tests that mostly wait, and leave their core to others. They count as one processor and all other
# tests as two; `./dev` lets ctest run two processors' worth of tests per core.
string(JOIN ":" STRETTO_WAITING_TESTS
  Worlds/* *StoreContract* SharedPool.* *SaysRank* Waiting.* WhoIsLate* Lateness* Shrunk*
  RendezvousTest.* StripedLink* TcpLink* Socket.* Network.* Shortage* Elastic.* NamedGroups.*
  Unkillable.* RunEnd* RunLimits.* StoppedInBackward.* FaultsStop.* RemoteShell.*
  RoundsTest.* MembershipTest.* ElasticJobTest.*)
# The same for tests that run as whole suites; doubles of devices are slow on purpose.
set(STRETTO_WAITING_SUITES "^(Transport|SharedPool|Waiting|WhoIsLate|Lateness|NamedGroups|Shrunk|\
StripedLink|TcpLink|Device)|StoreContract|SaysRank|\
^((Rendezvous|Rounds|Membership|ElasticJob)Test|Socket|Shortage)$")

# Tests from which a sanitizer would learn nothing, and that take ten times as long with it: they
# count bytes or allocations, compare two ways to compute a price, measure how soon a call returns
# or is answered, read documents, or repeat others with more ranks or hosts.
set(STRETTO_UNSANITIZED_TESTS)
if(STRETTO_SANITIZE)
  string(JOIN ":" STRETTO_UNSANITIZED_TESTS
    *EveryAlgorithm.IsCorrectForManyRanks* TwoLevel.IsCorrectOnLayoutsOfNote
    TwoLevel.IsCorrectOnEqualHosts TwoLevel.NeedsMemory* AgreementTest.SurvivorsAgree*
    AlgorithmsDocument.* Cache.*
    BytesOnHosts.* ReducerAllocation.* ReducerMemory.* Estimate.Chooses* BesideLargeOnes.*
    Submission.OfALarge* Submission.OfALong* FastPath.GivesTheSameSumsWhoeverIsLate/400000
    CompressedReduction.BucketsDoNotMatter LongCollectives.*/ranks2_*
    Worlds/*/tls_striped Worlds/*/loopback_without_memory FastPath.*/2 FastPath.*/300
    *EveryAlgorithm.NeedsMemory* TwoLevel.IsCorrectOnRandomLayouts
    Algorithms.RootedOnesAreCorrectForEveryRoot
    RandomPrograms.*/ranks1* RandomPrograms.*/ranks4* RandomPrograms.*/ranks5*
    DisagreementMatrix.*_5_ranks)
endif()
# With ThreadSanitizer, also tests in which one thread does everything (see stretto_add_tests).
# NAME.* leaves out the whole suite; the instances of RandomPrograms with other threads stay.
if(STRETTO_SANITIZE MATCHES "thread")
  string(APPEND STRETTO_UNSANITIZED_TESTS ":Collectives.*:SegmentedCollectives.*:LongCollectives.*"
    ":CollectivesOnHosts.EqualTheSerialOracle/*:CollectivesOnHosts.InPlace*"
    ":CollectivesOnHosts.AnySegments*:CollectivesByWay.*:RandomPrograms.Equal*")
endif()

# Defines for tests the paths of the programs that they start and of the source tree. Only sources
# that use these definitions get them, so that ccache can reuse objects compiled elsewhere.
function(stretto_define_paths target)
  set(definitions
    STRETTO_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    STRETTO_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    STRETTO_TORCH_ENABLED=$<BOOL:${STRETTO_HAVE_TORCH}>)
  if(TARGET stretto_tool)
    list(APPEND definitions STRETTO_TOOL="$<TARGET_FILE:stretto_tool>")
    add_dependencies(${target} stretto_tool)
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} hits LIMIT_COUNT 1
      REGEX "STRETTO_(SOURCE_DIR|BIN_DIR|TOOL|TORCH_ENABLED)")
    if(hits AND STRETTO_UNITY)  # Else this source would be compiled alone.
      target_compile_definitions(${target} PRIVATE ${definitions})
      return()
    elseif(hits)
      set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "${definitions}")
    endif()
  endforeach()
endfunction()

function(stretto_add_program target uses_torch)
  cmake_parse_arguments(PARSE_ARGV 2 program "" "" "SOURCES;LIBRARIES")
  add_executable(${target} ${program_SOURCES})
  target_link_libraries(${target} PRIVATE stretto_build ${program_LIBRARIES})
  if(uses_torch)
    target_link_libraries(${target} PRIVATE stretto_torch)
    target_precompile_headers(${target} REUSE_FROM stretto_torch_header)
  endif()
endfunction()

# Adds one ctest test per suite, not per test: loading torch, or starting a sanitized program, takes
# longer than most tests. Tests outside these suites run together as TARGET.rest.
function(stretto_add_suites target)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(suites)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} lines REGEX "^TEST(_F|_P)?[(][A-Za-z0-9]+,")
    list(TRANSFORM lines REPLACE "^TEST[_FP]*[(]([A-Za-z0-9]+),.*" "\\1")
    list(APPEND suites ${lines})
  endforeach()
  list(REMOVE_DUPLICATES suites)
  set(rest "-${STRETTO_UNSANITIZED_TESTS}:")
  foreach(suite IN LISTS suites)
    string(APPEND rest "${suite}.*:*/${suite}.*:")
    if(":${STRETTO_UNSANITIZED_TESTS}:" MATCHES ":${suite}[.][*]:")  # All tests are left out.
      continue()
    endif()
    add_test(NAME ${suite}
      COMMAND ${target} --gtest_filter=${suite}.*:*/${suite}.*-${STRETTO_UNSANITIZED_TESTS})
    set(processors 2)
    if(suite MATCHES "${STRETTO_WAITING_SUITES}")
      set(processors 1)
    endif()
    set_tests_properties(${suite} PROPERTIES TIMEOUT ${STRETTO_SUITE_TIMEOUT_SECONDS}
      PROCESSORS ${processors} FAIL_REGULAR_EXPRESSION "Running 0 tests")
  endforeach()
  add_test(NAME ${target}.rest COMMAND ${target} --gtest_filter=${rest})
  set_tests_properties(${target}.rest PROPERTIES TIMEOUT ${STRETTO_SUITE_TIMEOUT_SECONDS}
    PROCESSORS 2)
endfunction()

# Discovers the tests that match `filter`, which ends with the patterns to leave out.
function(stretto_discover_tests target filter)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES
    TEST_FILTER "${filter}"
    PROPERTIES TIMEOUT ${STRETTO_TEST_TIMEOUT_SECONDS} ${ARGN})
endfunction()

function(stretto_add_test_program target uses_torch)
  if(NOT ARGN)
    return()
  endif()
  stretto_add_program(${target} ${uses_torch}
    SOURCES ${ARGN} LIBRARIES stretto_test_support GTest::gtest_main rapidcheck)
  set_target_properties(${target} PROPERTIES STRETTO_IS_TEST ON)
  stretto_define_paths(${target})
  if(NOT uses_torch)
    stretto_use_common_header(${target} test)
  endif()
  stretto_compile_together(${target})
  if(uses_torch OR STRETTO_SANITIZE)
    stretto_add_suites(${target} ${ARGN})
    return()
  endif()
  # A GoogleTest filter cannot intersect two lists of patterns, so each kind has its own filter.
  set(serial)
  if(target MATCHES "^end_to_end_")
    set(serial ${STRETTO_SERIAL_TESTS})
    stretto_discover_tests(${target} "ManyRanks.*-" RUN_SERIAL ON LABELS slow)
    stretto_discover_tests(${target} "${serial}-ManyRanks.*:" RUN_SERIAL ON)
  endif()
  set(slow ${STRETTO_SLOW_TESTS})
  set(slow_properties LABELS slow TIMEOUT ${STRETTO_SUITE_TIMEOUT_SECONDS})
  stretto_discover_tests(${target} "Network.*-" PROCESSORS 1 ${slow_properties})
  stretto_discover_tests(${target} "${STRETTO_WAITING_TESTS}-${slow}:" PROCESSORS 1)
  stretto_discover_tests(${target} "${slow}-Network.*:${serial}:" PROCESSORS 2 ${slow_properties})
  stretto_discover_tests(${target} "-${STRETTO_WAITING_TESTS}:${slow}:${serial}:" PROCESSORS 2)
endfunction()

# Keeps a layer's tests that mention threads or what starts threads (ranks, a server).
function(stretto_keep_sources_with_threads list)
  foreach(source IN LISTS ${list})
    file(STRINGS ${source} hits LIMIT_COUNT 1
      REGEX "[Tt]hread|std::async|run_ranks|on_all|_ranks\\(|[Ss]erver|join\\(")
    if(source MATCHES "_test\\.cc$" AND NOT hits)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
      list(REMOVE_ITEM ${list} ${source})
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# Splits the sources into a program without and one with libtorch; shared sources go to both.
function(stretto_add_tests name)
  # For ThreadSanitizer, compiling single-threaded tests would be wasted time.
  set(sources ${ARGN})
  if(STRETTO_SANITIZE MATCHES "thread")
    if(name MATCHES "^(stretto_(schedule|kernel|codec)|simulation)$")
      return()
    elseif(name MATCHES "^stretto_")
      stretto_keep_sources_with_threads(sources)
    endif()
  endif()
  set(plain)
  set(torch)
  foreach(source IN LISTS sources)
    stretto_includes_torch(uses_torch ${source})
    if(uses_torch)
      list(APPEND torch ${source})
    else()
      list(APPEND plain ${source})
    endif()
  endforeach()
  stretto_add_test_program(${name}_test OFF ${plain})
  if(TARGET stretto_torch AND torch)
    list(FILTER plain EXCLUDE REGEX "_test\\.cc$")
    stretto_add_test_program(${name}_torch_test ON ${torch} ${plain})
  endif()
endfunction()

# Tests of a core layer may use any other core layer, above all to run ranks as threads.
function(stretto_add_layer_tests)
  foreach(layer IN LISTS STRETTO_LAYERS)
    file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/stretto/${layer}/*_test.cc)
    list(FILTER tests EXCLUDE REGEX "/cuda/runtime/")
    if(TARGET stretto_${layer})
      stretto_add_tests(stretto_${layer} ${tests})
    endif()
  endforeach()
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*_test.cc)
  if(TARGET stretto_tool_parts)
    stretto_add_tests(stretto_tools ${tests})
    target_link_libraries(stretto_tools_test PRIVATE stretto_tool_parts)
  endif()
endfunction()

# Each folder of tests/ is one test program; *_program.cc in it is a program that the tests start.
# The tests share tests/support.
function(stretto_add_cross_layer_tests)
  file(GLOB support CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cc)
  add_library(stretto_test_support STATIC ${support})
  target_link_libraries(stretto_test_support PRIVATE stretto_build PUBLIC stretto GTest::gtest)
  stretto_use_common_header(stretto_test_support library)
  stretto_compile_together(stretto_test_support)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/support/double_ranks.cc PROPERTIES
    COMPILE_DEFINITIONS STRETTO_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  # Doubles of NCCL and of a device's driver, loaded at run time in the same way.
  file(GLOB double CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/fake_nccl/*.cc)
  add_library(fake_nccl MODULE ${double})
  target_link_libraries(fake_nccl PRIVATE stretto_build stretto_base)
  stretto_use_common_header(fake_nccl library)
  target_include_directories(fake_nccl PRIVATE ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(fake_nccl PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  if(STRETTO_HAVE_TORCH)  # A PyTorch device that runs on that driver.
    file(GLOB device CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/fake_device/*.cc)
    add_library(fake_device MODULE ${device})
    target_link_libraries(fake_device PRIVATE stretto_build stretto_cuda_driver stretto_libtorch)
    target_precompile_headers(fake_device REUSE_FROM stretto_torch_header)
    stretto_compile_together(fake_device)
    set_target_properties(fake_device PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  endif()
  file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/tests/*)
  list(FILTER folders EXCLUDE REGEX "/(support|compile_fail|install)$")
  if(STRETTO_SANITIZE)
    # MPI leaks memory, which sanitizers report. Whole jobs are slow, and run the same code that the
    # contract tests run in one process.
    list(FILTER folders EXCLUDE REGEX "/(chaos|differential|end_to_end)$")
  endif()
  foreach(folder IN LISTS folders)
    get_filename_component(name ${folder} NAME)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
    set(programs ${sources})
    list(FILTER programs INCLUDE REGEX "_program\\.cc$")
    list(FILTER sources EXCLUDE REGEX "_program\\.cc$")
    stretto_add_tests(${name} ${sources})
    stretto_add_helper_programs(${name} ${programs})
  endforeach()
  if(NOT STRETTO_SANITIZE)
    foreach(folder IN LISTS STRETTO_TEST_MPIS)
      stretto_add_tests_with_mpi(${folder})
    endforeach()
  endif()
  if(TARGET chaos_rank_program)
    target_sources(chaos_rank_program PRIVATE ${PROJECT_SOURCE_DIR}/tools/bench/pattern.cc)
    if(TARGET stretto_ucx)
      add_dependencies(chaos_rank_program stretto_ucx)
    endif()
  endif()
  # Compiles the GPU kernels as C++, with headers that replace CUDA's.
  target_include_directories(kernels_test BEFORE PRIVATE
    ${PROJECT_SOURCE_DIR}/tests/kernels/simulated)
  target_compile_options(kernels_test PRIVATE -Wno-unknown-pragmas)
  # Tests the systems that the driver of ./dev bench gpus measures, with ranks as threads.
  target_sources(nccl_test PRIVATE ${PROJECT_SOURCE_DIR}/bench/drivers/gpu_systems.cc)
  add_dependencies(nccl_test fake_nccl)
  add_dependencies(device_test fake_nccl)
  if(TARGET end_to_end_test)
    add_dependencies(end_to_end_test fake_nccl)
  endif()
  if(TARGET device_torch_test)
    add_dependencies(device_torch_test fake_device fake_nccl)
  endif()
endfunction()

function(stretto_add_helper_programs tests)
  foreach(source IN LISTS ARGN)
    get_filename_component(program ${source} NAME_WE)
    stretto_add_standalone(${program} ${source})
    foreach(test IN ITEMS ${tests}_test ${tests}_torch_test)
      if(TARGET ${test} AND TARGET ${program})
        add_dependencies(${test} ${program})
      endif()
    endforeach()
  endforeach()
endfunction()

# Adds a program from one source file, unless it needs libtorch or MPI and that is missing.
function(stretto_add_standalone program source)
  file(STRINGS ${source} uses_mpi LIMIT_COUNT 1 REGEX "^#include <mpi\\.h>")
  if(uses_mpi)
    stretto_add_mpi_program(${program} ${source})
    return()
  endif()
  stretto_includes_torch(uses_torch ${source})
  file(STRINGS ${source} uses_support LIMIT_COUNT 1 REGEX "^#include \"tests/support/")
  set(library stretto)
  if(uses_support)
    set(library stretto_test_support)
  endif()
  if(NOT uses_torch)
    stretto_add_program(${program} OFF
      SOURCES ${source} LIBRARIES ${library} ${STRETTO_EXTERNAL_programs})
    stretto_use_common_header(${program} library)
  elseif(TARGET stretto_torch)
    stretto_add_program(${program} ON
      SOURCES ${source} LIBRARIES ${library} ${STRETTO_EXTERNAL_programs})
  endif()
endfunction()

# Adds a test program that compares with MPI.
function(stretto_add_mpi_program program source)
  stretto_find_mpi()
  if(TARGET stretto::mpi)
    stretto_add_program(${program} OFF
      SOURCES ${source} LIBRARIES stretto_test_support stretto::mpi)
  endif()
endfunction()

# Runs the tests of MPI once more with each of these MPIs, which `./dev test --all` installs. The
# plug-in and the program that calls MPI are compiled against it; the tests find them by
# STRETTO_TEST_MPI, and its mpirun on PATH. With these, a missing part is a failure and not a skip.
set(STRETTO_TEST_MPIS "" CACHE STRING
  "Folders of MPIs (include/mpi.h, lib/libmpi.so, bin/mpirun) with which tests run besides")

function(stretto_add_test_with_mpi folder program filter)
  cmake_path(GET folder FILENAME name)
  add_test(NAME ${name}.${program} COMMAND ${program}_test --gtest_filter=${filter})
  set_tests_properties(${name}.${program} PROPERTIES LABELS slow TIMEOUT 600 PROCESSORS 2
    ENVIRONMENT STRETTO_TEST_MPI=${CMAKE_BINARY_DIR}/mpi/${name}
    ENVIRONMENT_MODIFICATION PATH=path_list_prepend:${folder}/bin
    FAIL_REGULAR_EXPRESSION "built without MPI;mpirun is not on PATH;Running 0 tests")
endfunction()

function(stretto_add_tests_with_mpi folder)
  foreach(file IN ITEMS include/mpi.h lib/libmpi.so bin/mpirun)
    if(NOT EXISTS ${folder}/${file})
      message(WARNING "STRETTO_TEST_MPIS names ${folder}, which has no ${file}: the tests with "
        "that MPI are left out; ./dev test --all installs it")
      return()
    endif()
  endforeach()
  cmake_path(GET folder FILENAME name)
  set(library mpi_of_${name})
  add_library(${library} INTERFACE)
  target_include_directories(${library} SYSTEM INTERFACE ${folder}/include)
  target_link_libraries(${library} INTERFACE ${folder}/lib/libmpi.so)
  set(place ${CMAKE_BINARY_DIR}/mpi/${name})
  stretto_compile_plugin(stretto_${library} mpi ${library} ${place})
  stretto_add_program(mpi_rank_program_${name} OFF
    SOURCES ${PROJECT_SOURCE_DIR}/tests/differential/mpi_rank_program.cc
    LIBRARIES stretto_test_support ${library})
  set_target_properties(mpi_rank_program_${name} PROPERTIES
    OUTPUT_NAME mpi_rank_program RUNTIME_OUTPUT_DIRECTORY ${place})
  stretto_add_test_with_mpi(${folder} contract "*/mpi*")
  # The tests that run many jobs differ by seeds and numbers of ranks, so a part of them is enough.
  # The tests of the build itself run collectives with another version of Open MPI.
  stretto_add_test_with_mpi(${folder} differential "*Mpi*seed1:*MpiCanary*:*MpiThreads*")
  set(left_out "MpiPlane.GivesTheValues*")
  if(name STREQUAL "openmpi")
    string(APPEND left_out ":MpiPlane.RunsCollectives*")
  endif()
  stretto_add_test_with_mpi(${folder} end_to_end "MpiPlane.*:Mpirun.*-${left_out}")
endfunction()

# Builds a program from every *_bench.cc of a layer, if Google Benchmark is installed.
function(stretto_add_benchmarks)
  find_package(benchmark QUIET)
  foreach(layer IN LISTS STRETTO_CORE_LAYERS)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/stretto/${layer}/*_bench.cc)
    foreach(source IN LISTS sources)
      get_filename_component(program ${source} NAME_WE)
      if(TARGET benchmark::benchmark)
        stretto_add_program(${program} OFF
          SOURCES ${source} LIBRARIES stretto_${layer} benchmark::benchmark_main)
      endif()
    endforeach()
  endforeach()
endfunction()

# Where everything is compiled for libFuzzer (STRETTO_SANITIZE has fuzzer-no-link), every *_fuzz.cc
# is a program, and the target `fuzzers` is all of them. `// Sources:` in it names what it is linked
# with besides base; without that it is its layer. ./dev fuzz builds and runs them.
function(stretto_add_fuzz_targets)
  add_custom_target(fuzzers)
  # This source has all variants of all reductions: clang takes more than seven minutes to
  # instrument these loops, which no decoder reaches.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/stretto/kernel/kernels.cc PROPERTIES
    COMPILE_OPTIONS -fno-sanitize=all SKIP_PRECOMPILE_HEADERS ON)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/stretto/*_fuzz.cc ${PROJECT_SOURCE_DIR}/tools/*_fuzz.cc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM program)
    cmake_path(GET source PARENT_PATH folder)
    set(parts)
    file(STRINGS ${source} lines REGEX "^// Sources: ")
    foreach(line IN LISTS lines)
      string(REPLACE "// Sources: " "" line "${line}")
      separate_arguments(names UNIX_COMMAND "${line}")
      list(TRANSFORM names PREPEND ${folder}/)
      list(APPEND parts ${names})
    endforeach()
    set(library stretto_base)
    if(NOT parts)
      cmake_path(GET folder FILENAME layer)
      set(library stretto_${layer})
    endif()
    stretto_add_program(${program} OFF SOURCES ${source} ${parts}
      LIBRARIES ${library} OpenSSL::Crypto nlohmann_json::nlohmann_json)
    stretto_use_common_header(${program} library)
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(fuzzers ${program})
  endforeach()
endfunction()

function(stretto_add_examples)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cc)
  foreach(source IN LISTS sources)
    get_filename_component(program ${source} NAME_WE)
    stretto_add_standalone(${program} ${source})
  endforeach()
endfunction()

# Builds the drivers of ./dev bench peers that need no other library: stretto's, and those of the
# bounds. They share tools/bench/measure.h and pattern.cc with `stretto bench`.
function(stretto_add_bench_drivers)
  add_library(stretto_bench_driver STATIC bench/drivers/driver.cc tools/bench/pattern.cc)
  target_link_libraries(stretto_bench_driver PRIVATE stretto_build)
  foreach(name IN ITEMS stretto bare)
    stretto_add_program(${name}_driver OFF
      SOURCES bench/drivers/${name}_driver.cc LIBRARIES stretto_bench_driver stretto)
  endforeach()
  target_sources(bare_driver PRIVATE tools/bench/copy_bound.cc)
  # For ./dev bench hosts --training.
  stretto_add_program(wire_driver OFF SOURCES bench/drivers/wire_driver.cc LIBRARIES stretto)
  stretto_add_program(join_driver OFF SOURCES bench/drivers/join_driver.cc LIBRARIES stretto)
  # For ./dev bench gpus.
  stretto_add_program(gpu_driver OFF
    SOURCES bench/drivers/gpu_driver.cc bench/drivers/gpu_systems.cc LIBRARIES stretto)
  # For ./dev bench ddp.
  if(TARGET stretto_torch)
    stretto_add_program(ddp_driver ON SOURCES bench/drivers/ddp_driver.cc LIBRARIES stretto)
  endif()
endfunction()

# Runs scripts/*_test.py and bench/*_test.py. They find the programs of this build by
# STRETTO_BUILD_DIR, and STRETTO_HAVE_TORCH (ON or OFF) says whether those with torch exist.
# --verbose is needed to see why tests are skipped.
function(stretto_add_script_tests)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  foreach(folder IN ITEMS scripts bench)
    file(GLOB scripts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*_test.py)
    foreach(script IN LISTS scripts)
      get_filename_component(name ${script} NAME_WE)
      add_test(NAME ${folder}.${name} COMMAND ${Python3_EXECUTABLE} -m unittest --verbose ${name}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
      set(processors 2)
      if(name MATCHES "^hosts_")  # These wait for slow networks.
        set(processors 1)
      endif()
      # One of these tests compiles a program that includes libtorch.
      set_tests_properties(${folder}.${name} PROPERTIES
        TIMEOUT 300 PROCESSORS ${processors} COST 50)
      set_property(TEST ${folder}.${name} PROPERTY ENVIRONMENT
        STRETTO_BUILD_DIR=${PROJECT_BINARY_DIR} STRETTO_HAVE_TORCH=${STRETTO_HAVE_TORCH})
    endforeach()
  endforeach()
endfunction()

# Runs python/tests/*_test.py, which import the package of this build as if installed. One program
# runs them all, because loading torch takes longer than most of these tests.
function(stretto_add_python_tests)
  if(NOT STRETTO_HAVE_PYTHON)
    return()
  endif()
  set(tests ${PROJECT_SOURCE_DIR}/python/tests)
  set(runner -m unittest discover --verbose --start-directory ${tests} --pattern *_test.py)
  execute_process(COMMAND ${STRETTO_PYTHON} -c "import pytest"
    RESULT_VARIABLE lacks_pytest ERROR_QUIET)
  if(NOT lacks_pytest)
    set(runner -m pytest -p no:cacheprovider -r fEs ${tests})  # s: why tests are skipped.
  endif()
  add_test(NAME python COMMAND ${STRETTO_PYTHON} ${runner})
  set(environment PYTHONPATH=${CMAKE_BINARY_DIR}/python PYTHONDONTWRITEBYTECODE=1
    STRETTO_PROGRAM=$<TARGET_FILE:stretto_tool> STRETTO_BUILD_DIR=${PROJECT_BINARY_DIR})
  set_tests_properties(python PROPERTIES TIMEOUT 900 COST 100 PROCESSORS 2
    ENVIRONMENT "${environment}")
endfunction()
