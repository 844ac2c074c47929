// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// All-reduces by two_level_mapped, with private buffers and then with registered ones; prints
// "sent OUT and LO": the bytes that this host's interfaces "eth" and "lo" have sent meanwhile.
// Arguments: the number of floats, and how often.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "stretto/stretto.h"
#include "tests/end_to_end/rank_program.h"

namespace {

long sent_by(const std::string& interface) {
  std::ifstream file("/sys/class/net/" + interface + "/statistics/tx_bytes");
  long bytes = -1;
  file >> bytes;
  return bytes;
}

}  // namespace

int main(int, char** argv) {
  return stretto::testing::run_or_explain([&] {
    const auto comm = stretto::join();
    const std::size_t count = std::strtoul(argv[1], nullptr, 10);
    std::vector<float> own(count);
    const auto memory = comm->allocate<float>(count);
    for (const std::span<float> data : {std::span(own), memory.span()}) {
      const stretto::AllReduceOptions options{.algorithm = "two_level_mapped"};
      comm->all_reduce(data, options).wait();  // Its memory is mapped on the way.
      comm->barrier().wait();
      const long out = sent_by("eth");
      const long inside = sent_by("lo");
      for (long i = std::strtol(argv[2], nullptr, 10); i > 0; --i) {
        comm->all_reduce(data, options).wait();
      }
      comm->barrier().wait();
      std::printf("sent %ld and %ld\n", sent_by("eth") - out, sent_by("lo") - inside);
    }
  });
}
