// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/pickle.h"

#include <bit>
#include <cstdint>

#include <nlohmann/json.hpp>

namespace stretto::communicator {
namespace {

using nlohmann::json;

void append_little_endian(std::string& text, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

void append_text(std::string& text, const std::string& value) {
  text += 'X';  // BINUNICODE
  append_little_endian(text, value.size(), 4);
  text += value;
}

void append(std::string& text, const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      text += "}(";  // EMPTY_DICT, MARK
      for (const auto& [key, entry] : value.items()) {
        append_text(text, key);
        append(text, entry);
      }
      text += 'u';  // SETITEMS
      return;
    case json::value_t::array:
      text += "](";  // EMPTY_LIST, MARK
      for (const json& entry : value) append(text, entry);
      text += 'e';  // APPENDS
      return;
    case json::value_t::string:
      return append_text(text, value.get_ref<const std::string&>());
    case json::value_t::boolean:
      text += value.get<bool>() ? '\x88' : '\x89';
      return;
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      text += "\x8a\x08";  // LONG1, of eight bytes
      return append_little_endian(text, static_cast<std::uint64_t>(value.get<std::int64_t>()), 8);
    case json::value_t::number_float: {
      text += 'G';  // BINFLOAT, which has its highest byte first.
      std::string bits;
      append_little_endian(bits, std::bit_cast<std::uint64_t>(value.get<double>()), 8);
      text.append(bits.rbegin(), bits.rend());
      return;
    }
    default:
      text += 'N';
  }
}

}  // namespace

std::string pickled(const json& value) {
  std::string text = "\x80\x02";
  append(text, value);
  text += '.';
  return text;
}

}  // namespace stretto::communicator
