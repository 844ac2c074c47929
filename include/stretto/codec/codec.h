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

// What becomes of infinities and NaN in what is to be sent. None of them ever stays in a residual.
enum class NonFinite : std::uint8_t {
  send,  // They are sent, so that training sees them. Where a message holds fewer values than that,
         // it holds only them, and the others are dropped.
  stop,  // The message says that there are some, and carries nothing else: all ranks fail alike.
  zero,  // They count as zero.
};

// How the values of a sparse message travel.
enum class ValueFormat : std::uint8_t { f32, bf16, int8 };

namespace codec {

struct Header;

// Room that encoders and decoders use one after the other; grows to what was needed most. One
// thread at a time.
struct Scratch {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;  // At these indices.
  std::vector<std::uint32_t> magnitudes;
};

// What a codec is told beside the values. Must be the same for a message where it is encoded and
// where it is decoded, but for `own_key`.
struct Position {
  std::uint64_t step = 0;     // Counted from 0.
  std::uint64_t own_key = 0;  // Of the random choices of stochastic rounding.
  // Hash of what else both sides have to agree about; others are refused.
  std::uint32_t context_hash = 0;
};

struct Encoding {
  // The gradient is added to it, and what the message does not say is left in it: the residual.
  std::span<float> carry;
  std::span<const float> gradient;
  Position position;
  NonFinite non_finite = NonFinite::send;
  // Kept from one step to the next; begins as zero. For speed only, but for top_k() that is not
  // exact, where the next message depends on it.
  std::uint32_t* hint = nullptr;
  // Empty, or as long as the carry: where a sparse message has a value, this becomes zero. One of
  // nonzeros() that has all values is not sparse.
  std::span<float> cleared = {};
  // Of a sum: the rank whose message has stopped it, by NonFinite::stop. This message says so, too,
  // if it stops.
  std::optional<Rank> stopped_by = std::nullopt;
};

// What of the encoding of a vector takes a look at every element, for whoever does that in memory
// of a device; NonFinite::stop is not known there.
struct Extraction {
  // So many elements, those of the greatest magnitudes as Codec has them, are taken out; zero
  // stands in their places. 0: all are, or those that `least` says.
  std::size_t greatest = 0;
  // Elements of at least this magnitude are taken out, however many these are.
  std::optional<float> least = std::nullopt;
  // What is taken out is rounded to the nearest number of this type, and what that does not say
  // goes back to its place: f16 or bf16, finite ones to the limit at most; i8, codes and then
  // scales as int8() has them; or boolean, of each section words of 64 signs and then scales, as
  // one_bit() has them. Of infinity and NaN zero goes back, as of all whose signs share a scale
  // with them. Nothing: it stays f32.
  std::optional<DType> rounded = std::nullopt;
  float limit = 0;
  std::size_t block = 0;    // So many i8 or boolean share a scale.
  std::size_t section = 0;  // So many elements have their signs and scales side by side.

  bool takes_all() const { return greatest == 0 && !least; }
  // The bytes that say so many elements.
  std::size_t number_bytes(std::size_t elements) const {
    const std::size_t blocks = block > 0 ? (elements + block - 1) / block : 0;
    if (rounded == DType::i8) return elements + blocks;
    if (rounded == DType::boolean) return (elements + 63) / 64 * 8 + blocks * sizeof(float);
    return elements * size_bytes(rounded.value_or(DType::f32));
  }
};

// What comes of it, and stands in a message.
struct Extract {
  std::span<const std::uint32_t> indices =
      {};  // Of what has been taken out, ascending, unless all.
  std::span<const std::byte> numbers = {};
};

}  // namespace codec

