// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "bench/drivers/gpu_systems.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/clock.h"
#include "stretto/base/round_up.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/nccl/load.h"

namespace stretto::bench {
namespace {

constexpr double kSampleUs = 2e4;
constexpr int kFewestRepeats = 3, kMostRepeats = 1000;
// Parts of a buffer begin at the start of a line of GPU memory.
constexpr std::size_t kLineElements = 64;
constexpr std::size_t kMostOfAHost = 64;  // GPUs.
constexpr std::chrono::seconds kMostWaiting(60);

// One way to reduce f32 in place.
class System {
 public:
  System(std::string name, std::span<float> memory) : name_(std::move(name)), memory_(memory) {}
  virtual ~System() = default;
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  const std::string& name() const { return name_; }
  // GPU memory for all operations that are in flight.
  std::span<float> memory() const { return memory_; }
  virtual void begin(std::span<float> data) = 0;
  // Waits for all operations that have been begun.
  virtual void wait() = 0;
  // Whether begin() returns without waiting for other ranks, so that several operations overlap.
  virtual bool overlaps() const { return true; }

 private:
  std::string name_;
  std::span<float> memory_;
};

// NCCL as a program uses it that has nothing else: a communicator whose calls block until they are
// on the stream.
class NcclAlone final : public System {
 public:
  NcclAlone(Communicator& ranks, std::shared_ptr<const cuda::Driver> driver,
            const Environment& environment, std::span<float> memory)
      : System("NCCL alone", memory),
        nccl_(nccl::load_nccl(nccl::nccl_files(environment)).or_throw()),
        driver_(std::move(driver)),
        stream_(driver_->make_stream().or_throw()) {
    nccl::UniqueId id{};
    if (ranks.rank() == 0) check("ncclGetUniqueId", nccl_->call.get_unique_id(&id));
    ranks.broadcast(std::as_writable_bytes(std::span(&id, 1))).wait();
    nccl::Config config{.blocking = 1};
    check("ncclCommInitRankConfig", nccl_->call.comm_init_rank_config(
                                        &comm_, ranks.size(), id, ranks.rank().value(), &config));
  }
  // After a failure NCCL would wait for ever for what other ranks no longer do, so this aborts it.
  ~NcclAlone() override {
    if (has_failed_ || std::uncaught_exceptions() > 0) {
      (void)nccl_->call.comm_abort(comm_);
    } else {
      (void)nccl_->call.comm_finalize(comm_);
      (void)nccl_->call.comm_destroy(comm_);
    }
    (void)driver_->call().stream_destroy(stream_);
  }

  void begin(std::span<float> data) override {
    check("ncclAllReduce", nccl_->call.all_reduce(data.data(), data.data(), data.size(),
                                                  nccl::Type::f32, nccl::kSum, comm_, stream_));
  }
  void wait() override {
    const Deadline deadline = Deadline::after(kMostWaiting);
    int state = 0;
    while ((state = driver_->call().stream_query(stream_)) == cuda::DriverInterface::kNotReady) {
      ::sched_yield();
      if (!deadline.passed()) continue;
      has_failed_ = true;
      check("ncclAllReduce", nccl_->state_of(comm_));
      throw std::runtime_error("NCCL alone: an all_reduce has not ended after a minute");
    }
    driver_->status_of_call("cuStreamQuery", state).or_throw();
    check("ncclAllReduce", nccl_->state_of(comm_));
  }

 private:
  void check(const char* call, nccl::ResultCode result) {
    const Status status = nccl_->status_of_call(call, result, comm_);
    has_failed_ = has_failed_ || !status.ok();
    status.or_throw();
  }

  std::shared_ptr<const nccl::Nccl> nccl_;
  std::shared_ptr<const cuda::Driver> driver_;
  cuda::StreamHandle stream_;
  nccl::Comm comm_ = nullptr;
  bool has_failed_ = false;
};

class OfCommunicator : public System {
 public:
  OfCommunicator(std::string name, Communicator& ranks, std::span<float> memory)
      : System(std::move(name), memory), ranks_(ranks) {}

  void begin(std::span<float> data) override { works_.push_back(ranks_.all_reduce(data)); }
  void wait() override {
    for (Work& work : works_) work.wait();
    works_.clear();
  }

