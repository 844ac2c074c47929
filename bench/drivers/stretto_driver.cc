// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <span>
#include <vector>

#include "bench/drivers/driver.h"
#include "stretto/stretto.h"

// Stretto as its users see it.
namespace stretto::bench {
namespace {

class StrettoLibrary final : public Library {
 public:
  explicit StrettoLibrary(std::unique_ptr<Communicator> communicator)
      : Library(communicator->rank().value(), communicator->size()),
        communicator_(std::move(communicator)) {}
  std::string version() const override { return "stretto"; }

  bool runs_several() const override { return true; }
  std::shared_ptr<float> allocate_registered(std::size_t count) override {
    const auto buffer = std::make_shared<Buffer<float>>(communicator_->allocate<float>(count));
    return {buffer, buffer->data()};
  }

  std::function<void()> make_call(const Job& job) override {
    Communicator& comm = *communicator_;
    const std::span whole(job.output, job.count);
    const std::span input(job.input, job.count);
    const std::span input_share(job.input, job.share);
    const std::span output_share(job.output, job.share);
    if (job.at_once > 1) {
      if (job.operation != "all_reduce") return {};
      return [&comm, input, whole, job] { start_and_wait(comm, input, whole, job); };
    }
    if (job.operation == "all_reduce") {
      return [&comm, input, whole, options = AllReduceOptions{.algorithm = job.algorithm}] {
        comm.all_reduce(input, whole, options).wait();
      };
    }
    if (job.operation == "reduce_scatter") {
      return [&comm, input, output_share] { comm.reduce_scatter(input, output_share).wait(); };
    }
    if (job.operation == "all_gather") {
      return [&comm, input_share, whole] { comm.all_gather(input_share, whole).wait(); };
    }
    if (job.operation == "all_to_all") {
      return [&comm, input, whole] { comm.all_to_all(input, whole).wait(); };
    }
    if (job.operation == "broadcast") return [&comm, whole] { comm.broadcast(whole).wait(); };
    if (job.operation == "reduce") return [&comm, whole] { comm.reduce(whole).wait(); };
    if (job.operation == "barrier") return [&comm] { comm.barrier().wait(); };
    return {};
  }

 private:
  static void start_and_wait(Communicator& comm, std::span<float> input, std::span<float> output,
                             const Job& job) {
    std::vector<Work> works;
    const std::size_t part = job.count / job.at_once;
    for (std::size_t i = 0; i < job.at_once; ++i) {
      works.push_back(comm.all_reduce(input.subspan(i * part, part), output.subspan(i * part, part),
                                      {.algorithm = job.algorithm}));
    }
    for (Work& work : works) work.wait();
  }

  std::unique_ptr<Communicator> communicator_;
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  return stretto::bench::drive_or_explain(
      [] { return std::make_unique<stretto::bench::StrettoLibrary>(stretto::join()); }, argc, argv);
}