// Makes messages of vectors of floats, and vectors of messages: docs/internals/wire_format.md.
// Vectors have fewer than 2^32 elements.
//
// What a message says + what is left in the carry = carry + gradient, where that sum is rounded
// once, as every addition of floats is. Exactly so (bit for bit, but for the sign of zero) for
// dense(), for f16() and bf16() of what they do not clip, and for values in f32, bf16, and int8
// rounded to the nearest; within half a unit of the last place of the difference otherwise, which
// for int8 rounded stochastically and one_bit() is at most 2^-23 of the greatest magnitude of the
// block. It is true of finite values; for others see NonFinite.
class Codec : public Compressor {
 public:
  // The length of the message of a vector, if that does not depend on the values.
  std::optional<std::size_t> message_bytes(std::size_t count, std::uint64_t step) const;
  bool has_fixed_length() const { return message_bytes(0, 0).has_value(); }
  // The length of a message of a vector that says so many of its elements.
  std::size_t extract_bytes(std::size_t count, std::size_t elements) const;
  // No message of a vector is longer.
  std::size_t max_message_bytes(std::size_t count) const;

  // Whether messages say no number beyond a limit, however great those of the vector are: f16(),
  // and bf16() that clips. Sums of such messages may be beyond it.
  virtual bool is_bounded() const { return false; }
  // Whether messages say some elements only.
  virtual bool is_sparse() const { return false; }

  // Appends a message to `out`; returns how many values it has.
  std::size_t encode(const codec::Encoding& encoding, codec::Scratch& scratch,
                     std::vector<std::byte>& out) const;
  // Adds the vector that the message at the beginning of `bytes` stands for to `sums`, and returns
  // the length of the message. `bytes` may be anything; memory is taken for `sums.size()` elements
  // at most. Fails with mismatch if the message is of another codec, of other settings, another
  // version or length of vector; with invalid_argument if it says that there were infinities or
  // NaN, and with the rank that had them if it names one, any number from 0 on; with protocol if no
  // codec makes such bytes. Then `sums` may have changed.
  Result<std::size_t> decode_add(std::span<const std::byte> bytes, const codec::Position& position,
                                 codec::Scratch& scratch, std::span<float> sums) const;
  // For the sum of several messages, of codecs that say something of each element: so many elements
  // at a time, which stay in the cache until all have been added. 0: decode_add() is all there is.
  virtual std::size_t section() const { return 0; }
  // The length of the message at the beginning of `bytes`, of `count` elements. Fails as
  // decode_add() does, which finds more in a sparse message: the indices are not looked at here.
  Result<std::size_t> check(std::span<const std::byte> bytes, const codec::Position& position,
                            codec::Scratch& scratch, std::size_t count) const;
  // Adds what such a message, which has been checked, says of the elements from `first` on, a
  // multiple of section(): of so many, or of those that are left.
  void add_section(std::span<const std::byte> message, std::size_t count, std::size_t first,
                   std::span<float> sums) const;

  // Of a vector in memory that the host cannot read, what is to be done there. Nothing: it is to be
  // encoded on the host. Messages have a fixed length unless Extraction::least is set.
  virtual std::optional<codec::Extraction> extraction(std::size_t count, std::uint64_t step) const {
    return (void)count, (void)step, std::nullopt;
  }
  // Writes the message that encode() makes of `count` elements to `message`, which is as long.
  void encode_extract(const codec::Extract& extract, std::size_t count,
                      const codec::Position& position, std::span<std::byte> message) const;
  // What decode_add() would add: numbers in `bytes`, indices in the scratch. Fails as that does.
  Result<codec::Extract> decode_extract(std::span<const std::byte> bytes,
                                        const codec::Position& position, codec::Scratch& scratch,
                                        std::size_t count) const;

 protected:
  // The number of each stands in messages, so it must stay. 4, 7 and 9 are no longer used.
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

