// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <oneapi/ccl.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/drivers/driver.h"

// oneCCL on CPUs. Command line, besides that of every driver: --ranks N; the rank is what the
// launcher of Intel MPI says.
namespace stretto::bench {
namespace {

// Rank 0's address reaches the others by a file beside the FIFOs.
ccl::shared_ptr_class<ccl::kvs> meet(const std::string& folder, int rank) {
  const std::string path = folder + "/oneccl";
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    const auto address = store->get_address();
    std::ofstream(path + ".unfinished", std::ios::binary).write(address.data(), address.size());
    if (std::rename((path + ".unfinished").c_str(), path.c_str()) != 0) {
      throw std::runtime_error("cannot write " + path);
    }
    return store;
  }
  ccl::kvs::address_type address;
  for (int i = 0; i < 3000; ++i) {
    if (std::ifstream(path, std::ios::binary).read(address.data(), address.size())) {
      return ccl::create_kvs(address);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("rank 0 never came");
}

class OneCclLibrary final : public Library {
 public:
  OneCclLibrary(const std::string& folder, int rank, int size)
      : rank_(rank),
        size_(size),
        store_(meet(folder, rank)),
        communicator_(ccl::create_communicator(size, rank, store_)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string version() const override { return std::string("oneCCL ") + CCL_PRODUCT_FULL; }
  std::shared_ptr<float> allocate_registered(std::size_t) override { return nullptr; }

  std::function<void()> make_call(const Job& job) override {
    constexpr auto kType = ccl::datatype::float32;
    constexpr auto kSum = ccl::reduction::sum;
    ccl::communicator& comm = communicator_;
    if (job.operation == "all_reduce") {
      return [=, &comm] {
        ccl::allreduce(job.input, job.output, job.count, kType, kSum, comm).wait();
      };
    }
    if (job.operation == "reduce_scatter") {
      return [=, &comm] {
        ccl::reduce_scatter(job.input, job.output, job.share, kType, kSum, comm).wait();
      };
    }
    if (job.operation == "all_gather") {
      const std::vector<std::size_t> shares(static_cast<std::size_t>(size_), job.share);
      return [=, &comm] {
        ccl::allgatherv(job.input, job.share, job.output, shares, kType, comm).wait();
      };
    }
    if (job.operation == "all_to_all") {
      return [=, &comm] { ccl::alltoall(job.input, job.output, job.share, kType, comm).wait(); };
    }
    if (job.operation == "broadcast") {
      return [=, &comm] { ccl::broadcast(job.output, job.count, kType, 0, comm).wait(); };
    }
    if (job.operation == "reduce") {
      return [=, &comm] {
        ccl::reduce(job.output, job.output, job.count, kType, kSum, 0, comm).wait();
      };
    }
    if (job.operation == "barrier") return [&comm] { ccl::barrier(comm).wait(); };
    return {};
  }

 private:
  int rank_;
  int size_;
  ccl::shared_ptr_class<ccl::kvs> store_;
  ccl::communicator communicator_;
};

int number_of(const char* text) {
  if (text == nullptr) throw std::runtime_error("PMI_RANK is not set: start it with mpiexec.hydra");
  return std::atoi(text);
}

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  using namespace stretto::bench;
  return drive_or_explain(
      [&] {
        ccl::init();
        return std::make_unique<OneCclLibrary>(meeting_place_of(argc, argv).folder,
                                               number_of(std::getenv("PMI_RANK")),
                                               number_behind(argc, argv, "--ranks"));
      },
      argc, argv);
}
