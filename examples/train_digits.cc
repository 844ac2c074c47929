// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The trainer behind ./dev demo: one global batch per step, whatever the number of processes, and a
// record of every step as a line of JSON. See --help, and scripts/demo.py for what becomes of it.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "examples/digits.h"
#include "stretto/torch.h"

namespace {

struct Options {
  std::string data = "data/digits.csv";
  std::string output;
  std::string model = "cnn";
  int epochs = 20;
  int global_batch = 128;
  int test_images = 261;  // The last ones: what remains of 1797 is twelve batches of 128.
  double learning_rate = 0.05;
  double momentum = 0.9;
  std::uint64_t seed = 1;
  int threads = 1;
};

CLI::App& describe_options(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "digits.csv")->check(CLI::ExistingFile);
  app.add_option("--output", options.output, "File for a line of JSON per step (else to stdout)");
  app.add_option("--model", options.model, "cnn or mlp")->check(CLI::IsMember({"cnn", "mlp"}));
  app.add_option("--epochs", options.epochs, "Passes over the data")->check(CLI::PositiveNumber);
  app.add_option("--global-batch", options.global_batch,
                 "Images per step over all processes; a multiple of their number")
      ->check(CLI::PositiveNumber);
  app.add_option("--test-images", options.test_images, "Images kept back for the test");
  app.add_option("--learning-rate", options.learning_rate, "Of SGD");
  app.add_option("--momentum", options.momentum, "Of SGD");
  app.add_option("--seed", options.seed, "Of initial values and order of images");
  app.add_option("--threads", options.threads, "Of libtorch in each process");
  return app;
}

// Without layers whose result depends on the rest of the batch (batch normalisation, dropout), so
// that the number of processes changes nothing but the rounding.
struct CnnImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::silu(conv1(x));
    x = torch::avg_pool2d(torch::silu(conv2(x)), 2);
    return torch::log_softmax(fc2(torch::silu(fc1(x.flatten(1)))), 1);
  }
  static torch::nn::Conv2d convolution(int in, int out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  }
  torch::nn::Conv2d conv1 = register_module("conv1", convolution(1, 32));
  torch::nn::Conv2d conv2 = register_module("conv2", convolution(32, 64));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(64 * 4 * 4, 512));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(512, 10));
};
TORCH_MODULE(Cnn);

struct MlpImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::relu(fc2(torch::relu(fc1(x.flatten(1)))));
    return torch::log_softmax(fc3(hidden), 1);
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(64, 1024));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(1024, 1024));
  torch::nn::Linear fc3 = register_module("fc3", torch::nn::Linear(1024, 10));
};
TORCH_MODULE(Mlp);

// Rank 0 writes; on the others it does nothing.
class Record {
 public:
  Record(const Options& options, bool active) : active_(active) {
    if (active && !options.output.empty()) file_.open(options.output);
    if (active && !options.output.empty() && !file_) {
      throw std::runtime_error("cannot write " + options.output);
    }
  }
  void write(const nlohmann::json& line) {
    if (!active_) return;
    (file_.is_open() ? file_ : std::cout) << line.dump() << std::endl;  // For those who follow it.
  }

 private:
  bool active_;
  std::ofstream file_;
};

double seconds_since(stretto::TimePoint begin) {
  return stretto::seconds(stretto::Clock::now() - begin);
}

std::string hexadecimal(std::uint64_t number) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << number;
  return text.str();
}

// Whether all ranks hold the same parameters, bit by bit.
bool ranks_agree(stretto::Communicator& comm, std::uint64_t hash) {
  const std::vector<std::int64_t> own = {static_cast<std::int64_t>(hash)};
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span<const std::int64_t>(own), std::span<std::int64_t>(all)).wait();
  return std::all_of(all.begin(), all.end(), [&](std::int64_t other) { return other == own[0]; });
}

