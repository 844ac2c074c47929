// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_page.h"

#include <cstdint>

#include "stretto/base/little_endian.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint16_t);

}  // namespace

bool add_to_page(std::string& page, std::string_view key) {
  if (page.size() + kLengthBytes + key.size() > kMaxValueBytes) return false;
  append_little_endian(page, static_cast<std::uint16_t>(key.size()));
  page.append(key);
  return true;
}

Result<std::vector<std::string>> keys_of_page(std::string_view page, const StoreRequest& request) {
  std::vector<std::string> keys;
  std::string_view last = request.expected;
  while (!page.empty()) {
    const Status broken(StatusCode::protocol, "a list of keys that is cut off");
    if (page.size() < kLengthBytes) return broken;
    const std::size_t length = load_little_endian<std::uint16_t>(page);
    page.remove_prefix(kLengthBytes);
    if (page.size() < length) return broken;
    const std::string_view key = page.substr(0, length);
    if (!key.starts_with(request.key) || key <= last) {
      return status_of(StatusCode::protocol, "a list has keys that were not asked for");
    }
    keys.emplace_back(key);
    last = key;
    page.remove_prefix(length);
  }
  return keys;
}

}  // namespace stretto::bootstrap
