// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>

#include "stretto/base/status.h"

namespace stretto::bootstrap {

// The store's key for the reason why a job cannot be joined. The first rank that fails sets it, or
// the will of a rank that died, or the server when it refuses one of the job's own ranks. All other
// ranks watch the key and fail with the reason.
inline constexpr std::string_view kJoinFailureKey = "join-failure";
// The store's key for the last refused peer that may belong to another job: a hint for ranks that
// wait in vain.
inline constexpr std::string_view kRefusedPeerKey = "refused-peer";

// A failure as a value of the store. Its message is cut to 2048 bytes.
std::string encode_join_failure(const Status& failure);
// The reverse. Any process that can write to the store may have written the text, so its message is
// cut and made printable. A code that only concerns the other rank (out_of_memory, for example)
// becomes aborted.
Status decode_join_failure(std::string_view text);

}  // namespace stretto::bootstrap
