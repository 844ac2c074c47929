// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/end_to_end/tool.h"

namespace stretto::testing {

const char* const kToolPath = STRETTO_TOOL;

bool has_ucx() { return std::filesystem::exists(STRETTO_BIN_DIR "/libstretto_ucx.so"); }

}  // namespace stretto::testing
