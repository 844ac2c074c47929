// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdlib>
#include <string>

namespace stretto::testing {

// Whether the tests run with another MPI than the one that CMake has found. Then everything that
// they need of it is there.
inline bool has_chosen_mpi() { return std::getenv("STRETTO_TEST_MPI") != nullptr; }

// Returns the path of the plug-in or of a program that calls MPI: in `usual`, the folder of all
// programs, or in the folder of those compiled against the other MPI.
inline std::string mpi_file(const std::string& usual, const std::string& name) {
  return (has_chosen_mpi() ? std::getenv("STRETTO_TEST_MPI") : usual) + "/" + name;
}

}  // namespace stretto::testing
