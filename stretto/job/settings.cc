// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/settings.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <vector>

#include "stretto/group/engine.h"
#include "stretto/schedule/algorithms.h"

namespace stretto::job {
namespace {

constexpr std::array<std::string_view, 30> kVariables = {
    "STRETTO_ALGORITHM",   "STRETTO_BACKEND",         "STRETTO_CONGESTION_CONTROL",
    "STRETTO_CUDA_DRIVER", "STRETTO_CUDA_KERNELS",    "STRETTO_DEVICE",
    "STRETTO_ENCRYPTION",  "STRETTO_FLIGHT_RECORD",   "STRETTO_JOB_KEY",
    "STRETTO_LINK_CACHE",  "STRETTO_LOCAL_RANK",      "STRETTO_LOCAL_SIZE",
    "STRETTO_LOG",         "STRETTO_MEMORY_CHECK",    "STRETTO_NCCL_LIBRARY",
    "STRETTO_NETWORK",     "STRETTO_NETWORK_TIMEOUT", "STRETTO_PLUGIN",
    "STRETTO_PORTS",       "STRETTO_PROGRESS_THREAD", "STRETTO_RANK",
    "STRETTO_RENDEZVOUS",  "STRETTO_RESTART_COUNT",   "STRETTO_SINGLE_COPY",
    "STRETTO_SIZE",        "STRETTO_STATUS_FD",       "STRETTO_STREAMS",
    "STRETTO_TRANSPORT",   "STRETTO_VERIFY",          "STRETTO_WARN_AFTER"};

template <class Value>
struct Choice {
  std::string_view text;
  Value value;
};

// As read_choice(), for choices that stand for values of another type.
template <class Value>
Result<Value> one_of(const Environment& environment, const char* variable, std::string_view what,
                     std::initializer_list<Choice<Value>> choices, Sources& sources) {
  std::vector<std::string_view> texts;
  for (const Choice<Value>& choice : choices) texts.push_back(choice.text);
  STRETTO_ASSIGN_OR_RETURN(const auto chosen,
                           read_choice(environment, variable, what, texts, sources));
  return std::ranges::find(choices, chosen.value, &Choice<Value>::text)->value;
}

Result<Duration> warn_after(const JoinOptions& options, const Environment& environment,
                            Sources& sources) {
  constexpr std::string_view kWhat = "warnings after seconds";
  STRETTO_ASSIGN_OR_RETURN(auto wanted, read_seconds(environment, "STRETTO_WARN_AFTER"));
  if (options.warn_after) wanted = {seconds(*options.warn_after), "option warn_after"};
  if (wanted) {
    sources.note(kWhat, *wanted);
    return options.warn_after.value_or(to_duration(wanted->value));
  }
  const Duration usual = group::Engine::Options().warn_after;
  sources.by_default(kWhat, seconds(usual));
  return usual;
}

Status check_times(const JoinOptions& options, Sources& sources) {
  struct Time {
    std::string_view name;
    Duration value;
    Duration usual;
  };
  for (const Time& time :
       {Time{"timeout", options.timeout, JoinOptions().timeout},
        Time{"join_timeout", options.join_timeout, JoinOptions().join_timeout},
        Time{"warn_after", options.warn_after.value_or(Duration::zero()), Duration::zero()}}) {
    if (time.value < Duration::zero()) {
      return status_of(StatusCode::invalid_argument, "option {} says {:g} s, which is negative",
                       time.name, seconds(time.value));
    }
    if (time.name == "warn_after") continue;  // warn_after() notes it.
    const std::string what = fmt::format("{} in seconds", time.name);
    if (time.value == time.usual) {
      sources.by_default(what, seconds(time.value));
    } else {
      sources.note(what, Sourced<double>{seconds(time.value), fmt::format("option {}", time.name)});
    }
  }
  return {};
}

// Refuses a name that no collective knows. A name that only some collectives know applies to those.
Result<std::string> default_algorithm(const Environment& environment, Sources& sources) {
  const std::string wanted = read_text(environment, "STRETTO_ALGORITHM", "algorithm", sources);
  if (wanted.empty()) {
    sources.by_default("algorithm", "as measured");
  } else {
    STRETTO_RETURN_IF_ERROR(schedule::check_algorithm("STRETTO_ALGORITHM=", wanted));
  }
  return wanted;
}

void note_what_others_read(const Environment& environment, Sources& sources) {
  struct Name {
    std::string_view what;
    const char* variable;
  };
  for (const Name& name : {Name{"log level", "STRETTO_LOG"},
                           {"link cache", "STRETTO_LINK_CACHE"},
                           {"file of NCCL", "STRETTO_NCCL_LIBRARY"},
                           {"file of the GPU's driver", "STRETTO_CUDA_DRIVER"},
                           {"file of kernels for GPUs", "STRETTO_CUDA_KERNELS"},
                           {"rank on this host", "STRETTO_LOCAL_RANK"},
                           {"ranks on this host", "STRETTO_LOCAL_SIZE"},
                           {"restart of the job", "STRETTO_RESTART_COUNT"},
                           {"descriptor for status notes", "STRETTO_STATUS_FD"}}) {
    (void)read_text(environment, name.variable, name.what, sources);
  }
}

}  // namespace

Result<Settings> read_settings(const JoinOptions& options, const Environment& environment,
                               Sources& sources) {
  using enum schedule::Verification;
  note_what_others_read(environment, sources);
  if (options.device) {
    sources.note("GPU", Sourced<int>{*options.device, "option device"});
  } else {
    (void)read_text(environment, "STRETTO_DEVICE", "GPU", sources);
  }
  STRETTO_RETURN_IF_ERROR(check_times(options, sources));
  STRETTO_ASSIGN_OR_RETURN(const Duration warning, warn_after(options, environment, sources));
  STRETTO_ASSIGN_OR_RETURN(
      const auto thread,
      one_of<ProgressThread>(environment, "STRETTO_PROGRESS_THREAD", "progress thread",
                             {{"automatic", ProgressThread::automatic},
                              {"always", ProgressThread::always},
                              {"never", ProgressThread::never}},
                             sources));
  STRETTO_ASSIGN_OR_RETURN(const bool checks_memory,
                           one_of<bool>(environment, "STRETTO_MEMORY_CHECK", "memory check",
                                        {{"on", true}, {"off", false}}, sources));
  STRETTO_ASSIGN_OR_RETURN(const auto copies,
                           one_of<SingleCopy>(environment, "STRETTO_SINGLE_COPY", "single copy",
                                              {{"automatic", SingleCopy::automatic},
                                               {"always", SingleCopy::always},
                                               {"off", SingleCopy::off}},
                                              sources));
  STRETTO_ASSIGN_OR_RETURN(
      const auto proofs,
      one_of<schedule::Verification>(
          environment, "STRETTO_VERIFY", "proofs",
          {{"automatic", automatic}, {"always", always}, {"never", never}}, sources));
  STRETTO_ASSIGN_OR_RETURN(const std::string algorithm, default_algorithm(environment, sources));
  return Settings{thread, checks_memory, copies, proofs, algorithm, warning, options.device};
}

std::span<const std::string_view> variables() { return kVariables; }

}  // namespace stretto::job
