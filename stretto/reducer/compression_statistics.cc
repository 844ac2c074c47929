// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compression_statistics.h"

#include "stretto/base/name_in.h"

namespace stretto {

std::string_view name(CompressionReason reason) {
  return name_in({"always", "never", "dense_steps", "warm_up", "on_trial", "measured", "predicted",
                  "too_small", "no_codec", "left_out"},
                 reason, "unknown reason");
}

}  // namespace stretto
