// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_page.h"

#include <array>
#include <cstdint>
#include <span>

#include "stretto/base/little_endian.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {
namespace {

constexpr std::size_t kLengthBytes = 2;

}  // namespace

bool add_to_page(std::string& page, std::string_view key) {
  if (page.size() + kLengthBytes + key.size() > kMaxValueBytes) return false;
  std::array<std::byte, kLengthBytes> length{};
  store_little_endian(length.data(), static_cast<std::uint16_t>(key.size()));
  page.append(reinterpret_cast<const char*>(length.data()), length.size());
  page.append(key);
  return true;
}

Result<std::vector<std::string>> keys_of_page(std::string_view page) {
  std::vector<std::string> keys;
  while (!page.empty()) {
    const Status broken(StatusCode::protocol, "a list of keys that is cut off");
    if (page.size() < kLengthBytes) return broken;
    const std::size_t length = load_little_endian<std::uint16_t>(
        std::as_bytes(std::span(page.data(), kLengthBytes)).data());
    page.remove_prefix(kLengthBytes);
    if (page.size() < length) return broken;
    keys.emplace_back(page.substr(0, length));
    page.remove_prefix(length);
  }
  return keys;
}

}  // namespace stretto::bootstrap
