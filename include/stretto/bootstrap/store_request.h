// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stretto::bootstrap {

// What a store can be asked. Clients send the numbers; docs/internals/wire_format.md lists them.
enum class StoreOperation : std::uint8_t {
  set = 1,
  get = 2,
  add = 3,
  compare_set = 4,
  wait = 5,
  check = 6,
  delete_key = 7,
  append = 8,
  list_keys = 9,
  will = 10,
};

// One request. The texts belong to the caller.
struct StoreRequest {
  StoreOperation operation = StoreOperation::get;
  std::string_view key = {};       // Of list_keys: the prefix of the keys; may be empty.
  std::string_view value = {};     // Of set, compare_set (the desired value), append and will.
  std::string_view expected = {};  // Of compare_set. Of list_keys: the last key of the page before.
                                   // Of will: the key that revokes it.
  std::int64_t amount = 0;         // Of add.
};

struct StoreReply {
  std::string value = {};   // For get and compare_set. For list_keys: a page of them, in ascending
                            // order (store_page.h).
  std::int64_t number = 0;  // For add: the new number. For check and delete_key: 1 yes, 0 no. For
                            // list_keys: how many there are on this page and later ones.
};

}  // namespace stretto::bootstrap
