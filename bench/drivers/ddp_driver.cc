// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of ./dev bench ddp that trains with stretto. Each line of its input is an order:
//   train MODEL MODE ZERO STEPS    prints the microseconds that each step took: by the wall clock,
//                                  and in processor time of all threads of this process
//   fingerprint MODEL MODE         prints a number that depends on every bit of the parameters
//   floor MODEL floor              prints a number from what the ranks have added up in mode floor
// The models are on the device that --device names for PyTorch; without it, on the cpu. MODE is
// none (no communication), meet (the ranks meet once a step, and nothing else), floor (they meet,
// add up as many bytes as the gradients have, and meet again), ddp, measured (with buckets of
// measured size), or no_sync (wrapped, but without communication). ZERO says whether gradients
// become none or zero between steps. Answers are lines of JSON. STRETTO_* say where the ranks meet,
// as always.

#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/drivers/ddp_models.h"
#include "stretto/torch.h"

namespace stretto::bench {
namespace {

double microseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// Numbers of each rank in memory that all ranks have mapped. run() does the least that a mean of
// them takes: each rank reads its share of all ranks' numbers, and writes the mean to all ranks.
class Floor {
 public:
  Floor(Communicator& communicator, std::size_t count)
      : communicator_(communicator), numbers_(communicator, count) {
    for (int rank = 0; rank < communicator.size(); ++rank) {
      of_ranks_.push_back(numbers_.span(rank));
      if (of_ranks_.back().size() < count) {
        throw std::runtime_error("no shared memory for the floor");
      }
    }
    std::ranges::fill(numbers_.span(), static_cast<float>(communicator.rank().value() + 1) * 1.5f);
  }

  void run() {
    communicator_.barrier().wait();
    const std::size_t ranks = of_ranks_.size(), count = of_ranks_.front().size();
    const auto own = static_cast<std::size_t>(communicator_.rank());
    const std::size_t end = (own + 1) * count / ranks;
    for (std::size_t at = own * count / ranks; at < end; at += kPiece) {
      const std::size_t piece = std::min(kPiece, end - at);
      std::copy_n(of_ranks_.front().data() + at, piece, sum_.begin());
      for (std::size_t rank = 1; rank < ranks; ++rank) {
        const float* const from = of_ranks_[rank].data() + at;
        for (std::size_t i = 0; i < piece; ++i) sum_[i] += from[i];
      }
      for (std::size_t i = 0; i < piece; ++i) sum_[i] /= static_cast<float>(ranks);
      for (const std::span<float> to : of_ranks_) std::copy_n(sum_.begin(), piece, &to[at]);
    }
    communicator_.barrier().wait();
  }
  // The value of this rank's numbers if all of them are equal; otherwise NaN.
  float number() const {
    const auto [least, most] = std::ranges::minmax(numbers_.span());
    return least == most ? most : std::nanf("");
  }

 private:
  static constexpr std::size_t kPiece = 4096;  // Stays in the nearest cache.

  Communicator& communicator_;
  SymmetricBuffer<float> numbers_;
  std::vector<std::span<float>> of_ranks_;
  std::array<float, kPiece> sum_{};
};

// A model that is trained, wrapped or not, with its optimizer.
class Trainee {
 public:
  Trainee(const std::string& name, bool small, torch::Device device, Communicator& communicator,
          const std::string& mode)
      : communicator_(communicator),
        device_(device),
        model_(make_model(name, small)),
        batch_(make_batch(name, small, communicator.rank().value())),
        optimizer_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)) {
    model_->to(device_);
    batch_ = {batch_.input.to(device_), batch_.target.to(device_)};
    DistributedDataParallelOptions options;
    if (mode == "measured") options.bucket_bytes = measured_bucket_bytes(communicator);
    if (mode != "none") ddp_.emplace(model_, communicator, options);
  }

