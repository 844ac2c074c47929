// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "bench/drivers/driver.h"
#include "tools/bench/copy_bound.h"

// No library, but the bound for all libraries: every rank copies its input to its output, all at
// the same time. This moves as many bytes as every rank gets, and as much memory as an all-reduce
// must. Command line, besides that of every driver: --rank R --ranks N.
namespace stretto::bench {
namespace {

class Copies final : public Library {
 public:
  using Library::Library;

  std::string version() const override { return "memcpy"; }

  // The algorithm is "plain" (or empty), or "past_cache", which uses non-temporal stores.
  std::function<void()> make_call(const Job& job) override {
    if (job.operation != "copy") return {};
    auto* const to = reinterpret_cast<std::byte*>(job.output);
    const auto* const from = reinterpret_cast<const std::byte*>(job.input);
    const std::size_t bytes = job.count * sizeof(float);
    if (job.algorithm == "past_cache") return [=] { copy_past_cache(to, from, bytes); };
    return [=] {
      std::memcpy(to, from, bytes);
      // Nobody reads the copy between two calls of a batch: without this the compiler could drop
      // the copy.
      asm volatile("" : : "r"(to) : "memory");
    };
  }
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  using stretto::bench::Copies;
  using stretto::bench::number_behind;
  return stretto::bench::drive_or_explain(
      [&] {
        return std::make_unique<Copies>(number_behind(argc, argv, "--rank"),
                                        number_behind(argc, argv, "--ranks"));
      },
      argc, argv);
}
