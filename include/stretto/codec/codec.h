// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/status.h"
#include "stretto/codec/compressor.h"

namespace stretto {

// What happens to infinities and NaN in the values to send. They never stay in a residual.
enum class NonFinite : std::uint8_t {
  send,  // They are sent, so that training sees them. If a message has no room for all of them, it
         // holds nothing else, and the rest of them is dropped.
  stop,  // The message only says that there are some, and decoding it fails: all ranks fail alike.
  zero,  // They count as zero.
};

// How the values of a sparse message travel.
enum class ValueFormat : std::uint8_t { f32, bf16, int8 };

namespace codec {

struct Header;

// Memory that encoders and decoders use in turn; it grows to the largest need. One thread at a
// time.
struct Scratch {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;  // At these indices.
  std::vector<std::uint32_t> magnitudes;
};

// The context of a message, beside its values. Except for `own_key`, it must be the same for
// encoding and decoding.
struct Position {
  std::uint64_t step = 0;     // Counted from 0.
  std::uint64_t own_key = 0;  // Seed of stochastic rounding.
  // Hash of whatever else both sides must agree on; a message with another hash is rejected.
  std::uint32_t context_hash = 0;
};

struct Encoding {
  // In: the residual. The gradient is added to it, and what the message does not say stays in it.
  std::span<float> carry;
  std::span<const float> gradient;
  Position position;
  NonFinite non_finite = NonFinite::send;
  // State that the codec keeps from step to step; initially zero. It only affects speed, except for
  // top_k() that is not exact, where the next message depends on it.
  std::uint32_t* hint = nullptr;
  // Empty, or as long as the carry: becomes zero at each element of which a sparse message has a
  // value. A message of nonzeros() that has all values is not sparse.
  std::span<float> cleared = {};
  // When a sum is encoded: the rank whose message has stopped it (NonFinite::stop). If this message
  // stops, too, it names that rank.
  std::optional<Rank> stopped_by = std::nullopt;
};

// The part of encoding that looks at every element, described for code that runs it in device
// memory. NonFinite::stop is not supported there.
struct Extraction {
  // How many elements to take out: those with the greatest magnitudes, chosen as the Codec does.
  // They become zero in the vector. 0: all elements, or those that `least` selects.
  std::size_t greatest = 0;
  // If set, all elements of at least this magnitude are taken out. If these are more than `most`,
  // all elements are, as if it were not set.
  std::optional<float> least = std::nullopt;
  std::size_t most = std::numeric_limits<std::size_t>::max();
  // The type to which elements that are taken out are rounded (to nearest, unless `key` is set);
  // the rounding error is put back into the vector. f16 or bf16: finite values are clipped to
  // `limit`. i8: codes, then scales, as by int8(). boolean: for each section, words of 64 signs,
  // then scales, as by one_bit(). For infinity and NaN, and for all signs that share a scale with
  // one, zero is put back. Empty: f32, unrounded.
  std::optional<DType> rounded = std::nullopt;
  float limit = 0;
  std::size_t block = 0;    // How many i8 or boolean share a scale.
  std::size_t section = 0;  // Elements of a section of boolean; see `rounded`.
  // If set, i8 are rounded stochastically, as kernel::Rounding does with this key.
  std::optional<std::uint64_t> key = std::nullopt;

  bool takes_all() const { return greatest == 0 && !least; }
  // The length of the rounded numbers of so many elements.
  std::size_t number_bytes(std::size_t elements) const {
    const std::size_t blocks = block > 0 ? (elements + block - 1) / block : 0;
    if (rounded == DType::i8) return elements + blocks;
    if (rounded == DType::boolean) return (elements + 63) / 64 * 8 + blocks * sizeof(float);
    return elements * size_bytes(rounded.value_or(DType::f32));
  }
};

// The result of an Extraction, and the content of a message.
struct Extract {
  bool has_all() const { return indices.empty() && !numbers.empty(); }