 protected:
  Communicator& ranks_;
  std::vector<Work> works_;
};

// A reduce_scatter inside each host, an all_reduce of each share by the ranks that have it on all
// hosts, and an all_gather inside each host. The stream keeps them in order.
class TwoLevel final : public OfCommunicator {
 public:
  TwoLevel(Communicator& ranks, const RankVector<int>& hosts, std::span<float> memory)
      : OfCommunicator("stretto nccl two-level", ranks, memory) {
    const int host = hosts[ranks.rank().value()];
    int local_rank = 0;
    for (int r = 0; r < ranks.rank().value(); ++r) local_rank += hosts[r] == host ? 1 : 0;
    of_host_ = ranks.split({.color = host});
    across_hosts_ = ranks.split({.color = local_rank});
  }
  void begin(std::span<float> data) override {
    const auto local_size = static_cast<std::size_t>(of_host_->size());
    const std::size_t count = round_up(data.size(), local_size) / local_size;
    const std::span<float> whole(data.data(), count * local_size);
    const auto own =
        whole.subspan(static_cast<std::size_t>(of_host_->rank().value()) * count, count);
    works_.push_back(of_host_->reduce_scatter(whole, own));
    works_.back().wait_on_device().or_throw();
    works_.push_back(across_hosts_->all_reduce(own));
    works_.back().wait_on_device().or_throw();
    works_.push_back(of_host_->all_gather(own, whole));
  }
  bool overlaps() const override { return false; }

 private:
  std::unique_ptr<Communicator> of_host_, across_hosts_;
};

// GPU memory that nobody has registered.
std::shared_ptr<float> plain_memory(const std::shared_ptr<const cuda::Driver>& driver,
                                    std::size_t count) {
  std::uint64_t pointer = 0;
  const int said = driver->call().allocate(&pointer, count * sizeof(float));
  driver->status_of_call("cuMemAlloc", said).or_throw();
  return {reinterpret_cast<float*>(pointer), [driver, pointer](float*) {
            const cuda::Driver::Current current(*driver);
            (void)driver->call().free(pointer);
          }};
}

class Measurement {
 public:
  Measurement(const GpuRank& rank, const Environment& environment, std::size_t most)
      : control_(rank.control),
        driver_(
            cuda::Driver::open(environment.get("STRETTO_CUDA_DRIVER").value_or(""),
                               (rank.nccl != nullptr ? *rank.nccl : *rank.cuda).device().value())
                .or_throw()),
        current_(*driver_) {
    if (rank.nccl != nullptr) {
      plain_ = plain_memory(driver_, most);
      const std::span<float> memory(plain_.get(), most);
      add<NcclAlone>(control_, driver_, environment, memory);
      add<OfCommunicator>("stretto nccl", *rank.nccl, memory);
      if (have_two_levels(rank.hosts)) add<TwoLevel>(*rank.nccl, rank.hosts, memory);
    }
    if (rank.cuda != nullptr) {
      mapped_ = rank.cuda->allocate<float>(most, rank.cuda->device());
      add<OfCommunicator>("stretto cuda", *rank.cuda, mapped_.span());
    }
  }

  static std::size_t count_of(const Point& point) { return point.bytes / sizeof(float); }
  // The distance between parts, with room for a count that a host's ranks can share evenly.
  static std::size_t stride_of(const Point& point) {
    return round_up(count_of(point) + kMostOfAHost, kLineElements);
  }

  std::vector<Line> measure(const Point& point, int rounds) {
    std::vector<Line> lines;
    std::vector<int> repeats;
    std::vector<System*> systems;
    for (const auto& each : systems_) {
      if (point.in_flight == 1 || each->overlaps()) systems.push_back(each.get());
    }
    for (System* const system : systems) {
      verify(*system, point);
      const double us = sample(*system, point, kFewestRepeats).front();
      repeats.push_back(std::clamp(static_cast<int>(kSampleUs / us), kFewestRepeats, kMostRepeats));
      lines.push_back({.system = system->name(), .point = point});
    }
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < systems.size(); ++i) {
        const std::size_t turn = (i + static_cast<std::size_t>(round)) % systems.size();
        const auto times = sample(*systems[turn], point, repeats[turn]);
        lines[turn].us.push_back(times.front());
        lines[turn].call_us.push_back(times.back());
      }
    }
    return lines;
  }

