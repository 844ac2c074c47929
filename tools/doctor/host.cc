// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "stretto/base/clock.h"
#include "stretto/base/cores.h"
#include "stretto/base/memory_limit.h"
#include "stretto/base/sealed_memory.h"
#include "tools/doctor/check.h"

namespace stretto::tools::doctor {
namespace {

Check check_cores() {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::size_t bound = affinity().count();
  const std::optional<double> quota = cgroup_quota_cores();
  const std::string seen = fmt::format(
      "{} usable: {} of {} processors by the affinity mask, {}", usable_cores(), bound, online,
      quota ? fmt::format("the time of {:g} by the cgroup's quota", *quota) : "no cgroup's quota");
  if (quota && *quota < 1) {
    return warning("cores", seen, "give the container at least one core for each rank");
  }
  if (bound == 1 && online > 1) {
    return warning(
        "cores", seen,
        "all threads of a rank would share one processor: let the launcher bind ranks to "
        "more (mpirun --bind-to none, srun --cpus-per-task)");
  }
  return {"cores", State::ok, seen};
}

Check check_memory() {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const std::optional<MemoryLeft> left = find_memory_left();
  if (!left) return {"memory", State::ok, "no file tells how much is left"};
  const std::string seen =
      fmt::format("{:.2f} of {:.2f} GiB left, by {}", static_cast<double>(left->left_bytes) / kGiB,
                  static_cast<double>(left->limit_bytes) / kGiB, left->source);
  if (left->left_bytes >= left->limit_bytes / 10) return {"memory", State::ok, seen};
  return warning("memory", seen,
                 "the kernel ends processes when none is left: end others, or raise the limit");
}

// If the job is not known, checks for a job with default settings.
Check check_descriptors(const Environment& environment) {
  constexpr std::size_t kUsual = 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return problem("descriptors", std::strerror(errno), "the system does not tell ulimit -n");
  }
  const Result<job::Job> found = job_of(environment);
  job::Job job = found.ok() ? found.value() : job::Job();
  const std::size_t needed = job::descriptors_for(job);
  // Joining a job leaves the same number to the program.
  const std::size_t wanted = std::max(kUsual, 2 * needed);
  job.size = 1;
  const std::string seen =
      fmt::format("{}, which a process may raise to {}: enough for {} ranks", limit.rlim_cur,
                  limit.rlim_max, limit.rlim_max / (2 * job::descriptors_for(job)));
  const std::string advice = fmt::format("raise the hard limit (ulimit -Hn) to {} or more", wanted);
  if (limit.rlim_max < needed) {
    return problem("descriptors", fmt::format("{}; a rank of this job may take {}", seen, needed),
                   advice);
  }
  if (limit.rlim_max >= wanted) return {"descriptors", State::ok, seen};
  return warning("descriptors", seen, advice);
}

Status use_shared_memory() {
  constexpr std::size_t kBytes = 1 << 16;
  STRETTO_ASSIGN_OR_RETURN(const FileDescriptor file, make_sealed_memory("stretto-doctor", kBytes));
  STRETTO_ASSIGN_OR_RETURN(const auto memory, map_shared_memory(file.get(), kBytes));
  std::memset(memory.get(), 1, kBytes);
  if (is_sealed_memory(file.get())) return {};
  return status_of(StatusCode::system, "it has no seals");
}

Check check_shared_memory() {
  const Status used = use_shared_memory();
  if (used.ok()) return {"shared memory", State::ok, "memfd_create gives memory, and seals it"};
  return problem("shared memory", std::string(used.message()),
                 "ranks of this host can only use sockets: set STRETTO_TRANSPORT=tcp, or let the "
                 "container's seccomp profile allow memfd_create");
}

// Runs in a child, because a child is to its parent what ranks are to each other: Yama lets a
// parent read its children, but not the reverse. Returns an error number.
int copy_from_parent(std::uint32_t& theirs) {
  std::uint32_t found = 0;
  const iovec own{&found, sizeof(found)};
  const iovec remote{&theirs, sizeof(theirs)};
  if (::process_vm_readv(::getppid(), &own, 1, &remote, 1, 0) != sizeof(found)) return errno;
  return ::process_vm_writev(::getppid(), &own, 1, &remote, 1, 0) == sizeof(found) ? 0 : errno;
}

Check check_single_copy() {
  const std::string name = "single copy";
  static std::uint32_t memory = 0x73747265;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(copy_from_parent(memory));
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
    return warning(name, "no process could be started to try it", "look at ulimit -u");
  }
  const int error = WEXITSTATUS(status);
  if (error == 0) return {name, State::ok, "processes may copy from and to each other"};
  const std::string scope = line_of("/proc/sys/kernel/yama/ptrace_scope");
  return warning(name,
                 fmt::format("processes may not copy from each other: {}{}", std::strerror(error),
                             scope.empty() ? "" : "; kernel.yama.ptrace_scope is " + scope),
                 "private buffers go through shared memory, by two copies: set "
                 "kernel.yama.ptrace_scope=0, or give the container CAP_SYS_PTRACE");
}

Check check_huge_pages() {
  const std::string name = "huge pages";
  const std::string text = line_of("/sys/kernel/mm/transparent_hugepage/enabled");
  if (text.empty()) return {name, State::ok, "the kernel does not tell"};
  if (text.find("[never]") == std::string::npos) return {name, State::ok, "transparent: " + text};
  return warning(name, "transparent: " + text,
                 "private buffers are copied once only where they lie in huge pages: write madvise "
                 "to /sys/kernel/mm/transparent_hugepage/enabled");
}

Check check_clock() {
  constexpr int kReads = 1000;
  constexpr Duration kSlow = std::chrono::microseconds(1);
  const TimePoint start = Clock::now();
  TimePoint last = start;
  bool goes_back = false;
  for (int i = 0; i < kReads; ++i) {
    const TimePoint now = Clock::now();
    goes_back = goes_back || now < last;
    last = now;
  }
  const Duration each = (last - start) / kReads;
  const std::string source =
      line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  const std::string seen =
      fmt::format("{:.0f} ns to read{}", seconds(each) * 1e9,
                  source.empty() ? "" : fmt::format(", from clock source {}", source));
  if (goes_back) return problem("clock", "it goes back; " + seen, "the kernel's clock is broken");
  if (each < kSlow) return {"clock", State::ok, seen};
  return warning("clock", seen, "every read is a system call: see the kernel's clock sources");
}

Check check_load() {
  double load = 0;
  if (::getloadavg(&load, 1) != 1) return {"load", State::ok, "the system does not tell"};
  // The load is that of the host, even in a container that may use few of its cores.
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::string seen =
      fmt::format("{:.1f} runnable threads in the last minute, for {} processors", load, online);
  if (load <= static_cast<double>(online)) return {"load", State::ok, seen};
  return warning("load", seen, "all ranks wait for the slowest: top(1) shows who uses the cores");
}

}  // namespace

Checks check_host(const Environment& environment) {
  return {check_cores(),         check_memory(),      check_descriptors(environment),
          check_shared_memory(), check_single_copy(), check_huge_pages(),
          check_clock(),         check_load()};
}

}  // namespace stretto::tools::doctor
