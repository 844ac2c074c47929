// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdio>
#include <stdexcept>

#include "bench/drivers/driver.h"

// A driver whose library is called from Python, by ctypes. Clock, barriers, samples and checks are
// those of all drivers; only the call under measurement enters the interpreter, which costs about a
// microsecond.
namespace stretto::bench {
namespace {

// Makes the next job's call ready. Returns 0; 1 if the library has no such operation; 2 if it
// failed and has told stderr why.
using Prepare = int (*)(const char* operation, float* input, float* output, std::size_t count,
                        std::size_t share);
// Makes the call. Returns 0, or 2 as above.
using Call = int (*)();

class PythonLibrary final : public Library {
 public:
  PythonLibrary(int rank, int size, std::string version, Prepare prepare, Call call)
      : Library(rank, size), version_(std::move(version)), prepare_(prepare), call_(call) {}

  std::string version() const override { return version_; }
  bool runs_several() const override { return true; }

  std::function<void()> make_call(const Job& job) override {
    const std::string operation =
        job.operation + (job.at_once > 1 ? "*" + std::to_string(job.at_once) : "");
    const int status = prepare_(operation.c_str(), job.input, job.output, job.count, job.share);
    if (status == 1) return {};
    expect(status == 0);
    return [this] { expect(call_() == 0); };
  }

 private:
  void expect(bool good) const {
    if (!good) throw std::runtime_error("the library has thrown; its output says what");
  }

  std::string version_;
  Prepare prepare_;
  Call call_;
};

}  // namespace
}  // namespace stretto::bench

// Serves until the parent says "quit": returns 0. On any failure, and if the parent is gone, 1.
extern "C" int stretto_bench_drive(const char* board, const char* meet, int rank, int size,
                                   const char* version, stretto::bench::Prepare prepare,
                                   stretto::bench::Call call) {
  try {
    stretto::bench::PythonLibrary library(rank, size, version, prepare, call);
    stretto::bench::drive(library, {.board = board, .folder = meet});
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
