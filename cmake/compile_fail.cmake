# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Run by ctest: cmake -D SOURCE=... -P compile_fail.cmake -- COMPILER FLAG...
#
# SOURCE must compile, so that what it is about is the only thing wrong with it; with STRETTO_WRONG
# it must not, and the compiler must say what the regular expressions behind "// Expected: " say.

set(command)
set(reading OFF)
foreach(index RANGE ${CMAKE_ARGC})
  if(reading)
    list(APPEND command ${CMAKE_ARGV${index}})
  elseif("${CMAKE_ARGV${index}}" STREQUAL "--")
    set(reading ON)
  endif()
endforeach()

execute_process(COMMAND ${command} ${SOURCE} RESULT_VARIABLE status ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "does not compile without STRETTO_WRONG:\n${errors}")
endif()

execute_process(COMMAND ${command} -DSTRETTO_WRONG ${SOURCE}
  RESULT_VARIABLE status ERROR_VARIABLE errors)
if(status EQUAL 0)
  message(FATAL_ERROR "compiles with STRETTO_WRONG")
endif()

file(STRINGS ${SOURCE} expected REGEX "^// Expected: ")
if(NOT expected)
  message(FATAL_ERROR "the file does not say what is expected: // Expected: REGEX")
endif()
foreach(line IN LISTS expected)
  string(REGEX REPLACE "^// Expected: " "" pattern "${line}")
  if(NOT errors MATCHES "${pattern}")
    message(FATAL_ERROR "the compiler does not say \"${pattern}\" but:\n${errors}")
  endif()
endforeach()
