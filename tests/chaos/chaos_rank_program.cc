// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job that scripts/chaos.py harms: runs collectives that follow from a seed, compares
// every value with a serial computation, and writes what happens to it as lines of JSON, each with
// the time of the monotonic clock, to a pipe that all ranks share. One rank, the actor, may do harm
// itself.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "stretto/stretto.h"
#include "tests/chaos/call.h"
#include "tests/end_to_end/rank_program.h"

namespace stretto::chaos {
namespace {

using std::chrono::milliseconds;

// More steps than a group makes before another group replaces it.
constexpr int kStepsOfGroup = 100'000;

int launched_size() {
  const char* size = std::getenv("STRETTO_SIZE");
  return size != nullptr ? std::atoi(size) : 1;
}

struct Options {
  std::string events;
  std::uint64_t seed = 1;
  double seconds = 30;  // Then the ranks agree to end.
  int timeout_ms = 30000;
  int join_timeout_ms = 30000;
  bool shrinks = false;
  bool elastic = false;
  int actor = -1;
  std::string act;
  int act_step = 20;
  int act_ms = 0;
  std::uint64_t act_value = 0;
  std::string act_group;
  std::string collective = "all_reduce";
};

// Writes each event in one piece. Events that do not fit into the pipe are lost: it never waits.
class Events {
 public:
  Events(const std::string& path, int rank)
      : pipe_(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)), rank_(rank) {}

  void write(const char* event, nlohmann::json fields = nlohmann::json::object()) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    fields["event"] = event;
    fields["rank"] = rank_;
    fields["pid"] = ::getpid();
    fields["t"] = std::chrono::duration<double>(now).count();
    const std::string line =
        fields.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
    (void)!::write(pipe_, line.data(), line.size());
  }

 private:
  int pipe_;
  int rank_;
};

// Does `work` after `after_ms`, on a thread that is started now; never if that is 0.
template <class Work>
void later(int after_ms, Work work) {
  if (after_ms == 0) return;
  std::thread([=] {
    std::this_thread::sleep_for(milliseconds(after_ms));
    work();
  }).detach();
}

// Limits a resource to `more` than this process has of it (a file's size, to `more`). The limit is
// lifted after `lift_after_ms`, or never if that is 0.
void limit(const std::string& name, std::uint64_t more, int lift_after_ms) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  // The lowest free descriptor; new descriptors start there.
  const int next = ::dup(STDIN_FILENO);
  ::close(next);
  auto resource = RLIMIT_FSIZE;
  std::uint64_t soft = more;
  if (name == "nofile") {
    resource = RLIMIT_NOFILE;
    soft += static_cast<std::uint64_t>(next);
  } else if (name == "as") {
    resource = RLIMIT_AS;
    soft += pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  rlimit before = {};
  ::getrlimit(resource, &before);
  later(lift_after_ms, [=] { ::setrlimit(resource, &before); });
  const rlimit lowered{std::min<rlim_t>(soft, before.rlim_max), before.rlim_max};
  ::setrlimit(resource, &lowered);
}