template <class Model>
class Trainer {
 public:
  Trainer(const Options& options, stretto::Communicator& comm)
      : options_(options),
        comm_(comm),
        record_(options, comm.rank() == stretto::Rank(0)),
        all_(digits::load(options.data)),
        model_(build(options, comm)),
        ddp_(model_, comm),
        optimizer_(model_->parameters(),
                   torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum)) {}

  void run() {
    const std::int64_t train = all_.size() - options_.test_images;
    write_start();
    for (int epoch = 0; epoch < options_.epochs; ++epoch) {
      const auto order =
          digits::shuffled(train, options_.seed * 1000 + static_cast<std::uint64_t>(epoch));
      for (std::int64_t at = 0; at + options_.global_batch <= train; at += options_.global_batch) {
        step(epoch, order.slice(0, at, at + options_.global_batch));
      }
    }
    write_end(all_.slice(train, all_.size()));
  }

 private:
  // Every rank starts from values of its own: DistributedDataParallel makes rank 0's everyone's.
  static Model build(const Options& options, stretto::Communicator& comm) {
    torch::manual_seed(options.seed + static_cast<std::uint64_t>(comm.rank().value()));
    return Model();
  }

  void step(int epoch, const torch::Tensor& indices) {
    const std::int64_t share = options_.global_batch / comm_.size();
    const std::int64_t begin = comm_.rank().value() * share;
    const auto batch = all_.pick(indices.slice(0, begin, begin + share));
    const auto start = stretto::Clock::now();
    optimizer_.zero_grad();
    auto loss = torch::nll_loss(ddp_.forward(batch.images), batch.labels);
    loss.backward();
    optimizer_.step();
    const double step_seconds = seconds_since(start);
    // Measured: what follows is for the record only.
    std::vector<double> means = {loss.template item<double>(), step_seconds,
                                 ddp_.last_step().exposed_seconds,
                                 ddp_.last_step().communication_seconds};
    comm_.all_reduce(std::span<double>(means), {.op = stretto::ReduceOp::mean}).wait();
    const std::uint64_t hash = ddp_.parameter_hash();
    record_.write({{"step", step_++},
                   {"epoch", epoch},
                   {"loss", means[0]},
                   {"step_seconds", means[1]},
                   {"samples_per_second", options_.global_batch / means[1]},
                   {"exposed_seconds", means[2]},
                   {"communication_seconds", means[3]},
                   {"parameter_hash", hexadecimal(hash)},
                   {"ranks_agree", ranks_agree(comm_, hash)}});
  }

  void write_start() {
    std::int64_t parameters = 0;
    for (const auto& parameter : model_->parameters()) parameters += parameter.numel();
    const std::int64_t train = all_.size() - options_.test_images;
    record_.write({{"event", "start"},
                   {"processes", comm_.size()},
                   {"steps", train / options_.global_batch * options_.epochs},
                   {"model", options_.model},
                   {"parameters", parameters},
                   {"global_batch", options_.global_batch},
                   {"threads", options_.threads},
                   {"links", comm_.describe_links()},
                   {"progress_thread", comm_.has_progress_thread()}});
  }

  void write_end(const digits::Batch& test) {
    const torch::NoGradGuard no_grad;
    model_->eval();
    const auto correct = model_->forward(test.images).argmax(1).eq(test.labels).sum();
    ddp_.verify_replicas();
    record_.write(
        {{"event", "end"},
         {"buckets", ddp_.bucket_plan().size()},
         {"test_images", test.size()},
         {"test_accuracy", correct.template item<double>() /
                               static_cast<double>(std::max<std::int64_t>(1, test.size()))}});
  }

  const Options& options_;
  stretto::Communicator& comm_;
  Record record_;
  digits::Batch all_;
  Model model_;
  stretto::DistributedDataParallel<Model> ddp_;
  torch::optim::SGD optimizer_;
  int step_ = 0;
};

void check(const Options& options, const stretto::Communicator& comm) {
  if (options.global_batch % comm.size() != 0) {
    throw std::runtime_error("--global-batch " + std::to_string(options.global_batch) +
                             " is no multiple of " + std::to_string(comm.size()) + " processes");
  }
}

void train(const Options& options) {
  torch::set_num_threads(options.threads);
  const auto comm = stretto::join();
  check(options, *comm);
  if (options.model == "cnn") {
    Trainer<Cnn>(options, *comm).run();
  } else {
    Trainer<Mlp>(options, *comm).run();
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small model on handwritten digits, with one process or several");
  Options options;
  describe_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    train(options);
  } catch (const std::exception& error) {
    std::cerr << "train_digits: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
