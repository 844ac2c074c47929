// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What programs do around the training loop: checkpoints, parts that are frozen for a while, other
// types on the way and inside, samples shared out, metrics over all ranks, replicas that are
// compared, and what steps cost.
//   build/release/bin/stretto run -n 2 -- build/release/bin/08_resume_and_unfreeze FOLDER

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stretto/torch.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::tanh(body(x))); }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(8, 8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Net);

void train_in_bf16(stretto::Communicator& comm) {
  stretto::DistributedDataParallelOptions options;
  options.mixed_precision = {.parameter_dtype = stretto::DType::bf16};
  options.mean_division = stretto::MeanDivision::before_sum;
  options.bucket_bytes = stretto::measured_bucket_bytes(comm);
  options.verify_every_steps = 10;  // Names the first parameter that differs, and where.
  Net model;
  stretto::DistributedDataParallel ddp(model, comm, options);
  torch::optim::Adam optimizer(ddp.parameters(), 0.01);
  for (int i = 0; i < 20; ++i) {
    const auto data = torch::randn({16, 8});
    optimizer.zero_grad();
    (ddp.forward(data).to(torch::kFloat) - data.sum(1, true)).pow(2).mean().backward();
    optimizer.step();  // All digits: parameters and gradients are f32 outside of a step.
  }
}

void train_on_samples(stretto::DistributedDataParallel<Net>& ddp, stretto::Communicator& comm,
                      torch::optim::Optimizer& optimizer, const std::string& timeline_path) {
  const auto samples = torch::arange(8 * 100, torch::kFloat).reshape({100, 8}).sin();
  torch::data::samplers::DistributedRandomSampler sampler(static_cast<std::size_t>(samples.size(0)),
                                                          static_cast<std::size_t>(comm.size()),
                                                          static_cast<std::size_t>(comm.rank()));
  stretto::Timeline timeline(comm.rank());
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);  // The same order on all ranks, another one in each epoch.
    ddp.set_epoch(epoch);      // Finds out if they have different numbers of batches.
    sampler.reset();
    while (const auto indices = sampler.next(16)) {
      const std::vector<std::int64_t> rows(indices->begin(), indices->end());
      const auto data = samples.index_select(0, torch::tensor(rows));
      optimizer.zero_grad();
      (ddp.forward(data) - data.sum(1, true)).pow(2).mean().backward();
      optimizer.step();
      timeline.add(ddp.last_step());
    }
  }
  timeline.write_merged(comm, timeline_path);  // Of all ranks, by one clock: who was last?
}

// Ranks are lost, or leave; those who are left go on.
void train_with_who_is_left(std::unique_ptr<stretto::Communicator> comm) {
  Net model;
  for (int step = 0; step < 20;) {
    try {
      stretto::DistributedDataParallel ddp(model, *comm);  // Parameters of the first who is left,
      std::vector<int> steps = {step};
      comm->broadcast(steps).wait();  // and its count: one may have taken a step more than another.
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      for (step = steps[0]; step < 20; ++step) {
        if (step == 10 && comm->rank() == 1) return;  // Which others are told of, like of a crash.
        const auto data = torch::randn({16, 8});
        optimizer.zero_grad();
        (ddp.forward(data) - data.sum(1, true)).pow(2).mean().backward();
        optimizer.step();
      }
    } catch (const stretto::Error& error) {
      const auto code = error.status().code();  // Aborted: by shrink() on another rank.
      if (code != stretto::StatusCode::peer_lost && code != stretto::StatusCode::aborted) throw;
      std::printf("%s\n", error.what());
      comm = comm->shrink();
    }
  }
  std::printf("%d trained to the end\n", comm->size());
}

// All that training changes.
struct State {
  Net model;
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  int step = 0;

  // Replaces the file as a whole: a process that dies meanwhile leaves the old one.
  void save(const std::string& path) const {
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive of_model(archive.compilation_unit());
    torch::serialize::OutputArchive of_optimizer(archive.compilation_unit());
    model->save(of_model);
    optimizer.save(of_optimizer);
    archive.write("model", of_model);
    archive.write("optimizer", of_optimizer);
    archive.write("step", torch::tensor(step));
    archive.save_to(path + ".new");
    std::filesystem::rename(path + ".new", path);
  }

