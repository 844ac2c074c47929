// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of ./dev bench gpus, started by `stretto run`:
//   gpu_driver ROUNDS BYTESxIN_FLIGHT...
// Rank 0 first prints a line "left out SYSTEM: REASON" for each system that is left out, and then a
// line of JSON for each system and point.

#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/drivers/gpu_systems.h"
#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/host_port.h"
#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/job/join.h"

namespace stretto::bench {
namespace {

int number_in(const char* variable, int otherwise) {
  const auto text = process_environment().get(variable);
  return text ? parse_number<int>(*text).value_or(otherwise) : otherwise;
}

Point point_of(std::string_view text) {
  const auto bytes = take_number<std::size_t>(text);
  const bool is_split = bytes && text.starts_with('x');
  const auto in_flight = is_split ? parse_number<std::size_t>(text.substr(1)) : std::nullopt;
  if (!in_flight || *in_flight == 0) throw std::runtime_error("a point is not like 4096x1");
  return {*bytes, *in_flight};
}

// The launcher's store, in which a job can meet more than once.
std::shared_ptr<bootstrap::Store> store_of_job(const Communicator& ranks) {
  if (ranks.size() == 1) return std::make_shared<bootstrap::MemoryStore>();
  const Environment& environment = process_environment();
  const auto place =
      bootstrap::parse_host_port(environment.get("STRETTO_RENDEZVOUS").value_or("")).or_throw();
  const auto key =
      bootstrap::JobKey::parse(environment.get("STRETTO_JOB_KEY").value_or("")).or_throw();
  return bootstrap::connect_tcp_store({.host = place.host,
                                       .port = place.port,
                                       .key = key,
                                       .self = {.rank = ranks.rank().value()}},
                                      Deadline::after(std::chrono::seconds(30)))
      .or_throw();
}

// Communicators of all ranks. Those that cannot be made are null.
struct Communicators {
  std::unique_ptr<Communicator> control, nccl, cuda;
  RankVector<int> hosts;
  std::vector<std::pair<std::string, std::string>> left_out;  // Names, and why.
};

bool share_a_gpu(Communicator& ranks) {
  const std::string file = process_environment().get("STRETTO_CUDA_DRIVER").value_or("");
  const int gpus = cuda::Driver::count(file).or_throw();
  if (gpus == 0) throw std::runtime_error("this process sees no GPU");
  const int number = number_in("STRETTO_DEVICE", number_in("STRETTO_LOCAL_RANK", 0) % gpus);
  const auto id = cuda::Driver::open(file, number).or_throw()->id().or_throw();
  const auto all = communicator::all_gather_value(ranks, id, std::nullopt);
  return std::set(all.begin(), all.end()).size() < all.size();
}

Communicators make_communicators() {
  Communicators made;
  made.control = join({.backend = "stretto"});
  made.hosts = made.control->hosts();
  const auto store = store_of_job(*made.control);
  const auto make = [&](const std::string& backend) -> std::unique_ptr<Communicator> {
    try {
      return make_communicator(std::make_shared<bootstrap::PrefixStore>(backend + "/", store),
                               made.control->rank(), made.control->size(), {.backend = backend});
    } catch (const Error& error) {  // It fails on all ranks.
      made.left_out.emplace_back(backend, error.what());
      return nullptr;
    }
  };
  if (share_a_gpu(*made.control)) {
    made.left_out.emplace_back("nccl", "ranks share a GPU, and NCCL takes one rank of each");
  } else {
    made.nccl = make("nccl");
  }
  made.cuda = make("cuda");
  if (made.cuda != nullptr && !made.cuda->device()) {
    made.cuda = nullptr;
    made.left_out.emplace_back("cuda", "it takes up to 16 ranks of one host");
  }
  if (made.cuda != nullptr) {
    try {  // GPUs that do not reach each other say so in the first operation, on all ranks.
      const auto data = made.cuda->allocate<float>(1, made.cuda->device());
      made.cuda->all_reduce(data.span()).wait();
    } catch (const Error& error) {
      made.cuda = nullptr;
      made.left_out.emplace_back("cuda", error.what());
    }
  }
  if (made.nccl != nullptr && !have_two_levels(made.hosts)) {
    made.left_out.emplace_back("two-level",
                               "it needs several hosts with as many GPUs each, two or more");
  }
  return made;
}

void run(int count, char** words) {
  std::vector<Point> points;
  for (int i = 2; i < count; ++i) points.push_back(point_of(words[i]));
  const Communicators ranks = make_communicators();
  const auto lines =
      measure_all_reduce({*ranks.control, ranks.nccl.get(), ranks.cuda.get(), ranks.hosts}, points,
                         std::atoi(words[1]), process_environment());
  ranks.control->barrier().wait();
  if (ranks.control->rank() != 0) return;
  for (const auto& [system, reason] : ranks.left_out) {
    fmt::print("left out {}: {}\n", system, reason);
  }
  for (const Line& line : lines) {
    fmt::print(
        "{{\"system\": \"{}\", \"ranks\": {}, \"bytes\": {}, \"in_flight\": {}, \"us\": [{:.2f}], "
        "\"call_us\": [{:.2f}]}}\n",
        line.system, ranks.control->size(), line.point.bytes, line.point.in_flight,
        fmt::join(line.us, ", "), fmt::join(line.call_us, ", "));
  }
}

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("usage: gpu_driver ROUNDS BYTESxIN_FLIGHT...\n", stderr), 2;
  try {
    stretto::bench::run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
