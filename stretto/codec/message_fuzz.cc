// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Bytes that another rank may send in place of a message of compressed gradients. The first byte
// chooses the codec and what is repaired: a matching header and a correct checksum let payloads be
// reached. Decoding must end whatever the bytes are, and touch nothing but its own buffers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "stretto/base/content_hash.h"
#include "stretto/codec/codec.h"
#include "stretto/codec/header.h"
#include "stretto/codec/index_set.h"
#include "stretto/codec/rows.h"
#include "stretto/codec/whole_codec.h"

namespace {

using namespace stretto;

constexpr std::size_t kCount = 300;
constexpr std::size_t kLongCount = codec::kSection + kCount;

const std::vector<std::shared_ptr<const Codec>>& codecs() {
  static const std::vector<std::shared_ptr<const Codec>> all = {
      dense(),
      nonzeros(),
      top_k({.density = 0.05}),
      top_k({.density = 0.3, .values = ValueFormat::bf16}),
      top_k({.density = 0.05, .exact = false}),
      threshold({.limit = 1}),
      threshold({.limit = 1, .values = ValueFormat::int8}),
      f16(),
      bf16(),
      int8(),
      one_bit()};
  return all;
}

// Decodes with decode_add() and, if the codec has an extraction, also with decode_extract(), which
// must fail alike.
Result<std::size_t> decode(const Codec& codec, std::span<const std::byte> bytes,
                           codec::Scratch& scratch) {
  std::vector<float> sums(kCount);
  Result<std::size_t> length = codec.decode_add(bytes, {}, scratch, sums);
  const auto how = codec.extraction(kCount, {});
  if (!how) return length;
  const auto extract = codec.decode_extract(bytes, {}, scratch, kCount);
  if (extract.ok() != length.ok()) std::abort();
  if (!extract.ok()) return length;
  const auto& [indices, numbers] = extract.value();
  if (!how->least && indices.size() != how->greatest) std::abort();
  const std::size_t elements = extract.value().has_all() ? kCount : indices.size();
  if (numbers.size() != how->number_bytes(elements)) std::abort();
  std::size_t least = 0;
  for (const std::uint32_t index : indices) {
    if (index < least || index >= kCount) std::abort();
    least = index + 1;
  }
  return length;
}

// Gives `message` the header that `codec` writes, except for the flags and, if the length depends
// on it, the number of values.
void mend(const Codec& codec, std::vector<std::byte>& message) {
  std::vector<float> carry(kCount), gradient(kCount);
  codec::Scratch scratch;
  std::vector<std::byte> good;
  codec.encode({carry, gradient, {}}, scratch, good);
  codec::Header header, found;
  std::memcpy(&header, good.data(), sizeof(header));
  if (message.size() < sizeof(header)) message.resize(sizeof(header));
  std::memcpy(&found, message.data(), sizeof(found));
  const auto fixed = codec.message_bytes(kCount, 0);
  header.flags = found.flags;
  if (fixed) {
    message.resize(*fixed);
  } else {
    header.values = found.values % (kCount + 2);
    message.resize(codec.max_message_bytes(kCount));
  }
  const auto prefix = std::as_bytes(std::span(&header, 1)).first(offsetof(codec::Header, checksum));
  // If the length depends on the header, all lengths are tried.
  for (std::size_t bytes = fixed ? message.size() : sizeof(header); bytes <= message.size();
       bytes += 8) {
    const auto payload =
        std::span<const std::byte>(message).subspan(sizeof(header), bytes - sizeof(header));
    header.checksum = content_hash(payload, content_hash(prefix));
    std::memcpy(message.data(), &header, sizeof(header));
    const auto length = decode(codec, message, scratch);
    if (length.ok() && length.value() != bytes) std::abort();
  }
}

// If the codec has sections: decodes `bytes` as the payload of a message with several sections.
void add_by_sections(const Codec& codec, std::span<const std::byte> bytes) {
  const auto length = codec.message_bytes(kLongCount, 0);
  if (codec.section() == 0 || !length) return;
  std::vector<float> carry(kLongCount), sums(kLongCount);
  codec::Scratch scratch;
  std::vector<std::byte> message;
  codec.encode({carry, sums, {}}, scratch, message);
  codec::Header header;
  std::memcpy(&header, message.data(), sizeof(header));
  for (std::size_t i = sizeof(header); i < message.size(); ++i) {
    if (!bytes.empty()) message[i] = bytes[(i - sizeof(header)) % bytes.size()];
  }
  codec::seal(header, message);
  const auto checked = codec.check(message, {}, scratch, kLongCount);
  if (!checked.ok() || checked.value() != *length) std::abort();
  for (std::size_t first = 0; first < kLongCount; first += codec.section()) {
    const std::size_t count = std::min(codec.section(), kLongCount - first);
    codec.add_section(message, kLongCount, first, std::span(sums).subspan(first, count));
  }
}

// An index set that can be read is exactly what would be written for its indices.
void check_indices(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return;
  const std::size_t universe = 1 + std::to_integer<std::size_t>(bytes[0]) * 3;
  std::vector<std::uint32_t> indices(std::to_integer<std::size_t>(bytes[1]) % (universe + 1));
  std::vector<std::byte> set(codec::index_set_bytes(universe, indices.size()));
  const std::size_t there = std::min(set.size(), bytes.size() - 2);
  if (there > 0) std::memcpy(set.data(), bytes.data() + 2, there);
  if (!codec::read_index_set(set, universe, indices)) return;
  std::vector<std::byte> again(set.size());
  codec::write_index_set(indices, universe, again);
  if (again != set) std::abort();
}

// Rows get a matching header and a correct checksum. If they can be read, they are exactly what
// would be written.
void check_rows(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const codec::RowsFormat format{.universe = kCount, .row_elements = 2};
  std::vector<std::uint32_t> rows(std::to_integer<std::size_t>(bytes[0]) % 40);
  std::vector<float> values(2 * rows.size());
  (void)codec::read_rows(bytes, format, rows, values.data());
  std::iota(rows.begin(), rows.end(), 0u);
  std::vector<std::byte> message;
  codec::write_rows(format, rows, values.data(), message);
  codec::Header header;
  std::memcpy(&header, message.data(), sizeof(header));
  const std::size_t there = std::min(message.size() - sizeof(header), bytes.size() - 1);
  std::copy_n(bytes.begin() + 1, there, message.begin() + sizeof(header));
  codec::seal(header, message);
  if (!codec::read_rows(message, format, rows, values.data()).ok()) return;
  std::vector<std::byte> again;
  codec::write_rows(format, rows, values.data(), again);
  if (again != message) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const Codec& codec = *codecs()[data[0] % codecs().size()];
  check_indices(bytes);
  check_rows(bytes);
  codec::Scratch scratch;
  const auto length = decode(codec, bytes, scratch);
  if (length.ok() && length.value() > bytes.size()) std::abort();
  std::vector<std::byte> message(bytes.begin(), bytes.end());
  if (data[0] >= 128) mend(codec, message);
  if (data[0] >= 192) add_by_sections(codec, bytes);
  return 0;
}
