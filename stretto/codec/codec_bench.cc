// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Bytes of gradient that are encoded per second, the addition of the residual included, and bytes
// of gradient that one message is decoded into. Compare with memcpy of as many: both over the bytes
// of the gradient.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/codec/codec.h"
#include "stretto/kernel/select.h"

namespace stretto {
namespace {

// Of a Laplace distribution, which gradients resemble.
std::vector<float> gradient_of(std::size_t count) {
  Random random(1);
  std::vector<float> values(count);
  for (float& value : values) {
    const double sign = random.below(2) == 0 ? -1 : 1;
    value = static_cast<float>(sign * std::log(1 - random.uniform()));
  }
  return values;
}

void count_bytes(benchmark::State& state, std::size_t count) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(count * sizeof(float)));
}

void bench_memcpy(benchmark::State& state, std::size_t count) {
  const std::vector<float> from = gradient_of(count);
  std::vector<float> to(count);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), count * sizeof(float));
    benchmark::ClobberMemory();
  }
  count_bytes(state, count);
}

void bench_encode(benchmark::State& state, const std::shared_ptr<const Codec>& codec,
                  std::size_t count) {
  // Another one in each step, as in training: elsewhere in these.
  constexpr std::size_t kPlaces = 1 << 12, kApart = 16 * 97;
  const std::vector<float> gradients = gradient_of(count + kPlaces);
  std::vector<float> carry(count);
  std::vector<std::byte> message;
  codec::Scratch scratch;
  std::uint32_t hint = 0;
  codec::Position position;
  for (auto _ : state) {
    message.clear();
    const auto gradient = std::span(gradients).subspan(position.step * kApart % kPlaces, count);
    codec->encode({carry, gradient, position, NonFinite::send, &hint}, scratch, message);
    ++position.step;
    benchmark::ClobberMemory();
  }
  count_bytes(state, count);
  state.counters["ratio"] =
      static_cast<double>(count * sizeof(float)) / static_cast<double>(message.size());
}

void bench_decode(benchmark::State& state, const std::shared_ptr<const Codec>& codec,
                  std::size_t count) {
  const std::vector<float> gradient = gradient_of(count);
  std::vector<float> carry(count), sums(count);
  std::vector<std::byte> message;
  codec::Scratch scratch;
  const std::size_t values = codec->encode({carry, gradient, {}}, scratch, message);
  for (auto _ : state) {
    if (!codec->decode_add(message, {}, scratch, sums).ok()) state.SkipWithError("not decoded");
    benchmark::ClobberMemory();
  }
  count_bytes(state, count);
  state.counters["values/s"] = benchmark::Counter(static_cast<double>(values),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

// The sum of four ranks' messages, one after the other or a section of all at a time.
void bench_sum(benchmark::State& state, const std::shared_ptr<const Codec>& codec, bool by_sections,
               std::size_t count) {
  constexpr int kRanks = 4;
  const std::vector<float> gradient = gradient_of(count);
  std::vector<float> carry(count), sums(count);
  std::vector<std::byte> message;
  codec::Scratch scratch;
  codec->encode({carry, gradient, {}}, scratch, message);
  const std::vector<std::vector<std::byte>> messages(kRanks, message);
  const std::size_t length = by_sections ? codec->section() : count;
  for (auto _ : state) {
    for (const auto& each : messages) {
      if (!codec->check(each, {}, scratch, count).ok()) state.SkipWithError("not decoded");
    }
    for (std::size_t first = 0; first < count; first += length) {
      const auto some = std::span(sums).subspan(first, std::min(length, count - first));
      std::ranges::fill(some, 0.0f);
      for (const auto& each : messages) codec->add_section(each, count, first, some);
    }
    benchmark::ClobberMemory();
  }
  count_bytes(state, count);
}

// What decoding `density` of the elements cannot be faster than: it adds to as many places.
void bench_scatter(benchmark::State& state, double density, std::size_t count) {
  Random random(1);
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (random.uniform() < density) indices.push_back(i);
  }
  std::vector<float> sums(count);
  for (auto _ : state) {
    for (const std::uint32_t index : indices) sums[index] += 1;
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = benchmark::Counter(static_cast<double>(indices.size()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

// What encoding the greatest `density` of the elements cannot be faster than: they are taken out,
// where it is known which they are; `adds`: of sums, as of a residual and a gradient.
void bench_select(benchmark::State& state, double density, bool adds, std::size_t count) {
  std::vector<float> values = gradient_of(count);
  const std::vector<float> zeros(count);
  const auto limit = kernel::magnitude_bits(static_cast<float>(-std::log(density)));
  std::vector<std::uint32_t> indices(count);
  std::vector<float> taken(count);
  for (auto _ : state) {
    const kernel::Found found =
        adds ? kernel::add_and_take_at_least(values, zeros, limit, indices, taken)
             : kernel::take_at_least(values, limit, indices, taken);
    for (std::size_t j = 0; j < found.count; ++j) values[indices[j]] = taken[j];
    benchmark::ClobberMemory();
  }
  count_bytes(state, count);
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}

template <class Number>
void bench_narrow(benchmark::State& state, std::size_t count) {
  const std::vector<float> from = gradient_of(count);
  std::vector<Number> to(count);
  for (auto _ : state) {
    codec::convert(as_output(to), as_input(from));
    benchmark::ClobberMemory();
  }
  count_bytes(state, count);
}

void register_size(const std::string& size, std::size_t count) {
  const auto add = [&](const std::string& name, auto function) {
    benchmark::RegisterBenchmark((name + "/" + size).c_str(), function);
  };
  add("memcpy", [=](benchmark::State& state) { bench_memcpy(state, count); });
  add("narrow f16", [=](benchmark::State& state) { bench_narrow<Half>(state, count); });
  add("narrow bf16", [=](benchmark::State& state) { bench_narrow<BFloat16>(state, count); });
  for (const double density : {0.001, 0.01, 0.1, 0.4}) {
    add("scatter " + std::to_string(density).substr(0, 5),
        [=](benchmark::State& state) { bench_scatter(state, density, count); });
  }
  for (const bool adds : {false, true}) {
    add(adds ? "add and select 0.01" : "select 0.01",
        [=](benchmark::State& state) { bench_select(state, 0.01, adds, count); });
  }
  for (const auto& codec :
       {top_k({.density = 0.001}), top_k({.density = 0.01}), top_k({.density = 0.1}),
        top_k({.density = 0.4}), top_k({.density = 0.01, .exact = false}),
        top_k({.density = 0.01, .values = ValueFormat::bf16}), threshold({.limit = 5}), f16(),
        bf16(), int8(), int8({.stochastic = true}), one_bit()}) {
    add("encode " + codec->name(),
        [=](benchmark::State& state) { bench_encode(state, codec, count); });
    add("decode " + codec->name(),
        [=](benchmark::State& state) { bench_decode(state, codec, count); });
    if (codec->section() == 0) continue;
    for (const bool by_sections : {false, true}) {
      add((by_sections ? "sum by sections of " : "sum of ") + codec->name(),
          [=](benchmark::State& state) { bench_sum(state, codec, by_sections, count); });
    }
  }
}

const bool kRegistered = [] {
  register_size("128Ki", std::size_t{1} << 17);
  register_size("1Mi", std::size_t{1} << 20);
  register_size("26Mi", std::size_t{26} << 20);
  return true;
}();

}  // namespace
}  // namespace stretto
