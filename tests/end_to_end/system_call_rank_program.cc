// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank that counts which of its collectives make a system call, and which take a lock. Prints
// "CALLS and LOCKED of COUNT: NAME" for each collective, after uncounted calls of it; and in the
// end "interrupted N", how often another thread took its core meanwhile. With syscall user dispatch
// (Linux 5.11) the kernel hands system calls back to the thread by a signal, if a byte in its
// memory says so; code without system calls is not slowed down. If the kernel lacks that, prints
// "cannot count: WHY".

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "stretto/stretto.h"
#include "tests/end_to_end/rank_program.h"

namespace {

// From <linux/prctl.h>; the header of an older system lacks them.
constexpr int kUserDispatch = 59;
constexpr unsigned long kUserDispatchOn = 1;
constexpr char kAllow = 0;
constexpr char kHandBack = 1;

// The kernel reads it at each system call.
volatile char selector = kAllow;
volatile sig_atomic_t handed_back = 0;

#if defined(__x86_64__)
// Lets this call happen after all, and all others until the next count: the registers are as before
// the call, but the thread goes on at the call's instruction once more.
void on_system_call(int, siginfo_t*, void* context) {
  constexpr greg_t kInstructionBytes = 2;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] -= kInstructionBytes;
  handed_back = 1;
  selector = kAllow;
}

bool can_count() {
  struct sigaction action {};
  action.sa_sigaction = on_system_call;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSYS, &action, nullptr);
  return ::prctl(kUserDispatch, kUserDispatchOn, 0UL, 0UL, &selector) == 0;
}
#else
bool can_count() {
  errno = ENOSYS;
  return false;
}
#endif

thread_local long locks = 0;

}  // namespace

// Replaces the C library's function in the whole program.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static const auto lock = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return lock(mutex);
}

namespace {

bool makes_system_call(const std::function<void()>& call) {
  handed_back = 0;
  selector = kHandBack;
  call();
  selector = kAllow;
  return handed_back != 0;
}

void count(const char* name, const std::function<void()>& call) {
  constexpr int kUncounted = 200;
  constexpr int kCounted = 1000;
  for (int i = 0; i < kUncounted; ++i) call();
  int calls = 0;
  int locked = 0;
  for (int i = 0; i < kCounted; ++i) {
    locks = 0;
    calls += makes_system_call(call) ? 1 : 0;
    locked += locks > 0 ? 1 : 0;
  }
  std::printf("%d and %d of %d: %s\n", calls, locked, kCounted, name);
}

void work() {
  const auto comm = stretto::join();
  if (!can_count()) {
    std::printf("cannot count: %s\n", std::strerror(errno));
    return;
  }
  constexpr std::size_t kCount = 16 * 1024;
  std::vector<float> own(kCount);
  std::vector<float> more(kCount);
  auto buffer = comm->allocate<float>(kCount);
  const std::span registered = buffer.span();
  const std::size_t share = kCount / static_cast<std::size_t>(comm->size());
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  count("a question for the parent, locked", [&] {
    ::pthread_mutex_lock(&mutex);
    (void)::getppid();
    ::pthread_mutex_unlock(&mutex);
  });
  count("barrier", [&] { comm->barrier().wait(); });
  count("all_reduce of 8 B", [&] { comm->all_reduce(std::span(own).first(2)).wait(); });
  count("all_reduce of 64 KiB", [&] { comm->all_reduce(std::span(own)).wait(); });
  count("all_reduce of 64 KiB, registered", [&] { comm->all_reduce(registered).wait(); });
  count("broadcast of 8 B", [&] { comm->broadcast(std::span(own).first(2)).wait(); });
  count("broadcast of 64 KiB, registered", [&] { comm->broadcast(registered).wait(); });
  count("reduce_scatter of 64 KiB",
        [&] { comm->reduce_scatter(std::span(own), std::span(more).first(share)).wait(); });
  count("all_gather of 64 KiB",
        [&] { comm->all_gather(std::span(own).first(share), std::span(more)).wait(); });
  count("all_to_all of 64 KiB", [&] { comm->all_to_all(std::span(own), std::span(more)).wait(); });
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  std::printf("interrupted %ld\n", usage.ru_nivcsw);
}

}  // namespace

int main() { return stretto::testing::run_or_explain(work); }
