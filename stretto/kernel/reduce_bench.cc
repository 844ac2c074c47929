// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Bytes that reduce() and copy() move per second: all inputs read and all outputs written, so that
// every line of the table has the same bound, that of memcpy at the same size.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "stretto/kernel/copy.h"
#include "stretto/kernel/reduce.h"

namespace stretto::kernel {
namespace {

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

// Each buffer starts some lines after a page, each a different number of them, as buffers of ranks
// do; a power of two between all of them would make them compete for the same lines of the cache.
class Buffers {
 public:
  Buffers(int count, std::size_t bytes) {
    for (int i = 0; i < count; ++i) {
      const std::size_t shift = static_cast<std::size_t>(i) * 5 * 64;
      const std::size_t room = (bytes + shift + 4095) / 4096 * 4096;
      owned_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, room)));
      std::memset(owned_.back().get(), 0, room);
      start_.push_back(owned_.back().get() + shift);
    }
  }
  std::byte* operator[](int i) const { return start_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<Buffer> owned_;
  std::vector<std::byte*> start_;
};

struct Shape {
  const char* name;
  DType dtype;
  ReduceOp op;
  int inputs;
  int outputs;
  bool in_place;
  int divisor;
  DType output_dtype;
};

// `bytes` of all buffers together.
void bench_reduce(benchmark::State& state, Shape shape, std::size_t bytes, Store store) {
  const int buffer_count = shape.in_place ? shape.inputs : shape.inputs + shape.outputs;
  const std::size_t each = bytes / static_cast<std::size_t>(buffer_count) / 64 * 64;
  const Buffers buffers(buffer_count, each * (shape.output_dtype == shape.dtype ? 1 : 2));
  std::vector<Input> inputs;
  std::vector<void*> outputs;
  for (int i = 0; i < shape.inputs; ++i) inputs.push_back({buffers[i], shape.dtype});
  for (int k = 0; k < shape.outputs; ++k) {
    outputs.push_back(buffers[shape.in_place ? k : shape.inputs + k]);
  }
  const Reduction reduction{.dtype = shape.dtype,
                            .output_dtype = shape.output_dtype,
                            .op = shape.op,
                            .divisor = shape.divisor,
                            .count = each / size_bytes(shape.dtype),
                            .inputs = inputs,
                            .outputs = outputs,
                            .store = store};
  for (auto _ : state) {
    if (!reduce(reduction).ok()) state.SkipWithError("reduce failed");
    benchmark::ClobberMemory();
  }
  const auto moved = each * static_cast<std::size_t>(shape.inputs + shape.outputs);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(moved));
}
void bench_memcpy(benchmark::State& state, std::size_t bytes) {
  const Buffers buffers(2, bytes / 2);
  for (auto _ : state) {
    std::memcpy(buffers[1], buffers[0], bytes / 2);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}
void bench_copy(benchmark::State& state, std::size_t bytes, Store store) {
  const Buffers buffers(2, bytes / 2);
  for (auto _ : state) {
    copy(buffers[1], buffers[0], bytes / 2, store);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

}  // namespace
}  // namespace stretto::kernel

using namespace stretto;
using namespace stretto::kernel;
int main(int argc, char** argv) {
  const Shape shapes[] = {
      {"f32_sum_2to1", DType::f32, ReduceOp::sum, 2, 1, false, 1, DType::f32},
      {"f32_sum_2to2", DType::f32, ReduceOp::sum, 2, 2, false, 1, DType::f32},
      {"f32_sum_4to4", DType::f32, ReduceOp::sum, 4, 4, false, 1, DType::f32},
      {"f32_sum_8to8", DType::f32, ReduceOp::sum, 8, 8, false, 1, DType::f32},
      {"f32_sum_2to2i", DType::f32, ReduceOp::sum, 2, 2, true, 1, DType::f32},
      {"f32_sum_4to4i", DType::f32, ReduceOp::sum, 4, 4, true, 1, DType::f32},
      {"f32_sum_8to8i", DType::f32, ReduceOp::sum, 8, 8, true, 1, DType::f32},
      {"f32_sum_16to16", DType::f32, ReduceOp::sum, 16, 16, false, 1, DType::f32},
      {"f32_sum_3to3", DType::f32, ReduceOp::sum, 3, 3, false, 1, DType::f32},
      {"f32_mean4_4to4", DType::f32, ReduceOp::sum, 4, 4, false, 4, DType::f32},
      {"f32_mean3_4to4", DType::f32, ReduceOp::sum, 4, 4, false, 3, DType::f32},
      {"f32_max_4to4", DType::f32, ReduceOp::max, 4, 4, false, 1, DType::f32},
      {"f64_sum_4to4", DType::f64, ReduceOp::sum, 4, 4, false, 1, DType::f64},
      {"bf16_sum_2to2", DType::bf16, ReduceOp::sum, 2, 2, false, 1, DType::bf16},
      {"bf16_sum_4to4", DType::bf16, ReduceOp::sum, 4, 4, false, 1, DType::bf16},
      {"f16_sum_2to2", DType::f16, ReduceOp::sum, 2, 2, false, 1, DType::f16},
      {"f16_sum_4to4", DType::f16, ReduceOp::sum, 4, 4, false, 1, DType::f16},
      {"i8_sum_2to2", DType::i8, ReduceOp::sum, 2, 2, false, 1, DType::i8},
      {"i8_sum_4to4", DType::i8, ReduceOp::sum, 4, 4, false, 1, DType::i8},
      {"i8_product_4to4", DType::i8, ReduceOp::product, 4, 4, false, 1, DType::i8},
      {"i32_mean_4to4", DType::i32, ReduceOp::sum, 4, 4, false, 4, DType::i32},
      {"bf16_4to1f32", DType::bf16, ReduceOp::sum, 4, 1, false, 1, DType::f32},
  };
  struct Size {
    const char* name;
    std::size_t bytes;
    std::vector<Store> stores;
  };
  const Size sizes[] = {{"32K", 32 << 10, {Store::cached}},
                        {"512K", 512 << 10, {Store::cached}},
                        {"8M", 8 << 20, {Store::cached, Store::non_temporal}},
                        {"24M", 24 << 20, {Store::cached, Store::non_temporal}},
                        {"256M", 256 << 20, {Store::cached, Store::non_temporal}}};
  for (const auto& z : sizes) {
    benchmark::RegisterBenchmark((std::string("memcpy/") + z.name).c_str(),
                                 [=](benchmark::State& s) { bench_memcpy(s, z.bytes); });
    for (Store st : z.stores)
      benchmark::RegisterBenchmark(
          (std::string("copy/") + z.name + (st == Store::cached ? "" : "/nt")).c_str(),
          [=](benchmark::State& s) { bench_copy(s, z.bytes, st); });
    for (const auto& sh : shapes)
      for (Store st : z.stores)
        benchmark::RegisterBenchmark(
            (std::string(sh.name) + "/" + z.name + (st == Store::cached ? "" : "/nt")).c_str(),
            [=](benchmark::State& s) { bench_reduce(s, sh, z.bytes, st); });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