  std::span<const std::uint32_t> indices =
      {};  // Of the elements taken out, ascending; empty if all.
  std::span<const std::byte> numbers = {};
};

}  // namespace codec

// Encodes vectors of floats as messages (docs/internals/wire_format.md), and decodes these. Vectors
// have fewer than 2^32 elements.
//
// The message plus what is left in the carry equals carry + gradient, where this sum is rounded
// once, like every addition of floats. That is exact (bit for bit, but for the sign of zero) for
// dense(), for f16() and bf16() where they do not clip, and for values in f32, in bf16, and in int8
// rounded to nearest. Otherwise the error is at most half a unit in the last place of the
// difference; for int8 rounded stochastically and for one_bit() that is at most 2^-23 of the
// greatest magnitude of the block. All this holds for finite values; for others see NonFinite.
class Codec : public Compressor {
 public:
  // The length of the message of a vector; nothing if it depends on the values.
  std::optional<std::size_t> message_bytes(std::size_t count, std::uint64_t step) const;
  bool has_fixed_length() const { return message_bytes(0, 0).has_value(); }
  // The length of a message that has `elements` of the vector's `count` elements.
  std::size_t extract_bytes(std::size_t count, std::size_t elements) const;
  // An upper bound of the length of a vector's message.
  std::size_t max_message_bytes(std::size_t count) const;

  // Whether messages contain no number beyond a limit, however great the vector's numbers are:
  // f16(), and bf16() that clips. Sums of such messages may exceed the limit.
  virtual bool is_bounded() const { return false; }
  // Whether messages contain only some of the elements.
  virtual bool is_sparse() const { return false; }

  // Appends a message to `out`; returns how many values it contains.
  std::size_t encode(const codec::Encoding& encoding, codec::Scratch& scratch,
                     std::vector<std::byte>& out) const;
  // Decodes the message at the beginning of `bytes`, adds its vector to `sums`, and returns the
  // length of the message. `bytes` may be anything; memory is taken for `sums.size()` elements at
  // most. Fails with mismatch if the message has another codec, other settings, another version or
  // vector length; with invalid_argument if the sender had infinities or NaN (NonFinite::stop),
  // with the rank that the message names, if any, which is unchecked and may be any number from 0
  // on; with protocol if no codec makes such bytes. After a failure `sums` may have changed.
  Result<std::size_t> decode_add(std::span<const std::byte> bytes, const codec::Position& position,
                                 codec::Scratch& scratch, std::span<float> sums) const;
  // To sum several messages: how many elements to add at a time, so that these stay in the cache
  // until all messages have been added. Codecs whose messages contain every element have this. 0:
  // there is only decode_add().
  virtual std::size_t section() const { return 0; }
  // Checks the message of `count` elements at the beginning of `bytes`, and returns its length.
  // Fails as decode_add() does, but does not look at the indices of a sparse message.
  Result<std::size_t> check(std::span<const std::byte> bytes, const codec::Position& position,
                            codec::Scratch& scratch, std::size_t count) const;
  // Adds a part of a message that check() has accepted: the elements from `first` on, a multiple of
  // section(). `sums` has section() elements, or as many as are left.
  void add_section(std::span<const std::byte> message, std::size_t count, std::size_t first,
                   std::span<float> sums) const;

  // How to encode a vector in memory that the host cannot read. Nothing: it must be encoded on the
  // host. Messages have a fixed length unless Extraction::least is set.
  virtual std::optional<codec::Extraction> extraction(std::size_t count,
                                                      const codec::Position& position) const {
    return (void)count, (void)position, std::nullopt;
  }
  // Writes the message that encode() makes of `count` elements to `message`, which has its length.
  void encode_extract(const codec::Extract& extract, std::size_t count,
                      const codec::Position& position, std::span<std::byte> message) const;
  // Returns what decode_add() would add: `numbers` refer to `bytes`, `indices` to `scratch`. Fails
  // as decode_add() does.
  Result<codec::Extract> decode_extract(std::span<const std::byte> bytes,
                                        const codec::Position& position, codec::Scratch& scratch,
                                        std::size_t count) const;

 protected:
  // Messages contain these numbers, so they must not change. 4, 7 and 9 are no longer used.
  enum class Kind : std::uint8_t {
    dense = 1,
    top_k,
    threshold,
    int8 = 5,
    one_bit,
    rows = 8,
    f16 = 10,
    bf16,
    nonzeros
  };

  Codec(Kind kind, std::string name) : Compressor(std::move(name)), kind_(kind) {}

  // A vector that is being encoded. The gradient has been added. The elements that search() asked
  // for, as far as there was room, have been moved to the scratch; zero stands in their places.
  struct Task {
    std::span<float> carry;
    const codec::Position& position;
    std::uint32_t* hint;
    std::size_t found;       // How many elements reach Search::limit.
    std::uint32_t greatest;  // Greatest magnitude, as bits. Infinity and NaN are above all numbers.
    codec::Scratch& scratch;
    std::span<float> cleared;
  };
  // A payload of the right length for `values` values.
  struct Payload {
    std::span<const std::byte> bytes;
    std::size_t count;  // Of the vector.
    std::size_t values;
    codec::Scratch& scratch;
  };
  // What to look for while the gradient is added. Elements of at least this magnitude, `room` of
  // them at most, are moved from the carry to the scratch, with their indices.
  struct Search {
    std::uint32_t limit = 0xFFFFFFFF;
    std::size_t room = 0;
  };

