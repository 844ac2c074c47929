// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdio>
#include <exception>

namespace stretto::testing {

// What main() of a rank returns: 0, or 1 after "wrong" and why on a line.
template <class Work>
int run_or_explain(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    std::printf("wrong %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace stretto::testing
