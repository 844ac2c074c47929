// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/bootstrap/store_request.h"

namespace stretto::bootstrap {

// A page of a store's keys, as it travels in the value of a reply: for each key its length in two
// bytes, little-endian, and the key.

// Adds a key. Returns false, and adds nothing, if the page would be longer than a value may be.
bool add_to_page(std::string& page, std::string_view key);
// The keys of a page that answers `request`. The page may come from a peer: fails with protocol if
// it is malformed, has keys that were not asked for, or is not in ascending order.
Result<std::vector<std::string>> keys_of_page(std::string_view page, const StoreRequest& request);

}  // namespace stretto::bootstrap
