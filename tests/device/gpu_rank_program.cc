// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job on a device, for scripts/gpu_check.py:
//   gpu_rank_program DEVICE [FEATURES [BYTES]|losses]
// DEVICE is "cuda" or another device type of PyTorch. Layers of the model have FEATURES features,
// and the largest buffers have BYTES bytes. With "losses", the program trains the models of
// ./dev bench ddp instead. It prints a line of JSON for each check. If one fails, it exits with 1
// and a line that begins with "wrong". With the backend "nccl" or "cuda" it runs collectives, also
// on memory that the communicator has made. It computes gradients on the device twice, and reduces
// them once on the device, if the backend does that, and once on the host.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/base/stream_guard.h"
#include "stretto/torch.h"
#include "stretto/torch_device/scalar_type.h"
#include "stretto/torch_device/streams.h"
#include "tests/device/training_checks.h"
#include "tests/end_to_end/rank_program.h"
#include "tests/support/captured_graph.h"
#include "tests/support/device_trial.h"

namespace {

constexpr int kSteps = 8;

struct Where {
  torch::Device device;
  std::int64_t features;  // Each layer's weight is `features` by `features`.
};

// Its parameters are made on the device, since not all devices support Module::to().
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Where& where) {
    torch::manual_seed(1);
    for (int layer = 0; layer < 4; ++layer) {
      const auto random = [&](at::IntArrayRef sizes) {
        return (torch::randn(sizes) / 16).to(where.device);
      };
      const std::string number = std::to_string(layer);
      weights.push_back(
          register_parameter("weight" + number, random({where.features, where.features})));
      biases.push_back(register_parameter("bias" + number, random({where.features})));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t layer = 0; layer < weights.size(); ++layer) {
      x = torch::tanh(torch::mm(x, weights[layer]) + biases[layer]);
    }
    return x.square().mean();
  }
  std::vector<torch::Tensor> weights, biases;
};
TORCH_MODULE(Net);

// Waits for the device in the only way that works for all of PyTorch's devices.
void wait_for(const torch::Tensor& tensor) { (void)tensor.flatten()[0].item<float>(); }

// A model and its DistributedDataParallel.
class Trained {
 public:
  Trained(stretto::Communicator& communicator, const Where& where,
          stretto::DistributedDataParallelOptions options)
      : model_(where), ddp_(model_, communicator, std::move(options)) {}

  // Takes a step. Returns the milliseconds from the start of the backward pass to the end of its
  // work on the device.
  double step(const torch::Tensor& batch) {
    ddp_.zero_grad();
    const torch::Tensor loss = ddp_.forward(batch);
    wait_for(loss);
    const stretto::TimePoint begin = stretto::Clock::now();
    loss.backward();
    for (const torch::Tensor& parameter : model_->parameters()) wait_for(parameter.grad());
    return stretto::seconds(stretto::Clock::now() - begin) * 1e3;
  }
  double distance_to(const Trained& other) const {
    double greatest = 0;
    const auto own = model_->parameters(), others = other.model_->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      const torch::Tensor between = (own[i].grad().cpu() - others[i].grad().cpu()).abs();
      greatest = stretto::testing::greater(greatest, between.max().item<double>());
    }
    return greatest;
  }

 private:
  Net model_;
  stretto::DistributedDataParallel<Net> ddp_;
};

struct Comparison {
  const char* name;
  stretto::DistributedDataParallelOptions on_device;
  stretto::DistributedDataParallelOptions on_host;
  double allowed;  // The allowed difference of gradients, which are about 1e-4.
};

void compare(stretto::Communicator& communicator, const Where& where, const Comparison& what) {
  Trained on_device(communicator, where, what.on_device);
  Trained on_host(communicator, where, what.on_host);
  double device_ms = 1e9, host_ms = 1e9, distance = 0;
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(100 * step + communicator.rank().value()));
    const torch::Tensor batch = torch::randn({64, where.features}).to(where.device);
    device_ms = std::min(device_ms, on_device.step(batch));
    host_ms = std::min(host_ms, on_host.step(batch));
    distance = stretto::testing::greater(distance, on_device.distance_to(on_host));
  }
  std::printf(
      "{\"check\": \"%s\", \"rank\": %d, \"ranks\": %d, \"largest_difference\": %g, \"allowed\": "
      "%g, \"device_ms\": %.3f, \"host_ms\": %.3f}\n",
      what.name, communicator.rank().value(), communicator.size(), distance, what.allowed,
      device_ms, host_ms);
  if (!(distance <= what.allowed)) throw std::runtime_error(std::string(what.name) + " differs");
}

