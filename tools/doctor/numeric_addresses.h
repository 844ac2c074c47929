// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <netdb.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace stretto::tools::doctor {

// "10.0.4.7".
inline std::string numeric_address(const addrinfo& entry) {
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(entry.ai_addr, entry.ai_addrlen, text.data(), text.size(),
                                  nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : ::gai_strerror(error);
}

// Of all that a name has been resolved to, each once.
inline std::vector<std::string> numeric_addresses(const addrinfo& first) {
  std::vector<std::string> texts;
  for (const addrinfo* entry = &first; entry != nullptr; entry = entry->ai_next) {
    std::string text = numeric_address(*entry);
    if (std::ranges::count(texts, text) == 0) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace stretto::tools::doctor
