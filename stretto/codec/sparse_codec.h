// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/codec/codec.h"

namespace stretto::codec {

// ", bf16 values"; empty for f32.
const char* suffix(ValueFormat format);

// Messages with some elements: their indices, then their values, each padded to 8 bytes. Derived
// codecs choose the elements.
class SparseCodec : public Codec {
 protected:
  SparseCodec(Kind kind, const std::string& name, ValueFormat format)
      : Codec(kind, name + suffix(format)), format_(format) {}

  // Leaves the chosen elements at the beginning of the scratch, by ascending index, sets them to
  // zero in the carry, and returns their number.
  virtual std::size_t choose(const Task& task) const = 0;

  bool is_sparse() const override { return true; }
  std::size_t payload_bytes(std::size_t count, std::size_t values) const override;
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override;
  bool read(const Payload& payload, std::span<float> sums) const override;
  void write_extract(const Extract& extract, std::size_t count,
                     std::span<std::byte> payload) const override;
  bool read_extract(const Payload& payload, Extract& extract) const override;
  // Adds the format of values to `taken`, which says what elements to take.
  Extraction in_format(Extraction taken) const;

 private:
  // Adds the values at `from`, of type Number, to `sums`.
  template <class Number>
  bool add_read(const Payload& payload, std::span<const std::byte> from,
                std::span<float> sums) const;

  const ValueFormat format_;
};

}  // namespace stretto::codec