  void step(bool set_to_none, const std::string& mode) {
    optimizer_.zero_grad(set_to_none);
    const auto output = ddp_ ? ddp_->forward(batch_.input) : model_->forward(batch_.input);
    torch::nn::functional::cross_entropy(output, batch_.target).backward();
    if (mode == "meet") communicator_.barrier().wait();
    if (mode == "floor") floor().run();
    optimizer_.step();
    // A step has ended when the device has nothing left to do.
    if (!device_.is_cpu()) (void)model_->parameters().back().flatten()[0].item<float>();
  }
  Floor& floor() {
    if (floor_ == nullptr) {
      std::size_t count = 0;
      for (const torch::Tensor& parameter : model_->parameters()) {
        count += static_cast<std::size_t>(parameter.numel());
      }
      floor_ = std::make_unique<Floor>(communicator_, count);
    }
    return *floor_;
  }
  NoSync no_sync() { return ddp_->no_sync(); }

  // The sums wrap around, so the order of additions does not matter.
  std::int64_t fingerprint() const {
    std::uint64_t sum = 0;
    for (const torch::Tensor& parameter : model_->parameters()) {
      const auto bits = parameter.detach().flatten().view(torch::kInt).to(torch::kLong);
      const auto weighted = (bits * torch::arange(1, bits.numel() + 1, bits.options())).sum();
      sum = sum * 31 + static_cast<std::uint64_t>(weighted.item<std::int64_t>());
    }
    return static_cast<std::int64_t>(sum);
  }

 private:
  Communicator& communicator_;
  const torch::Device device_;
  std::shared_ptr<TrainedModel> model_;
  Batch batch_;
  torch::optim::SGD optimizer_;
  std::optional<DistributedDataParallel<TrainedModel>> ddp_;
  std::unique_ptr<Floor> floor_;
};

class Driver {
 public:
  Driver(bool small, torch::Device device) : small_(small), device_(device) {}

  std::string answer(const std::string& order) {
    std::istringstream words(order);
    std::string command, model, mode, zero;
    words >> command >> model >> mode;
    Trainee& trainee = trainee_of(model, mode);
    if (command == "fingerprint") {
      return "{\"fingerprint\": " + std::to_string(trainee.fingerprint()) + "}";
    }
    if (command == "floor") {
      return "{\"sum\": " + std::to_string(trainee.floor().number()) + "}";
    }
    int steps = 0;
    words >> zero >> steps;
    if (mode != "no_sync") return times_of(steps, trainee, zero == "none", mode);
    const NoSync guard = trainee.no_sync();
    return times_of(steps, trainee, zero == "none", mode);
  }

 private:
  static std::string times_of(int steps, Trainee& trainee, bool set_to_none,
                              const std::string& mode) {
    std::string wall, cpu;
    for (int i = 0; i < steps; ++i) {
      const double wall_begin = microseconds(CLOCK_MONOTONIC);
      const double cpu_begin = microseconds(CLOCK_PROCESS_CPUTIME_ID);
      trainee.step(set_to_none, mode);
      const std::string comma = i == 0 ? "" : ", ";
      cpu += comma + std::to_string(microseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin);
      wall += comma + std::to_string(microseconds(CLOCK_MONOTONIC) - wall_begin);
    }
    return "{\"wall_us\": [" + wall + "], \"cpu_us\": [" + cpu + "]}";
  }
  Trainee& trainee_of(const std::string& model, const std::string& mode) {
    if (make_model(model, true) == nullptr) throw std::runtime_error("no model '" + model + "'");
    const std::string kind = mode == "measured"                   ? "measured"
                             : mode == "ddp" || mode == "no_sync" ? "ddp"
                                                                  : "none";
    auto& trainee = trainees_[model + " " + kind];
    if (!trainee) trainee = std::make_unique<Trainee>(model, small_, device_, *communicator_, kind);
    return *trainee;
  }

  bool small_;
  torch::Device device_;
  std::unique_ptr<Communicator> communicator_ = join();
  std::map<std::string, std::unique_ptr<Trainee>> trainees_;
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  bool small = false;
  std::string device = "cpu";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    small = small || word == "--small";
    if (word == "--device" && i + 1 < argc) device = argv[++i];
  }
  // The linker leaves out a library none of whose functions are called, so this loads it.
  if (device.starts_with("cuda")) (void)::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  try {
    stretto::bench::Driver driver(small, torch::Device(device));
    std::cout << "{\"version\": \"stretto, libtorch " << TORCH_VERSION << "\"}" << std::endl;
    for (std::string order; std::getline(std::cin, order);) {
      std::cout << driver.answer(order) << std::endl;
    }
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << std::endl;
    return 1;
  }
}
