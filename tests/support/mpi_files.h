// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdlib>
#include <string>

namespace stretto::testing {

// Whether the tests run with another MPI than that which CMake has found: then all that they need
// of it is there.
inline bool has_chosen_mpi() { return std::getenv("STRETTO_TEST_MPI") != nullptr; }

// Where the plug-in is and the programs that call MPI: in `usual`, the folder of all programs, or
// where those are that have been compiled against the other MPI.
inline std::string mpi_file(const std::string& usual, const std::string& name) {
  return (has_chosen_mpi() ? std::getenv("STRETTO_TEST_MPI") : usual) + "/" + name;
}

}  // namespace stretto::testing
