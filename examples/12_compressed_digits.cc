// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What compressing gradients does to training: the digits of data/ learnt by a small network, with
// each codec, from the same parameters and the same batches. Ranks are threads of this process.
//   build/release/bin/12_compressed_digits data/digits.csv [RANKS [STEPS [HOOK]]]
//   build/release/bin/12_compressed_digits hooks   # names those of gradient_hooks.h
// The learning rate falls linearly to nothing. Of what bench/convergence.py makes of the output,
// docs/measurements/convergence.md consists.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "examples/gradient_hooks.h"
#include "examples/random.h"
#include "stretto/reducer/reducer.h"
#include "stretto/stretto.h"

namespace {

constexpr std::size_t kPixels = 64, kHidden = 256, kDigits = 10;
constexpr std::size_t kBatch = 128;  // Of all ranks together.
constexpr int kReports = 16;

struct Image {
  float pixels[kPixels];
  std::size_t digit;
};

std::vector<Image> load(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  std::vector<Image> images;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    Image image{};
    std::string field;
    for (float& pixel : image.pixels) {
      std::getline(fields, field, ',');
      pixel = std::stof(field) / 16;
    }
    std::getline(fields, field);
    image.digit = static_cast<std::size_t>(std::stoi(field)) % kDigits;
    images.push_back(image);
  }
  return images;
}

// Two layers; weights lie row after row, a row for each output.
struct Network {
  std::vector<float> values[4] = {std::vector<float>(kHidden * kPixels),
                                  std::vector<float>(kHidden), std::vector<float>(kDigits* kHidden),
                                  std::vector<float>(kDigits)};
  Network() {
    digits::Random random(1);
    for (const std::size_t layer : {0u, 2u}) {
      const double scale = 2 / std::sqrt(static_cast<double>(layer == 0 ? kPixels : kHidden));
      for (float& value : values[layer]) {
        value = static_cast<float>((random.uniform() - 0.5) * scale);
      }
    }
  }
};

// The loss of one image; adds its gradients, times `factor`, to `gradients`, if there are any.
double backward(const Network& network, const Image& image, float factor,
                std::span<const std::span<float>> gradients) {
  float hidden[kHidden], output[kDigits], hidden_gradient[kHidden] = {};
  for (std::size_t h = 0; h < kHidden; ++h) {
    float sum = network.values[1][h];
    for (std::size_t p = 0; p < kPixels; ++p) {
      sum += network.values[0][h * kPixels + p] * image.pixels[p];
    }
    hidden[h] = std::max(sum, 0.0f);
  }
  for (std::size_t d = 0; d < kDigits; ++d) {
    output[d] = network.values[3][d];
    for (std::size_t h = 0; h < kHidden; ++h) {
      output[d] += network.values[2][d * kHidden + h] * hidden[h];
    }
  }
  const float greatest = *std::max_element(output, output + kDigits);
  double total = 0;
  for (float& value : output) total += value = std::exp(value - greatest);
  for (std::size_t d = 0; d < kDigits && !gradients.empty(); ++d) {
    const float wrong =
        (output[d] / static_cast<float>(total) - (d == image.digit ? 1.0f : 0.0f)) * factor;
    gradients[3][d] += wrong;
    for (std::size_t h = 0; h < kHidden; ++h) {
      gradients[2][d * kHidden + h] += wrong * hidden[h];
      hidden_gradient[h] += wrong * network.values[2][d * kHidden + h];
    }
  }
  for (std::size_t h = 0; h < kHidden && !gradients.empty(); ++h) {
    if (hidden[h] <= 0) continue;
    gradients[1][h] += hidden_gradient[h];
    for (std::size_t p = 0; p < kPixels; ++p) {
      gradients[0][h * kPixels + p] += hidden_gradient[h] * image.pixels[p];
    }
  }
  return -std::log(static_cast<double>(output[image.digit]) / total);
}

double mean_loss(const Network& network, const std::vector<Image>& images) {
  double sum = 0;
  for (const Image& image : images) sum += backward(network, image, 0, {});
  return sum / static_cast<double>(images.size());
}

void train(stretto::Communicator& comm, const std::vector<Image>& images, int steps,
           const gradient_hooks::Choice& choice,
           const std::shared_ptr<stretto::CommunicationHook>& hook) {
  Network network;
  std::vector<stretto::GradientDescription> descriptions;
  double gradient_bytes = 0, sent = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t rows = i == 0 ? kHidden : i == 2 ? kDigits : 0;
    descriptions.push_back({.name = std::to_string(i),
                            .dtype = stretto::DType::f32,
                            .count = network.values[i].size(),
                            .rows = rows});
    gradient_bytes += static_cast<double>(network.values[i].size() * sizeof(float));
  }
  stretto::Reducer reducer(comm, descriptions, {.hook = hook});
  std::vector<std::vector<float>> momentum;
  for (const auto& values : network.values) momentum.emplace_back(values.size());
  const float of_momentum = choice.has_momentum ? 0.0f : 0.9f;
  digits::Random random(2);  // The same batches for all.
  for (int step = 0; step < steps; ++step) {
    std::vector<std::span<float>> gradients;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto bytes = reducer.gradient_bytes(i);
      gradients.emplace_back(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
      std::fill(gradients[i].begin(), gradients[i].end(), 0.0f);
    }
    const std::size_t share = kBatch / static_cast<std::size_t>(comm.size());
    for (std::size_t i = 0; i < kBatch; ++i) {
      const Image& image = images[random.below(images.size())];
      if (static_cast<int>(i / share) != comm.rank().value()) continue;
      backward(network, image, 1 / static_cast<float>(share), gradients);
    }
    for (std::size_t i = 4; i-- > 0;) reducer.mark_ready(i);
    reducer.finalize();
    sent += gradient_hooks::sent_bytes(choice, *hook, gradient_bytes);
    const float rate = 0.05f * static_cast<float>(steps - step) / static_cast<float>(steps);
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t e = 0; e < gradients[i].size(); ++e) {
        momentum[i][e] = of_momentum * momentum[i][e] + gradients[i][e];
        network.values[i][e] -= rate * momentum[i][e];
      }
    }
    if (comm.rank() != 0 || (step + 1) % (steps / kReports) != 0) continue;
    std::printf("%s: step %d: loss %.5f, sent %.0f bytes\n", choice.name.c_str(), step + 1,
                mean_loss(network, images), sent);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: 12_compressed_digits digits.csv|hooks [RANKS [STEPS [HOOK]]]\n");
    return 2;
  }
  if (std::string(arguments[1]) == "hooks") {
    for (const auto& choice : gradient_hooks::all()) std::printf("%s\n", choice.name.c_str());
    return 0;
  }
  const std::vector<Image> images = load(arguments[1]);
  const int ranks = count > 2 ? std::atoi(arguments[2]) : 2;
  const int steps = std::max(kReports, count > 3 ? std::atoi(arguments[3]) : 400);
  const auto choices =
      count > 4 ? std::vector{gradient_hooks::named(arguments[4])} : gradient_hooks::all();
  for (const gradient_hooks::Choice& choice : choices) {
    const auto communicators = stretto::make_thread_ranks({.size = ranks});
    std::vector<std::thread> threads;
    for (const auto& comm : communicators) {
      threads.emplace_back([&, hook = choice.make(), rank = comm.get()] {
        train(*rank, images, steps, choice, hook);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}
