// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What compressing gradients does to training: the digits of data/ learnt by a small network, with
// each codec, from the same parameters and the same batches. Ranks are threads of this process.
//   build/release/bin/12_compressed_digits data/digits.csv [RANKS [STEPS]]
// Prints a table in Markdown, which docs/compression.md shows.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/power_sgd.h"
#include "stretto/reducer/reducer.h"
#include "stretto/stretto.h"

namespace {

constexpr std::size_t kPixels = 64, kHidden = 256, kDigits = 10;
constexpr std::size_t kBatch = 128;  // Of all ranks together.

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
    stretto::Random random(1);
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

using MakeHook = std::function<std::shared_ptr<stretto::CommunicationHook>()>;

struct Run {
  const char* name;
  MakeHook hook;
  double share = 1;       // Of the bytes of a gradient, if the hook does not say.
  float momentum = 0.9f;  // Of the optimizer.
};

// Of the bytes of the gradients what the last step has sent.
double share_of(const Run& run, const stretto::CommunicationHook& hook) {
  if (const auto* const one = dynamic_cast<const stretto::CompressedReduction*>(&hook)) {
    return static_cast<double>(one->last_step().message_bytes) /
           static_cast<double>(one->last_step().gradient_bytes);
  }
  if (const auto* const one = dynamic_cast<const stretto::PowerSgdReduction*>(&hook)) {
    return static_cast<double>(one->sent_elements()) /
           static_cast<double>(one->gradient_elements());
  }
  return run.share;
}

struct Outcome {
  std::vector<double> losses;  // Over all images, at the start and after each quarter of the steps.
  double share = 0;            // Of the bytes, the mean of all steps.
};

Outcome train(stretto::Communicator& comm, const std::vector<Image>& images, int steps,
              const Run& run, const std::shared_ptr<stretto::CommunicationHook>& hook) {
  Network network;
  std::vector<stretto::GradientDescription> descriptions;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t rows = i == 0 ? kHidden : i == 2 ? kDigits : 0;
    descriptions.push_back({.name = std::to_string(i),
                            .dtype = stretto::DType::f32,
                            .count = network.values[i].size(),
                            .rows = rows});
  }
  stretto::Reducer reducer(comm, descriptions, {.hook = hook});
  std::vector<std::vector<float>> momentum;
  for (const auto& values : network.values) momentum.emplace_back(values.size());
  stretto::Random random(2);  // The same batches for all.
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    if (comm.rank() == 0 && step % (steps / 4) == 0) {
      outcome.losses.push_back(mean_loss(network, images));
    }
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
    outcome.share += share_of(run, *hook) / steps;
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t e = 0; e < gradients[i].size(); ++e) {
        momentum[i][e] = run.momentum * momentum[i][e] + gradients[i][e];
        network.values[i][e] -= 0.05f * momentum[i][e];
      }
    }
  }
  if (comm.rank() == 0) outcome.losses.push_back(mean_loss(network, images));
  return outcome;
}

std::vector<Run> runs() {
  using namespace stretto;
  const auto compressed = [](const CompressionOptions& options) -> MakeHook {
    return [options] { return std::make_shared<CompressedReduction>(options); };
  };
  const auto factored = [](std::size_t rank) -> MakeHook {
    return [rank] { return std::make_shared<PowerSgdReduction>(PowerSgdOptions{.rank = rank}); };
  };
  const auto few = top_k({.density = 0.01});
  return {
      {"dense f32", [] { return std::make_shared<PlainReduction>(); }},
      {"f16", [] { return std::make_shared<F16Reduction>(); }, 0.5},
      {"bf16", [] { return std::make_shared<Bf16Reduction>(); }, 0.5},
      {"top_k 1 %", compressed({.codec = few})},
      {"top_k 1 %, bf16 values",
       compressed({.codec = top_k({.density = 0.01, .values = ValueFormat::bf16})})},
      {"top_k 1 %, no residual", compressed({.codec = few, .error_feedback = false})},
      {"top_k 1 %, momentum corrected",
       compressed({.codec = top_k({.density = 0.01, .warm_up_steps = 100}), .momentum = 0.9f}), 1,
       0},
      {"top_k 1 %, divided", compressed({.codec = few, .exchange = CompressedExchange::divide})},
      {"random_k 1 %", compressed({.codec = random_k({.density = 0.01})})},
      {"int8", compressed({.codec = int8()})},
      {"one_bit", compressed({.codec = one_bit()})},
      {"PowerSGD rank 2", factored(2)},
      {"PowerSGD rank 4", factored(4)},
  };
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: 12_compressed_digits digits.csv [RANKS [STEPS]]\n");
    return 2;
  }
  const std::vector<Image> images = load(arguments[1]);
  const int ranks = count > 2 ? std::atoi(arguments[2]) : 2;
  const int steps = std::max(4, count > 3 ? std::atoi(arguments[3]) : 400) / 4 * 4;
  std::printf("| %d ranks, loss after step | 0 | %d | %d | %d | %d | of dense | bytes |\n", ranks,
              steps / 4, steps / 2, 3 * steps / 4, steps);
  std::printf("|---|---|---|---|---|---|---|---|\n");
  double dense = 0;
  for (const Run& run : runs()) {
    const auto communicators = stretto::make_thread_ranks({.size = ranks});
    Outcome outcome;
    std::vector<std::thread> threads;
    for (const auto& comm : communicators) {
      threads.emplace_back([&, hook = run.hook(), rank = comm.get()] {
        const Outcome own = train(*rank, images, steps, run, hook);
        if (rank->rank() == 0) outcome = own;
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (dense == 0) dense = outcome.losses.back();
    std::printf("| %s |", run.name);
    for (std::size_t i = 0; i < 5; ++i) std::printf(" %.4f |", outcome.losses[i]);
    std::printf(" %.2f | %.2f %% |\n", outcome.losses.back() / dense, 100 * outcome.share);
    std::fflush(stdout);
  }
}
