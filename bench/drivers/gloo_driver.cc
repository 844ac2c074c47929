// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/drivers/driver.h"

// Gloo's C++ library over TCP on the loopback interface, since Gloo has no transport for a single
// host. Command line, besides that of every driver: --rank R --ranks N. Gloo's reduce_scatter
// leaves the result in the input, so it is not measured.
namespace stretto::bench {
namespace {

class GlooLibrary final : public Library {
 public:
  GlooLibrary(int rank, int size, const std::string& folder)
      : Library(rank, size), context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    gloo::transport::tcp::attr loopback;
    loopback.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(loopback);
    gloo::rendezvous::FileStore store(folder);
    context_->connectFullMesh(store, device);
  }

  std::string version() const override {
    return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + '.' + std::to_string(GLOO_VERSION_MINOR) +
           '.' + std::to_string(GLOO_VERSION_PATCH) + ", Debian's " STRETTO_GLOO_PACKAGE;
  }

  std::function<void()> make_call(const Job& job) override {
    if (job.operation == "all_reduce") return all_reduce(job);
    if (job.operation == "all_gather") {
      const auto options = std::make_shared<gloo::AllgatherOptions>(context_);
      options->setInput(job.input, job.share);
      options->setOutput(job.output, job.count);
      return [options] { gloo::allgather(*options); };
    }
    if (job.operation == "all_to_all") {
      const auto options = std::make_shared<gloo::AlltoallOptions>(context_);
      options->setInput(job.input, job.count);
      options->setOutput(job.output, job.count);
      return [options] { gloo::alltoall(*options); };
    }
    if (job.operation == "broadcast") {
      const auto options = std::make_shared<gloo::BroadcastOptions>(context_);
      options->setOutput(job.output, job.count);
      options->setRoot(0);
      return [options] { gloo::broadcast(*options); };
    }
    if (job.operation == "reduce") {
      const auto options = std::make_shared<gloo::ReduceOptions>(context_);
      options->setOutput(job.output, job.count);
      options->setRoot(0);
      options->setReduceFunction(kSum);
      return [options] { gloo::reduce(*options); };
    }
    if (job.operation == "barrier") {
      const auto options = std::make_shared<gloo::BarrierOptions>(context_);
      return [options] { gloo::barrier(*options); };
    }
    return {};
  }

 private:
  static constexpr void (*kSum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;

  std::function<void()> all_reduce(const Job& job) {
    if (job.algorithm == "halving_doubling") {
      if (job.input != job.output) return {};
      const auto algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
          context_, std::vector<float*>{job.output}, static_cast<int>(job.count));
      return [algorithm] { algorithm->run(); };
    }
    using Options = gloo::AllreduceOptions;
    const auto options = std::make_shared<Options>(context_);
    options->setAlgorithm(job.algorithm == "bcube" ? Options::Algorithm::BCUBE
                                                   : Options::Algorithm::RING);
    if (job.input != job.output) options->setInput(job.input, job.count);
    options->setOutput(job.output, job.count);
    options->setReduceFunction(kSum);
    return [options] { gloo::allreduce(*options); };
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  using namespace stretto::bench;
  return drive_or_explain(
      [&] {
        return std::make_unique<GlooLibrary>(number_behind(argc, argv, "--rank"),
                                             number_behind(argc, argv, "--ranks"),
                                             meeting_place_of(argc, argv).folder);
      },
      argc, argv);
}