// A codec that is passed as a communication_hook compresses on the host; the option `codec`
// compresses on the device.
void compare_all(stretto::Communicator& communicator, const Where& where) {
  using namespace stretto;  // NOLINT: options.
  const auto by_host = [](std::shared_ptr<const Compressor> codec) {
    return std::make_shared<CompressedReduction>(CompressionOptions{.codec = std::move(codec)});
  };
  compare(communicator, where,
          {"gradients as they are", {}, {.mean_division = MeanDivision::before_sum}, 1e-7});
  compare(communicator, where,
          {"bf16 hook",
           {.communication_hook = std::make_shared<Bf16Reduction>()},
           {.mean_division = MeanDivision::before_sum,
            .communication_hook = std::make_shared<Bf16Reduction>()},
           1e-5});
  const std::tuple<const char*, std::shared_ptr<const Compressor>, double> codecs[] = {
      {"codec top_k", top_k(), 0},
      {"codec top_k, bf16 values", top_k({.values = ValueFormat::bf16}), 0},
      {"codec f16", f16(), 0},
      {"codec bf16", bf16(), 0},
      {"codec int8", int8(), 0},
      {"codec int8, stochastic", int8({.stochastic = true}), 0},
      {"codec one_bit", one_bit(), 0},
      {"codec threshold", threshold({.limit = 1e-4f}), 0},
      {"codec nonzeros", nonzeros(), 0},
      {"codec dense", dense(), 1e-7},
      {"power_sgd", power_sgd(), 1e-6}};
  for (const auto& [name, codec, allowed] : codecs) {
    compare(communicator, where,
            {name, {.codec = codec}, {.communication_hook = by_host(codec)}, allowed});
  }
}

stretto::View view_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel()),
          stretto::dtype_of_scalar_type(tensor.scalar_type()).value()};
}

// Makes a tensor on the device for collectives.
using MakeTensor = std::function<torch::Tensor(std::int64_t count, torch::ScalarType type)>;

MakeTensor of_torch(torch::Device device) {
  return [=](std::int64_t count, torch::ScalarType type) {
    return torch::zeros({count}, torch::TensorOptions().dtype(type).device(device));
  };
}

// Makes tensors in memory of the communicator.
MakeTensor of_communicator(stretto::Communicator& communicator, torch::Device device) {
  return [&communicator, device](std::int64_t count, torch::ScalarType type) {
    const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(type);
    auto memory = std::make_shared<stretto::Memory>(
        communicator.allocate_bytes(bytes, communicator.device()));
    return at::for_blob(memory->bytes().data(), {count})
        .options(torch::TensorOptions().dtype(type).device(device))
        .target_device(device)
        .deleter([memory](void*) mutable { memory.reset(); })
        .make_tensor();
  };
}

void expect(const char* what, const torch::Tensor& result, double value) {
  if (torch::all(result.cpu() == value).item<bool>()) return;
  throw std::runtime_error(std::string(what) + " is not " + std::to_string(value));
}

void try_collectives(stretto::Communicator& communicator, const MakeTensor& make,
                     const char* name) {
  const int ranks = communicator.size(), rank = communicator.rank().value();
  const auto filled = [&](std::int64_t count, double value) {
    return make(count, torch::kFloat).fill_(value);
  };
  constexpr std::int64_t kCount = 1024;
  torch::Tensor own = filled(kCount, rank + 1), part = filled(kCount, 0);
  torch::Tensor all = filled(kCount * ranks, 0), swapped = filled(kCount * ranks, 0);
  communicator.all_gather(view_of(own), view_of(all)).wait();
  expect("all_gather", all.slice(0, 0, kCount), 1);
  expect("all_gather", all.slice(0, kCount * (ranks - 1)), ranks);
  communicator.all_to_all(view_of(all), view_of(swapped)).wait();
  expect("all_to_all", swapped, rank + 1);
  communicator.reduce_scatter(view_of(all), view_of(part)).wait();
  expect("reduce_scatter", part, ranks * (rank + 1));
  communicator.broadcast(view_of(part)).wait();
  expect("broadcast", part, ranks);
  communicator.all_reduce(view_of(own)).wait();
  expect("all_reduce", own, ranks * (ranks + 1) / 2.0);
  communicator.all_reduce(view_of(own), {.op = stretto::ReduceOp::max}).wait();
  expect("all_reduce, max", own, ranks * (ranks + 1) / 2.0);
  stretto::testing::say_passed(name, communicator);
}