 private:
  template <class Made, class... Arguments>
  void add(Arguments&&... arguments) {
    systems_.push_back(std::make_unique<Made>(std::forward<Arguments>(arguments)...));
  }
  void begin_all(System& system, const Point& point) const {
    for (std::size_t part = 0; part < point.in_flight; ++part) {
      system.begin(system.memory().subspan(part * stride_of(point), count_of(point)));
    }
  }
  // Returns, the same on all ranks, the times of the slowest: of all in flight, and of one call.
  std::vector<double> sample(System& system, const Point& point, int repeats) const {
    control_.barrier().wait();
    double calling = 0;
    const TimePoint begin = Clock::now();
    for (int i = 0; i < repeats; ++i) {
      const TimePoint call = Clock::now();
      begin_all(system, point);
      calling += seconds(Clock::now() - call);
      system.wait();
    }
    std::vector<double> times = {1e6 * seconds(Clock::now() - begin) / repeats,
                                 1e6 * calling / repeats / static_cast<double>(point.in_flight)};
    control_.all_reduce(times, {.op = ReduceOp::max}).wait();
    return times;
  }

  void copy(void* to, const void* from, std::size_t count) const {
    const auto& call = driver_->call();
    const int said = call.copy(cuda::address_of(to), cuda::address_of(from), count * sizeof(float),
                               /*stream=*/nullptr);
    driver_->status_of_call("cuMemcpyAsync", said).or_throw();
    driver_->status_of_call("cuCtxSynchronize", call.context_synchronize()).or_throw();
  }
  // Integers whose sum is exact in f32; they differ from rank to rank.
  static float given(std::size_t element, int rank) {
    return static_cast<float>(element % 251) + 3.0F * static_cast<float>(rank);
  }
  // Throws on all ranks if the sums of one are wrong.
  void verify(System& system, const Point& point) const {
    const int ranks = control_.size();
    std::vector<float> data(point.in_flight * stride_of(point));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = given(i, control_.rank().value());
    copy(system.memory().data(), data.data(), data.size());
    // Otherwise threads of one process would wait in copy() for kernels that wait for those
    // threads.
    control_.barrier().wait();
    begin_all(system, point);
    system.wait();
    copy(data.data(), system.memory().data(), data.size());
    std::vector<double> wrong = {0};
    for (std::size_t i = 0; i < data.size(); ++i) {
      const float sum = static_cast<float>(ranks) * given(i, 0) +
                        3.0F * static_cast<float>(ranks * (ranks - 1) / 2);
      if (i % stride_of(point) < count_of(point) && data[i] != sum) ++wrong.front();
    }
    control_.all_reduce(wrong).wait();
    if (wrong.front() == 0) return;
    throw std::runtime_error(fmt::format("{}: {} sums of {} all_reduces of {} bytes are wrong",
                                         system.name(), wrong.front(), point.in_flight,
                                         point.bytes));
  }

  Communicator& control_;
  std::shared_ptr<const cuda::Driver> driver_;
  cuda::Driver::Current current_;
  std::shared_ptr<float> plain_;
  Buffer<float> mapped_;
  std::vector<std::unique_ptr<System>> systems_;
};

}  // namespace

bool have_two_levels(const RankVector<int>& hosts) {
  const auto of = [&](int host) { return std::ranges::count(hosts, host); };
  const auto first = of(hosts[0]);
  return first > 1 && first < static_cast<long>(hosts.size()) &&
         std::ranges::all_of(hosts, [&](int host) { return of(host) == first; });
}

std::vector<Line> measure_all_reduce(const GpuRank& rank, std::span<const Point> points, int rounds,
                                     const Environment& environment) {
  std::vector<Line> lines;
  if (rank.nccl == nullptr && rank.cuda == nullptr) return lines;
  std::size_t most = 0;
  for (const Point& point : points) {
    most = std::max(most, point.in_flight * Measurement::stride_of(point));
  }
  Measurement measurement(rank, environment, most);
  for (const Point& point : points) {
    for (Line& line : measurement.measure(point, rounds)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace stretto::bench
