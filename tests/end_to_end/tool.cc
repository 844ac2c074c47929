// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/end_to_end/tool.h"

namespace stretto::testing {

const char* const kToolPath = STRETTO_TOOL;

}  // namespace stretto::testing
