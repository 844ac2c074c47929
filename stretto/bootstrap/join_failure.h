// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>

#include "stretto/base/status.h"

namespace stretto::bootstrap {

// The key under which a store holds why a job cannot be joined. The first rank that fails, the will
// of one that died, or the server that refused one of the job's own ranks sets it; all others watch
// it and end with it.
inline constexpr std::string_view kJoinFailureKey = "join-failure";
// The key under which a server notes the last of the peers that it refused and that may be
// anybody's: a hint for who waits in vain.
inline constexpr std::string_view kRefusedPeerKey = "refused-peer";

// A failure as a value of the store, cut to what fits.
std::string encode_join_failure(const Status& failure);
// The reverse. The text may come from anyone who can write to the store: it is cut and made fit for
// a terminal. What one rank cannot answer for another (out of memory, say) becomes aborted.
Status decode_join_failure(std::string_view text);

}  // namespace stretto::bootstrap