// Whenever the graph is launched, it sums up three times `given`. What it does beside the
// collective must stay beside it.
void launch_graphs(stretto::Communicator& communicator, const MakeTensor& make,
                   torch::Device device) {
  constexpr int kLaunches = 10;
  const int rank = communicator.rank().value(), ranks = communicator.size();
  const torch::Tensor given = make(1000, torch::kFloat), work_on = make(1000, torch::kFloat);
  const torch::Tensor beside = make(1000, torch::kFloat), result = make(1000, torch::kFloat);
  const c10::Stream stream = stretto::new_stream(device);
  const c10::StreamGuard current(stream);
  const stretto::StreamGuard behind(stream.native_handle());
  const std::string file = stretto::process_environment().get("STRETTO_CUDA_DRIVER").value_or("");
  auto* const handle = static_cast<stretto::cuda::StreamHandle>(stream.native_handle());
  const stretto::testing::CapturedGraph graph(
      file, stretto::cuda::Driver::open(file, device.index()).or_throw(), handle, [&] {
        work_on.copy_(given);
        stretto::Work work = communicator.all_reduce(view_of(work_on), {.factor = 3});
        beside.copy_(given);
        work.wait();
        result.copy_(work_on);
      });
  graph.status().or_throw();
  for (int launch = 1; launch <= kLaunches; ++launch) {
    given.fill_(launch * (rank + 1));
    graph.launch(handle);
    communicator.all_reduce(view_of(beside)).wait();
    const double sum = launch * ranks * (ranks + 1) / 2.0;
    expect("an all_reduce in a graph", result, 3 * sum);
    expect("an all_reduce behind a graph", beside, sum);
  }
  stretto::testing::say_passed("collectives in a graph", communicator);
}

// Runs every collective, also with unequal shares and with lists.
void compare_with_host(stretto::Communicator& communicator) {
  const std::string driver = stretto::process_environment().get("STRETTO_CUDA_DRIVER").value_or("");
  const std::string found = stretto::testing::difference_on_device(communicator, driver);
  if (!found.empty()) throw std::runtime_error(found + " has not the bits of the host's");
  stretto::testing::say_passed("bits of the host, all collectives", communicator);
}

