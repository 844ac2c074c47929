// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Bytes that reduce() and copy() move per second, all inputs read and all outputs written, over the
// bytes of all buffers together. So every row of a size has one bound: what memcpy moves. Rows
// "left_to_right" are a plain loop that adds in the order of the inputs: what the canonical order,
// a tree, would cost more than.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "stretto/kernel/copy.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/wide_loop.h"

namespace stretto::kernel {
namespace {

struct alignas(4096) Page {
  std::byte bytes[4096];
};

// Each buffer starts some lines after a page, each a different number of them: at a distance of a
// power of two they would compete for the same lines of the cache.
class Buffers {
 public:
  Buffers(std::size_t count, std::size_t bytes) : pages_(count) {
    for (std::vector<Page>& pages : pages_) pages.resize(bytes / sizeof(Page) + 2);
  }
  std::byte* operator[](std::size_t i) { return pages_[i][0].bytes + i % 12 * 5 * 64; }

 private:
  std::vector<std::vector<Page>> pages_;
};

struct Shape {
  std::string name;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 1;
  std::size_t inputs = 2;
  std::size_t outputs = 2;
  bool in_place = false;
  bool partial_output = false;
};

void bench_reduce(benchmark::State& state, const Shape& shape, std::size_t bytes, Store store) {
  const DType output_dtype = shape.partial_output ? accumulation_dtype(shape.dtype) : shape.dtype;
  const std::size_t moved_per_element =
      shape.inputs * size_bytes(shape.dtype) + shape.outputs * size_bytes(output_dtype);
  const std::size_t held_per_element =
      shape.in_place ? shape.inputs * size_bytes(shape.dtype) : moved_per_element;
  const std::size_t count = bytes / held_per_element / 64 * 64;
  Buffers buffers(shape.inputs + shape.outputs, count * size_bytes(output_dtype));
  std::vector<Input> inputs;
  std::vector<void*> outputs;
  for (std::size_t i = 0; i < shape.inputs; ++i) inputs.push_back({buffers[i], shape.dtype});
  for (std::size_t k = 0; k < shape.outputs; ++k) {
    outputs.push_back(buffers[shape.in_place ? k : shape.inputs + k]);
  }
  for (auto _ : state) {
    const Status status = reduce({.dtype = shape.dtype,
                                  .output_dtype = output_dtype,
                                  .op = shape.op,
                                  .divisor = shape.divisor,
                                  .count = count,
                                  .inputs = inputs,
                                  .outputs = outputs,
                                  .store = store});
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(count * moved_per_element));
}

void bench_memcpy(benchmark::State& state, std::size_t bytes) {
  Buffers buffers(2, bytes / 2);
  for (auto _ : state) {
    std::memcpy(buffers[1], buffers[0], bytes / 2);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void bench_copy(benchmark::State& state, std::size_t bytes, Store store) {
  Buffers buffers(2, bytes / 2);
  for (auto _ : state) {
    copy(buffers[1], buffers[0], bytes / 2, store);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

// No buffer overlaps another.
STRETTO_WIDE void add_2(const float* const* from, float* const* to, std::size_t count) {
  const float *a = from[0], *b = from[1];
  float *x = to[0], *y = to[1];
  STRETTO_LOOP_OF_VECTORS
  for (std::size_t i = 0; i < count; ++i) x[i] = y[i] = a[i] + b[i];
}
STRETTO_WIDE void add_4(const float* const* from, float* const* to, std::size_t count) {
  const float *a = from[0], *b = from[1], *c = from[2], *d = from[3];
  float *x = to[0], *y = to[1], *z = to[2], *w = to[3];
  STRETTO_LOOP_OF_VECTORS
  for (std::size_t i = 0; i < count; ++i) x[i] = y[i] = z[i] = w[i] = a[i] + b[i] + c[i] + d[i];
}

void bench_left_to_right(benchmark::State& state, std::size_t bytes, std::size_t buffer_count) {
  const std::size_t count = bytes / (2 * buffer_count * sizeof(float)) / 64 * 64;
  Buffers buffers(2 * buffer_count, count * sizeof(float));
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  for (std::size_t i = 0; i < buffer_count; ++i) {
    inputs.push_back(reinterpret_cast<const float*>(buffers[i]));
    outputs.push_back(reinterpret_cast<float*>(buffers[buffer_count + i]));
  }
  for (auto _ : state) {
    (buffer_count == 2 ? add_2 : add_4)(inputs.data(), outputs.data(), count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(2 * buffer_count * count * sizeof(float)));
}

std::vector<Shape> shapes() {
  return {
      {.name = "f32_sum_2_to_1", .outputs = 1},
      {.name = "f32_sum_2_to_2"},
      {.name = "f32_sum_4_to_4", .inputs = 4, .outputs = 4},
      {.name = "f32_sum_8_to_8", .inputs = 8, .outputs = 8},
      {.name = "f32_sum_16_to_16", .inputs = 16, .outputs = 16},
      {.name = "f32_sum_2_to_2_in_place", .in_place = true},
      {.name = "f32_sum_4_to_4_in_place", .inputs = 4, .outputs = 4, .in_place = true},
      {.name = "f32_sum_64_to_64_in_place", .inputs = 64, .outputs = 64, .in_place = true},
      {.name = "f32_mean_of_4_to_4", .divisor = 4, .inputs = 4, .outputs = 4},
      {.name = "f32_mean_of_3_to_3", .divisor = 3, .inputs = 3, .outputs = 3},
      {.name = "f32_max_4_to_4", .op = ReduceOp::max, .inputs = 4, .outputs = 4},
      {.name = "f64_sum_4_to_4", .dtype = DType::f64, .inputs = 4, .outputs = 4},
      {.name = "bf16_sum_2_to_2", .dtype = DType::bf16},
      {.name = "bf16_sum_4_to_4", .dtype = DType::bf16, .inputs = 4, .outputs = 4},
      {.name = "bf16_sum_2_to_1_f32", .dtype = DType::bf16, .outputs = 1, .partial_output = true},
      {.name = "f16_sum_2_to_2", .dtype = DType::f16},
      {.name = "f16_sum_4_to_4", .dtype = DType::f16, .inputs = 4, .outputs = 4},
      {.name = "f16_sum_2_to_1_f32", .dtype = DType::f16, .outputs = 1, .partial_output = true},
      {.name = "i8_sum_2_to_2", .dtype = DType::i8},
      {.name = "i8_sum_4_to_4", .dtype = DType::i8, .inputs = 4, .outputs = 4},
      {.name = "i16_sum_4_to_4", .dtype = DType::i16, .inputs = 4, .outputs = 4},
      {.name = "c64_sum_4_to_4", .dtype = DType::c64, .inputs = 4, .outputs = 4},
      {.name = "c64_product_2_to_2", .dtype = DType::c64, .op = ReduceOp::product},
      {.name = "i32_mean_of_4_to_4", .dtype = DType::i32, .divisor = 4, .inputs = 4, .outputs = 4},
  };
}

void register_size(const std::string& size, std::size_t bytes, Store store) {
  const std::string suffix = "/" + size + (store == Store::cached ? "" : "/non_temporal");
  benchmark::RegisterBenchmark(("memcpy" + suffix).c_str(),
                               [=](benchmark::State& state) { bench_memcpy(state, bytes); });
  benchmark::RegisterBenchmark(("copy" + suffix).c_str(),
                               [=](benchmark::State& state) { bench_copy(state, bytes, store); });
  for (const std::size_t buffers : {2, 4}) {
    const std::string name =
        "left_to_right_" + std::to_string(buffers) + "_to_" + std::to_string(buffers) + suffix;
    if (store != Store::cached) continue;
    benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { bench_left_to_right(state, bytes, buffers); });
  }
  for (const Shape& shape : shapes()) {
    benchmark::RegisterBenchmark((shape.name + suffix).c_str(), [=](benchmark::State& state) {
      bench_reduce(state, shape, bytes, store);
    });
  }
}

// One size for each level of the cache, and one beyond.
const bool kRegistered = [] {
  register_size("32KiB", std::size_t{32} << 10, Store::cached);
  register_size("512KiB", std::size_t{512} << 10, Store::cached);
  register_size("8MiB", std::size_t{8} << 20, Store::cached);
  register_size("256MiB", std::size_t{256} << 20, Store::cached);
  register_size("256MiB", std::size_t{256} << 20, Store::non_temporal);
  return true;
}();

}  // namespace
}  // namespace stretto::kernel