// Reports need memory, so limits are lifted for them.
void lift_limits() {
  for (const auto resource : {RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    rlimit now = {};
    ::getrlimit(resource, &now);
    now.rlim_cur = now.rlim_max;
    ::setrlimit(resource, &now);
  }
}

// Moves this process to a control group that limits threads, until that limit is lifted.
void limit_threads(const std::string& group, int lift_after_ms) {
  later(lift_after_ms, [=] { std::ofstream(group + "/pids.max") << "max"; });
  std::ofstream(group + "/cgroup.procs") << ::getpid();
}

class Worker {
 public:
  Worker(Options options, int rank)
      : options_(std::move(options)),
        acts_(rank == options_.actor),
        rank_(rank),
        events_(options_.events, rank) {}

  int run() {
    events_.write("started");
    try {
      work();
      events_.write("left");
      return 0;
    } catch (const std::exception& error) {
      report(error);
      return 3;
    }
  }

 private:
  void work() {
    if (acts_) act_before_join();
    const JoinOptions joining{.join_timeout = milliseconds(options_.join_timeout_ms),
                              .timeout = milliseconds(options_.timeout_ms)};
    if (options_.elastic) {
      work_elastically(joining);
    } else {
      auto comm = join(joining);
      note_join(*comm);
      while (!loop(*comm, nullptr)) comm = shrunk(*comm);
    }
    events_.write("done", {{"steps", step_}});
  }

  void work_elastically(const JoinOptions& joining) {
    ElasticJob job({.join = joining});
    while (const auto comm = job.join()) {
      if (end_ == TimePoint()) note_join(*comm);
      events_.write("regrouped", {{"size", comm->size()}, {"now", comm->rank().value()}});
      if (loop(*comm, &job)) job.finish();
      during_ = "join";
    }
  }

  void note_join(const Communicator& comm) {
    events_.write("joined", {{"links", comm.describe_links()}});
    end_ = Clock::now() +
           std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options_.seconds));
  }

  // Runs collectives until all ranks agree to end. Returns false if a rank was lost and the others
  // may go on, or, in an elastic job, if another one wants to join.
  bool loop(Communicator& comm, ElasticJob* job) {
    during_ = "step";
    try {
      Buffers buffers(comm);
      if (job != nullptr) take_step_of_oldest(comm);
      for (bool ended = false; !ended; ++step_) {
        if (acts_ && step_ == options_.act_step) act(comm);
        if (step_ % 64 == 0) {
          buffers = Buffers(comm);  // New registered memory for the others to map.
          events_.write("step", {{"step", step_}});
        }
        const Call call = call_of(comm);
        const std::string failure = buffers.run(comm, call, step_);
        if (!failure.empty()) {
          events_.write("wrong", {{"text", failure}, {"step", step_}});
          std::_Exit(4);
        }
        if (step_ % 8 != 7) continue;
        if (job != nullptr && job->has_newcomers(comm)) return false;
        ended = all_want_to_end(comm);
      }
      return true;
    } catch (const Error& error) {
      const bool meets_again = job != nullptr && ElasticJob::is_loss(error);
      if (!options_.shrinks && !meets_again) throw;
      report(error);
      return false;
    }
  }

  Call call_of(const Communicator& comm) {
    if (options_.act.rfind("disagree-", 0) != 0 || step_ != options_.act_step) {
      return Call::draw(options_.seed + static_cast<std::uint64_t>(step_), comm.size());
    }
    Call call = Call::named(options_.collective, options_.seed, comm.size());
    if (!acts_) return call;
    events_.write("acts");
    const std::string field = options_.act.substr(9);
    if (field != "order") return call.differing(field, comm.size());
    // A later call of the sequence, as by a rank that has left out a few calls. It is no message,
    // as messages and collectives have no common order.
    Call other = call;
    for (std::uint64_t seed = options_.seed;
         other.collective == call.collective || other.collective == Collective::point_to_point;
         ++seed) {
      other = Call::draw(seed, comm.size());
    }
    return other;
  }

  // Ranks were at different steps when they heard of a loss, and newcomers at none: all take rank
  // 0's.
  void take_step_of_oldest(Communicator& comm) {
    std::int32_t next[1] = {(step_ / kStepsOfGroup + 1) * kStepsOfGroup};
    comm.broadcast(std::span<std::int32_t>(next)).wait();
    step_ = next[0];
  }

  bool all_want_to_end(Communicator& comm) {
    // The actor must have had its turn, and an elastic job must be whole again.
    const bool whole = !options_.elastic || comm.size() == launched_size();
    std::uint8_t wants[1] = {Clock::now() >= end_ && step_ > options_.act_step + 64 && whole};
    comm.all_reduce(std::span<std::uint8_t>(wants), {.op = ReduceOp::max}).wait();
    return wants[0] != 0;
  }

  std::unique_ptr<Communicator> shrunk(Communicator& comm) {
    during_ = "shrink";
    events_.write("shrinking");
    auto rest = comm.shrink();
    // The ranks were at different steps when they heard of the loss.
    step_ = (step_ / kStepsOfGroup + 1) * kStepsOfGroup;
    events_.write("regrouped", {{"size", rest->size()}, {"now", rest->rank().value()}});
    return rest;
  }

  void act_before_join() {
    const std::string& what = options_.act;
    if (what == "join-late") {
      std::this_thread::sleep_for(milliseconds(options_.act_ms));
    } else if (what == "join-wrong-key") {
      ::setenv("STRETTO_JOB_KEY", std::string(64, 'a').c_str(), 1);
    } else if (what == "join-wrong-size") {
      // `stretto run` sets both; if only one changed, they would differ, which is this rank's own
      // mistake.
      for (const char* variable : {"STRETTO_SIZE", "WORLD_SIZE"}) {
        ::setenv(variable, std::to_string(options_.act_value).c_str(), 1);
      }
    } else if (what == "join-wrong-algorithm") {
      ::setenv("STRETTO_ALGORITHM", "ring", 1);
    } else if (what.rfind("join-limit-", 0) == 0) {
      lower(what.substr(11));
    } else {
      return;
    }
    events_.write("acts");
  }

  void act(Communicator& comm) {
    const std::string& what = options_.act;
    if (what.rfind("join-", 0) == 0 || what.rfind("disagree-", 0) == 0) return;
    events_.write("acts");
    if (what == "exit") std::_Exit(3);
    if (what == "abort") comm.abort("chaos ends this job");
    if (what == "throw") {
      // Nobody sends this message: destroying the work waits for ever, unless it is told not to.
      std::vector<float> data(1000);
      const Work work = comm.recv(data, {.from = (rank_ + 1) % comm.size(), .tag = 77});
      throw std::runtime_error("chaos between submission and wait");
    }
    if (what == "ignore-term") {
      ::signal(SIGTERM, SIG_IGN);
      for (;;) ::pause();
    }
    if (what.rfind("fork", 0) == 0 && ::fork() == 0) {
      if (what == "fork-session") ::setsid();
      for (;;) ::pause();
    }
    if (what.rfind("limit-", 0) == 0) lower(what.substr(6));
  }

  void lower(const std::string& resource) {
    if (resource == "threads") {
      limit_threads(options_.act_group, options_.act_ms);
    } else {
      limit(resource, options_.act_value, options_.act_ms);
    }
  }

  void report(const std::exception& error) {
    lift_limits();
    const auto* ours = dynamic_cast<const Error*>(&error);
    const auto named = ours != nullptr ? ours->status().rank() : std::nullopt;
    events_.write("error", {{"type", testing::type_of(error)},
                            {"named", named ? nlohmann::json(named->value()) : nullptr},
                            {"text", error.what()},
                            {"during", during_},
                            {"step", step_}});
  }

  Options options_;
  bool acts_;
  int rank_;
  Events events_;
  const char* during_ = "join";
  TimePoint end_;
  int step_ = 0;
};

}  // namespace
}  // namespace stretto::chaos

int main(int argument_count, char** arguments) {
  stretto::chaos::Options options;
  CLI::App app("A rank of a job that scripts/chaos.py harms.");
  app.add_option("--events", options.events, "The pipe for lines of JSON")->required();
  app.add_option("--seed", options.seed);
  app.add_option("--seconds", options.seconds);
  app.add_option("--timeout-ms", options.timeout_ms);
  app.add_option("--join-timeout-ms", options.join_timeout_ms);
  app.add_flag("--shrinks", options.shrinks, "Go on with those who are left");
  app.add_flag("--elastic", options.elastic, "Meet again, with those who come");
  app.add_option("--actor", options.actor, "The rank that does harm");
  app.add_option("--act", options.act);
  app.add_option("--act-step", options.act_step);
  app.add_option("--act-ms", options.act_ms);
  app.add_option("--act-value", options.act_value);
  app.add_option("--act-group", options.act_group, "A control group that limits threads");
  app.add_option("--collective", options.collective, "The one about which ranks disagree");
  CLI11_PARSE(app, argument_count, arguments);
  const char* rank = std::getenv("STRETTO_RANK");
  return stretto::chaos::Worker(options, rank != nullptr ? std::atoi(rank) : 0).run();
}