// Compares sums, sums of products and maxima of the same values on the device and on the host, for
// every dtype of which PyTorch has random numbers. With stretto's own schedules they have the same
// bits.
void compare_dtypes_with_host(stretto::Communicator& communicator, const MakeTensor& make) {
  constexpr std::pair<stretto::ReduceOp, double> kReductions[] = {
      {stretto::ReduceOp::sum, 1}, {stretto::ReduceOp::max, 1}, {stretto::ReduceOp::sum, 0.3}};
  for (const torch::ScalarType type :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kChar, torch::kByte,
        torch::kShort, torch::kInt, torch::kLong, torch::kComplexFloat, torch::kComplexDouble}) {
    for (const auto& [op, factor] : kReductions) {
      if (op == stretto::ReduceOp::max && c10::isComplexType(type)) continue;
      if (factor != 1 && !c10::isFloatingType(type)) continue;
      torch::manual_seed(static_cast<std::uint64_t>(communicator.rank().value()));
      torch::Tensor on_host = (torch::randn({100'003}).abs() * 30).to(type);
      torch::Tensor on_device = make(on_host.numel(), type).copy_(on_host);
      for (const torch::Tensor& data : {on_device, on_host}) {
        communicator.all_reduce(view_of(data), {.op = op, .factor = factor}).wait();
      }
      if (torch::equal(on_device.cpu(), on_host)) continue;
      throw std::runtime_error(std::string("an all_reduce of ") + c10::toString(type) +
                               " on the device has not the bits of the host's");
    }
  }
  stretto::testing::say_passed("bits of the host, all dtypes", communicator);
}

// Averages all parameters on the device at once.
void average_parameters(stretto::Communicator& communicator, const Where& where) {
  Net model(where);
  const torch::NoGradGuard no_grad;
  const int rank = communicator.rank().value(), ranks = communicator.size();
  for (torch::Tensor& parameter : model->parameters()) parameter.fill_(rank);
  stretto::ParameterAveraging(model->parameters(), communicator).after_step();
  for (const torch::Tensor& parameter : model->parameters()) {
    expect("an average of parameters", parameter, (ranks - 1) / 2.0);
  }
  stretto::testing::say_passed("averages of parameters", communicator);
}

// Memory that ranks have freed must be available again, although others had mapped it: two ranks
// take more than a GPU has, one buffer after the other.
void use_much_memory(stretto::Communicator& communicator, const MakeTensor& make,
                     std::int64_t count) {
  constexpr int kTimes = 8;
  for (int i = 0; i < kTimes; ++i) {
    const torch::Tensor data = make(count, torch::kFloat);
    communicator.all_reduce(view_of(data)).wait();
    expect("memory that has just been made", data.slice(0, count - 1), 0);
  }
  std::printf(
      "{\"check\": \"memory that comes and goes\", \"rank\": %d, \"ranks\": %d, \"gib\": %g}\n",
      communicator.rank().value(), communicator.size(),
      static_cast<double>(kTimes * count) * sizeof(float) / (1 << 30));
}

// An all_reduce cannot be faster than a copy of as many bytes on the device, which is timed, too.
void time_all_reduce(stretto::Communicator& communicator, const MakeTensor& make,
                     std::int64_t count) {
  const torch::Tensor data = make(count, torch::kFloat), copy = make(count, torch::kFloat);
  const auto best_of = [&](const auto& act) {
    double best_ms = 1e9;
    for (int step = 0; step < kSteps; ++step) {
      communicator.barrier().wait();
      const stretto::TimePoint begin = stretto::Clock::now();
      act();
      best_ms = std::min(best_ms, stretto::seconds(stretto::Clock::now() - begin) * 1e3);
    }
    return best_ms;
  };
  const double all_reduce_ms = best_of([&] { communicator.all_reduce(view_of(data)).wait(); });
  const double copy_ms = best_of([&] {
    copy.copy_(data);
    wait_for(copy);
  });
  std::printf(
      "{\"check\": \"all_reduce of %g KiB\", \"rank\": %d, \"ranks\": %d, \"ms\": %.3f, "
      "\"copy_ms\": %.3f}\n",
      static_cast<double>(count) / 256, communicator.rank().value(), communicator.size(),
      all_reduce_ms, copy_ms);
}

// The last rank exits without notice, as if it had been killed.
void survive_a_death(stretto::Communicator& communicator, const MakeTensor& make) {
  const torch::Tensor data = make(1 << 20, torch::kFloat);
  const int last = communicator.size() - 1;
  // Other ranks may still be in the barrier when the last rank is gone.
  stretto::Work met = communicator.barrier();
  if (communicator.rank().value() == last) {
    met.wait();
    std::fflush(stdout);
    std::_Exit(0);
  }
  const stretto::TimePoint begin = stretto::Clock::now();
  try {
    met.wait();
    for (;;) communicator.all_reduce(view_of(data)).wait();
  } catch (const stretto::PeerLost& error) {
    std::printf("{\"check\": \"a death\", \"rank\": %d, \"ms\": %.1f, \"text\": \"%s\"}\n",
                communicator.rank().value(), stretto::seconds(stretto::Clock::now() - begin) * 1e3,
                error.what());
    if (std::string(error.what()).find("rank " + std::to_string(last)) != std::string::npos) return;
    throw;
  }
}

// The largest buffers have `many` elements.
void check_all(stretto::Communicator& communicator, torch::Device device, std::int64_t features,
               std::int64_t many) {
  const bool maps_devices = communicator.device() && communicator.maps_devices();
  if (communicator.device()) {
    const MakeTensor make = of_communicator(communicator, device);
    try_collectives(communicator, make, "collectives on memory of the communicator");
    const auto part = communicator.split({.color = 0});
    try_collectives(*part, make, "collectives in a part");
    part->abort("a check of abort()");
    if (maps_devices) {
      compare_with_host(communicator);
      compare_dtypes_with_host(communicator, make);
    } else {
      try_collectives(communicator, of_torch(device), "collectives on memory of PyTorch");
      launch_graphs(communicator, of_torch(device), device);
    }
    const std::int64_t whole = 16 * features * features;
    for (const std::int64_t count : {std::int64_t{1}, whole / 256, whole, 4 * whole}) {
      time_all_reduce(communicator, make, count);
    }
    if (maps_devices) use_much_memory(communicator, make, many);
  }
  average_parameters(communicator, {device, features});
  if (device.is_cuda()) {  // Mocks lack Module::to(); see training_test.cc.
    stretto::testing::check_sync_batch_norm(communicator, device);
    stretto::testing::check_sharded_optimizer(communicator, device);
    stretto::testing::check_saved_state(communicator, device);
  }
  compare_all(communicator, {device, features});
  if (maps_devices && communicator.size() > 1) {
    survive_a_death(communicator, of_communicator(communicator, device));
  }
}

void run(const std::string& name, const std::string& what, const std::string& bytes) {
  // Otherwise the linker leaves the library out, because no function of it is called.
  if (name == "cuda") (void)::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  const auto communicator = stretto::join();
  const auto number = communicator->device().value_or(0);
  const torch::Device device(name + ":" + std::to_string(number));
  if (what == "losses") {
    stretto::testing::compare_all_losses(*communicator, device);
  } else {
    const std::int64_t features = std::atoll(what.c_str());
    constexpr auto kElement = static_cast<std::int64_t>(sizeof(float));
    check_all(
        *communicator, device, features,
        bytes.empty() ? 3 * 1024 * features * features : std::atoll(bytes.c_str()) / kElement);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4)
    return std::fputs("usage: gpu_rank_program DEVICE [FEATURES [BYTES]|losses]\n", stderr), 2;
  return stretto::testing::run_or_explain(
      [&] { run(argv[1], argc > 2 ? argv[2] : "1024", argc > 3 ? argv[3] : ""); });
}
