# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# Run by ctest: cmake -D SOURCE=... -D WRONG=... -D EXPECTED=... -P compile_fail.cmake -- COMMAND...
#
# SOURCE must not compile with WRONG defined, and the compiler must say what the regular expressions
# EXPECTED say. Without WRONG it must, so that what it is about is the only thing wrong with it.

set(command)
set(reading OFF)
foreach(index RANGE ${CMAKE_ARGC})
  if(reading)
    list(APPEND command ${CMAKE_ARGV${index}})
  elseif("${CMAKE_ARGV${index}}" STREQUAL "--")
    set(reading ON)
  endif()
endforeach()
if(WRONG)
  list(APPEND command -D${WRONG})
endif()

execute_process(COMMAND ${command} ${SOURCE} RESULT_VARIABLE status ERROR_VARIABLE errors)
if(NOT WRONG AND NOT status EQUAL 0)
  message(FATAL_ERROR "does not compile:\n${errors}")
elseif(WRONG AND status EQUAL 0)
  message(FATAL_ERROR "compiles with ${WRONG}")
endif()
string(REPLACE " & " ";" patterns "${EXPECTED}")
foreach(pattern IN LISTS patterns)
  if(NOT errors MATCHES "${pattern}")
    message(FATAL_ERROR "the compiler does not say \"${pattern}\" but:\n${errors}")
  endif()
endforeach()
