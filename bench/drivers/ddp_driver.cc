// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of ./dev bench ddp that trains with stretto. Each line of its input is an order:
//   train MODEL MODE ZERO STEPS    prints the microseconds that each step took, by the clock on the
//                                  wall and of all threads of this process together
//   fingerprint MODEL MODE         prints a number that depends on every bit of the parameters
// MODE is plain (without communication), meet (the ranks meet once a step, and that is all), ddp,
// or no_sync (wrapped, but without communication); ZERO is what becomes of gradients between steps:
// none or zero. Answers are lines of JSON. Where the ranks meet is in STRETTO_*, as always.

#include <time.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
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

// A model that is trained, wrapped or not, with its optimizer.
class Trainee {
 public:
  Trainee(const std::string& name, bool small, Communicator& communicator, bool wrapped)
      : communicator_(communicator),
        model_(make_model(name, small)),
        batch_(make_batch(name, small, communicator.rank().value())),
        optimizer_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)) {
    if (wrapped) ddp_.emplace(model_, communicator);
  }

  void step(bool set_to_none, bool meet) {
    optimizer_.zero_grad(set_to_none);
    const auto output = ddp_ ? ddp_->forward(batch_.input) : model_->forward(batch_.input);
    torch::nn::functional::cross_entropy(output, batch_.target).backward();
    if (meet) communicator_.barrier().wait();
    optimizer_.step();
  }
  NoSync no_sync() { return ddp_->no_sync(); }

  // A sum that wraps around, so its order does not matter.
  std::int64_t fingerprint() const {
    std::uint64_t sum = 0;
    for (const torch::Tensor& parameter : model_->parameters()) {
      const auto bits = parameter.detach().flatten().view(torch::kInt).to(torch::kLong);
      const auto weighted = (bits * torch::arange(1, bits.numel() + 1)).sum();
      sum = sum * 31 + static_cast<std::uint64_t>(weighted.item<std::int64_t>());
    }
    return static_cast<std::int64_t>(sum);
  }

 private:
  Communicator& communicator_;
  std::shared_ptr<TrainedModel> model_;
  Batch batch_;
  torch::optim::SGD optimizer_;
  std::optional<DistributedDataParallel<TrainedModel>> ddp_;
};

class Driver {
 public:
  explicit Driver(bool small) : small_(small) {}

  std::string answer(const std::string& order) {
    std::istringstream words(order);
    std::string command, model, mode, zero;
    words >> command >> model >> mode;
    Trainee& trainee = trainee_of(model, mode);
    if (command == "fingerprint") {
      return "{\"fingerprint\": " + std::to_string(trainee.fingerprint()) + "}";
    }
    int steps = 0;
    words >> zero >> steps;
    if (mode != "no_sync") return times_of(steps, trainee, zero == "none", mode == "meet");
    const NoSync guard = trainee.no_sync();
    return times_of(steps, trainee, zero == "none", false);
  }

 private:
  static std::string times_of(int steps, Trainee& trainee, bool set_to_none, bool meet) {
    std::string wall, cpu;
    for (int i = 0; i < steps; ++i) {
      const double wall_begin = microseconds(CLOCK_MONOTONIC);
      const double cpu_begin = microseconds(CLOCK_PROCESS_CPUTIME_ID);
      trainee.step(set_to_none, meet);
      const std::string comma = i == 0 ? "" : ", ";
      cpu += comma + std::to_string(microseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin);
      wall += comma + std::to_string(microseconds(CLOCK_MONOTONIC) - wall_begin);
    }
    return "{\"wall_us\": [" + wall + "], \"cpu_us\": [" + cpu + "]}";
  }
  Trainee& trainee_of(const std::string& model, const std::string& mode) {
    if (make_model(model, true) == nullptr) throw std::runtime_error("no model '" + model + "'");
    const bool wrapped = mode == "ddp" || mode == "no_sync";
    auto& trainee = trainees_[model + (wrapped ? " wrapped" : "")];
    if (!trainee) trainee = std::make_unique<Trainee>(model, small_, *communicator_, wrapped);
    return *trainee;
  }

  bool small_;
  std::unique_ptr<Communicator> communicator_ = join();
  std::map<std::string, std::unique_ptr<Trainee>> trainees_;
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  try {
    stretto::bench::Driver driver(argc > 1 && std::string(argv[1]) == "--small");
    std::cout << "{\"version\": \"stretto, libtorch " << TORCH_VERSION << "\"}" << std::endl;
    for (std::string order; std::getline(std::cin, order);) {
      std::cout << driver.answer(order) << std::endl;
    }
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << std::endl;
    return 1;
  }
}
