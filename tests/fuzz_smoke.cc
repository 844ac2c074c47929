// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The main function of a fuzz target where there is no libFuzzer. Its arguments are files and
// folders: a corpus, of which every file is one input. Runs each of them, then twenty thousand
// inputs from a fixed seed, mutants of the corpus and random ones, or as many as ten seconds allow.
// Keeps the target compiling and finds what is easily found; to fuzz in earnest, build with the
// preset `clang`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr int kInputs = 20000;
constexpr stretto::Duration kLongest = std::chrono::seconds(10);

// Bytes that are often small, because lengths, kinds and counts are what a decoder looks at.
std::uint8_t random_byte(stretto::Random& random) {
  return static_cast<std::uint8_t>(random.below(4) == 0 ? random.below(256) : random.below(8));
}

Input random_input(stretto::Random& random) {
  Input input(random.below(2) == 0 ? random.below(16) : random.below(512));
  for (std::uint8_t& byte : input) byte = random_byte(random);
  return input;
}

void mutate(Input& input, const Input& other, stretto::Random& random) {
  const std::size_t at = random.below(input.size() + 1);
  const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
  const auto rest = static_cast<std::size_t>(input.end() - place);
  switch (random.below(6)) {
    case 0:
      if (rest > 0) *place = static_cast<std::uint8_t>(*place ^ (1u << random.below(8)));
      break;
    case 1:
      if (rest > 0) *place = random_byte(random);
      break;
    case 2:
      input.insert(place, random_byte(random));
      break;
    case 3:
      input.erase(place, place + static_cast<std::ptrdiff_t>(random.below(rest + 1)));
      break;
    case 4:
      // The end of another input, so that a stream goes on with something that makes sense.
      input.erase(place, input.end());
      input.insert(input.end(), other.begin(), other.end());
      break;
    default:
      input.insert(input.end(), other.begin(),
                   other.begin() + static_cast<std::ptrdiff_t>(random.below(other.size() + 1)));
  }
}

Input mutant(const std::vector<Input>& corpus, stretto::Random& random) {
  Input input = corpus[random.below(corpus.size())];
  for (std::uint64_t times = 1 + random.below(4); times > 0; --times) {
    mutate(input, corpus[random.below(corpus.size())], random);
  }
  return input;
}

void run(const Input& input) { LLVMFuzzerTestOneInput(input.data(), input.size()); }

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  // The order of a folder is the file system's; ours must be the same every time.
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<Input> corpus;
  for (int i = 1; i < count; ++i) {
    for (const std::filesystem::path& path : files_of(arguments[i])) {
      std::ifstream file(path, std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      run(corpus.back());
    }
  }
  stretto::Random random(1);
  const stretto::Deadline deadline = stretto::Deadline::after(kLongest);
  int inputs = 0;
  for (; inputs < kInputs && !deadline.passed(); ++inputs) {
    const bool mutates = !corpus.empty() && random.below(4) != 0;
    run(mutates ? mutant(corpus, random) : random_input(random));
  }
  std::printf("%zu inputs of the corpus and %d others\n", corpus.size(), inputs);
}