  // Default: looks for nothing.
  virtual Search search(std::size_t count, const codec::Position& position,
                        std::uint32_t hint) const {
    return (void)count, (void)position, (void)hint, Search();
  }
  // How many values the message of a vector contains; nothing if that depends on the vector.
  virtual std::optional<std::size_t> values_of(std::size_t count, std::uint64_t step) const = 0;
  // The length of the payload for a vector of `count` elements; `values` is at most `count`.
  virtual std::size_t payload_bytes(std::size_t count, std::size_t values) const = 0;
  // Appends the payload to `out`, leaves in the carry what it does not say, and returns how many
  // values it contains.
  virtual std::size_t write(const Task& task, std::vector<std::byte>& out) const = 0;
  // Adds the payload's vector to `sums`. Returns false if no codec makes such bytes.
  virtual bool read(const Payload& payload, std::span<float> sums) const = 0;
  // The same for the elements from `first` on, for codecs that have sections. Cannot fail.
  virtual void read_section(std::span<const std::byte> payload, std::size_t count,
                            std::size_t first, std::span<float> sums) const;
  // write() and read() for codecs that have an extraction.
  virtual void write_extract(const codec::Extract& extract, std::size_t count,
                             std::span<std::byte> payload) const;
  virtual bool read_extract(const Payload& payload, codec::Extract& extract) const;

 private:
  codec::Header header_of(std::size_t count, const codec::Position& position) const;
  Result<Payload> open(std::span<const std::byte> bytes, const codec::Position& position,
                       codec::Scratch& scratch, std::size_t count) const;

  const Kind kind_;
};

struct TopKOptions {
  double density = 0.01;  // The fraction of elements to send: those with the greatest magnitudes,
                          // one at least. Of equal ones, the first.
  ValueFormat values = ValueFormat::f32;
  // In this many first steps the density falls from 1 to `density`, by the same factor each.
  std::uint64_t warm_up_steps = 0;
  // False: sends the elements that reach a limit taken from the last step, if these are at least
  // half and at most twice as many as wanted; else, and in every 64th step, exactly as many as
  // wanted. The limit follows their number. This needs one pass over the vector, but messages have
  // no fixed length, at the same cost as with threshold() (docs/compression.md).
  bool exact = true;
};
struct ThresholdOptions {
  float limit = 0;  // Elements of at least this magnitude are sent.
  ValueFormat values = ValueFormat::f32;
};
struct HalfOptions {
  // Numbers beyond this magnitude, or beyond the greatest of the type (65504 for f16), are clipped.
  // The rest joins the residual, so it is delayed, not lost; but the residual of a gradient that is
  // always beyond the limit grows without bound. The limit, rounded down to the type, applies only
  // to messages of this codec: steps that Compression::automatic or never sends uncompressed are
  // not clipped.
  float clip = std::numeric_limits<float>::infinity();
};
struct RoundingOptions {
  // False: rounds to nearest, which is right with error feedback, because that makes up for the
  // loss. True: stochastic rounding, whose mean is right without error feedback; its draws depend
  // on seed, step, gradient and rank. Reductions with error feedback refuse it for one_bit(): see
  // Compressor::is_contraction().
  bool stochastic = false;
};

// These throw InvalidArgument for a density outside of (0, 1], a limit that is negative or NaN, or
// a clip that is not above 0.
std::shared_ptr<const Codec> dense();     // All elements in f32.
std::shared_ptr<const Codec> nonzeros();  // Elements that are not zero, in f32; all if that
                                          // is shorter.
std::shared_ptr<const Codec> f16(const HalfOptions& options = {});  // All, in 16 bits; sums in f32.
std::shared_ptr<const Codec> bf16(const HalfOptions& options = {});
std::shared_ptr<const Codec> top_k(const TopKOptions& options = {});
std::shared_ptr<const Codec> threshold(const ThresholdOptions& options);
std::shared_ptr<const Codec> int8(
    const RoundingOptions& options = {});  // 1/4 of f32; 256 share a scale.
std::shared_ptr<const Codec> one_bit(
    const RoundingOptions& options = {});  // 1/30 of f32; 512 share a scale.

}  // namespace stretto