  // A vector that is being encoded: the gradient has been added. As many elements as were found, or
  // as there was room for, are in the scratch, and zero stands in their place.
  struct Task {
    std::span<float> carry;
    const codec::Position& position;
    std::uint32_t* hint;
    std::size_t found;       // How many elements have at least the magnitude that search() said.
    std::uint32_t greatest;  // Magnitude of all; above numbers if there is infinity or NaN.
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
  // What to look for while the gradient is added: elements of at least this magnitude, at most
  // `room` of them, are taken out of the carry; their indices and values come to the scratch.
  struct Search {
    std::uint32_t limit = 0xFFFFFFFF;
    std::size_t room = 0;
  };

  // Default: nothing.
  virtual Search search(std::size_t count, const codec::Position& position,
                        std::uint32_t hint) const {
    return (void)count, (void)position, (void)hint, Search();
  }
  // How many values the message of a vector has; nothing if it depends on them.
  virtual std::optional<std::size_t> values_of(std::size_t count, std::uint64_t step) const = 0;
  // Of a vector of `count` elements; `values` is at most that.
  virtual std::size_t payload_bytes(std::size_t count, std::size_t values) const = 0;
  // Appends the payload to `out`, leaves in the carry what it does not say, and returns the number
  // of values in it.
  virtual std::size_t write(const Task& task, std::vector<std::byte>& out) const = 0;
  // False if no codec makes such bytes.
  virtual bool read(const Payload& payload, std::span<float> sums) const = 0;
  // The same of the elements from `first` on, for codecs that have sections. Cannot fail.
  virtual void read_section(std::span<const std::byte> payload, std::size_t count,
                            std::size_t first, std::span<float> sums) const;
  // The same of codecs that have an extraction.
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
  double density = 0.01;  // Of the elements, those with the greatest magnitudes are sent; one at
                          // least. Of equal ones, those that come first.
  ValueFormat values = ValueFormat::f32;
  // For so many steps the density falls from 1 to what is said above, by the same factor each.
  std::uint64_t warm_up_steps = 0;
  // False: what reaches the limit that was right in the step before, at least half and at most
  // twice as many as wanted, else exactly so many again; the limit follows their number. It takes
  // one look at the vector; but messages have no fixed length, which costs what it costs
  // threshold().
  bool exact = true;
};
struct ThresholdOptions {
  float limit = 0;  // Elements of at least this magnitude are sent.
  ValueFormat values = ValueFormat::f32;
};
struct HalfOptions {
  // Numbers of a greater magnitude, or a greater one than the type has (65504 of f16), are sent as
  // the greatest that is left; the rest joins the residual, which delays it and does not remove it:
  // of gradients that are always greater, the residual grows without bound. It holds for what is
  // sent by this codec, rounded down to the type: steps that Compression::automatic or never sends
  // as they are say all that there is.
  float clip = std::numeric_limits<float>::infinity();
};
struct RoundingOptions {
  // To the nearest is right for error feedback, which makes up for what is lost. Stochastic
  // rounding is right on average without it; its draws depend on seed, step, gradient and rank. Of
  // one_bit() it is refused with error feedback: see Compressor::is_contraction().
  bool stochastic = false;
};

// Throw InvalidArgument for a density outside of (0, 1], a limit that is negative or no number,
// or a clip that is not above 0.
std::shared_ptr<const Codec> dense();     // Everything as it is.
std::shared_ptr<const Codec> nonzeros();  // What is not zero, as it is; everything where that is
                                          // shorter.
std::shared_ptr<const Codec> f16(const HalfOptions& options = {});  // Half, rounded; sums in f32.
std::shared_ptr<const Codec> bf16(const HalfOptions& options = {});
std::shared_ptr<const Codec> top_k(const TopKOptions& options = {});
std::shared_ptr<const Codec> threshold(const ThresholdOptions& options);
std::shared_ptr<const Codec> int8(
    const RoundingOptions& options = {});  // A quarter, 256 share a scale.
std::shared_ptr<const Codec> one_bit(
    const RoundingOptions& options = {});  // 1/30, 512 share a scale.

}  // namespace stretto
