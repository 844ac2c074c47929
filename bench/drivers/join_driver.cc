// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of ./dev bench hosts --joining: joins, passes a barrier, and prints a line of JSON: when
// it had done each, in seconds since 1970, and how much more it then had than before: bytes of
// memory, its own and its share of what it shares with others (PSS), and descriptors. Memory of
// programs and libraries is left out: the more processes share it, the less of it each one has.

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "stretto/stretto.h"

namespace {

struct Belongings {
  long bytes = 0;
  long descriptors = 0;
};

Belongings belongings() {
  Belongings found;
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss_Anon:" && word != "Pss_Shmem:") continue;
    long kibibytes = 0;
    file >> kibibytes;
    found.bytes += 1024 * kibibytes;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++found.descriptors;
  }
  return found;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

int main() {
  try {
    const Belongings before = belongings();
    const auto communicator = stretto::join();
    const double joined = now();
    communicator->barrier().wait();
    const double met = now();
    // No rank ends, which would give memory back, before all ranks have counted.
    const Belongings after = belongings();
    communicator->barrier().wait();
    std::printf("{\"joined\": %.6f, \"met\": %.6f, \"bytes\": %ld, \"descriptors\": %ld}\n", joined,
                met, after.bytes - before.bytes, after.descriptors - before.descriptors);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
