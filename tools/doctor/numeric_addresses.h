// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <netdb.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "stretto/bootstrap/socket.h"

namespace stretto::tools::doctor {

// Of all that a name has been resolved to, each once.
inline std::vector<std::string> numeric_addresses(const addrinfo& first) {
  std::vector<std::string> texts;
  for (const addrinfo* entry = &first; entry != nullptr; entry = entry->ai_next) {
    std::string text = bootstrap::numeric_host(*entry->ai_addr);
    if (std::ranges::count(texts, text) == 0) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace stretto::tools::doctor