  void load(const std::string& path) {
    torch::serialize::InputArchive archive, of_model, of_optimizer;
    archive.load_from(path);
    archive.read("model", of_model);
    archive.read("optimizer", of_optimizer);
    model->load(of_model);
    optimizer.load(of_optimizer);
    torch::Tensor steps;
    archive.read("step", steps);
    step = steps.item<int>();
  }
};

// The same in a job that new processes may enter. A program whose ranks `stretto run --restarts`
// starts again has nothing but this, and no stretto::join().
void train_with_who_is_there(const std::string& path) {
  stretto::ElasticJob job;
  auto state = std::make_shared<State>();
  if (std::filesystem::exists(path)) state->load(path);  // A job before this one has left it.
  while (const auto comm = job.join()) {
    try {
      // Rank 0 sends its own, others receive into new ones: a failure leaves `state` as it was.
      const auto newest = comm->rank() == 0 ? state : std::make_shared<State>();
      stretto::DistributedDataParallel ddp(newest->model, *comm);  // The parameters,
      stretto::broadcast_optimizer(newest->optimizer, *comm);      // the momentum,
      std::vector<int> step = {newest->step};
      comm->broadcast(step).wait();  // and the count of steps.
      newest->step = step[0];
      state = newest;
      while (state->step < 20) {
        if (state->step % 10 == 0 && job.has_newcomers(*comm)) break;
        if (state->step == 10 && comm->rank() == 1) return;
        const auto data = torch::randn({16, 8});
        state->optimizer.zero_grad();
        (ddp.forward(data) - data.sum(1, true)).pow(2).mean().backward();
        state->optimizer.step();
        state->step += 1;
        if (state->step % 5 == 0 && comm->rank() == 0) state->save(path);
      }
      if (state->step == 20) job.finish();
    } catch (const stretto::Error& error) {
      if (!stretto::ElasticJob::is_loss(error)) throw;
    }
  }
  std::printf("after generation %d all steps are done: weights %.6f\n", job.generation(),
              state->model->head->weight.abs().sum().item<double>());
}

void train(const std::unique_ptr<stretto::Communicator>& comm, const std::string& folder) {
  const std::string path = folder + "/model.pt";

  Net model;
  for (auto& parameter : model->body->parameters()) parameter.set_requires_grad(false);
  stretto::DistributedDataParallel ddp(
      model, *comm, {.communication_hook = std::make_shared<stretto::Bf16Reduction>()});
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  torch::manual_seed(static_cast<std::uint64_t>(comm->rank().value()));

  torch::Tensor loss;
  const auto step = [&] {
    const auto data = torch::randn({16, 8});
    optimizer.zero_grad();
    loss = (ddp.forward(data) - data.sum(1, true)).pow(2).mean();
    loss.backward();
    optimizer.step();
  };
  for (int i = 0; i < 20; ++i) step();

  for (auto& parameter : ddp->body->parameters()) parameter.set_requires_grad(true);
  for (int i = 0; i < 20; ++i) step();  // The next forward pass notices it, on all ranks.

  if (comm->rank() == 0) torch::save(ddp, path);
  comm->barrier().wait();
  torch::load(ddp, path);  // On all ranks; the next backward pass compares them.
  step();

  const std::string state = folder + "/state";
  ddp.save_state(state, optimizer);  // Each rank its own file, with the optimizer's state.
  step();
  const std::uint64_t after = ddp.parameter_hash();
  ddp.load_state(state, optimizer);
  step();
  if (ddp.parameter_hash() != after) std::printf("the step is another one\n");

  train_in_bf16(*comm);
  const std::string rank = std::to_string(comm->rank().value());
  train_on_samples(ddp, *comm, optimizer, folder + "/timeline.json");

  auto mean = loss.detach();
  comm->all_reduce(mean, {.op = stretto::ReduceOp::mean}).wait();
  ddp.verify_replicas();
  if (comm->rank() == 0) std::printf("mean loss %.3f\n", mean.item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: 08_resume_and_unfreeze FOLDER\n", stderr), 2;
  auto comm = stretto::join();
  train(comm, argv[1]);
  train_with_who_is_there(std::string(argv[1]) + "/elastic.pt");
  train_with_who_is_left(std::move(comm));
}
