// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Training that goes on when a process dies, and lets in a new one. Kill any of the processes while
// it runs (kill -9 PID):
//   build/release/bin/stretto run -n 3 --restarts 10 -- build/release/bin/13_elastic 20000
// The argument is the number of steps. The result is the same, but for rounding.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <thread>

#include "stretto/stretto.h"

namespace {

constexpr int kSamples = 1000;
constexpr int kTerms = 16;
constexpr int kStepsBetweenQuestions = 10;
// A larger model would take longer than this one.
constexpr std::chrono::milliseconds kComputing(1);

// All that training changes. Whoever comes gets that of rank 0.
struct State {
  std::array<double, kTerms> weights{};  // Of the terms of a Fourier series.
  std::array<double, 1> step{};
};

double term(int index, double x) { return std::sin((index + 1) * x); }

// Fits a sawtooth wave to this rank's share of the samples: the gradient of the squared error.
std::array<double, kTerms> gradient_of(const State& state, int rank, int size) {
  std::array<double, kTerms> gradient{};
  const int begin = kSamples / size * rank + std::min(rank, kSamples % size);
  const int end = begin + kSamples / size + (rank < kSamples % size ? 1 : 0);
  for (int sample = begin; sample < end; ++sample) {
    const double x = std::numbers::pi * (2.0 * sample / kSamples - 1);
    double error = -x;
    for (int i = 0; i < kTerms; ++i) error += state.weights[i] * term(i, x);
    for (int i = 0; i < kTerms; ++i) gradient[i] += error * term(i, x) / kSamples;
  }
  return gradient;
}

// Returns whether all steps are done; else processes wait to get in.
bool train(stretto::ElasticJob& job, stretto::Communicator& comm, State& state, int steps) {
  comm.broadcast(state.weights).wait();  // From rank 0, which has been here for longest.
  comm.broadcast(state.step).wait();
  std::printf("generation %d: rank %d of %d goes on at step %.0f (pid %d)\n", job.generation(),
              comm.rank().value(), comm.size(), state.step[0], ::getpid());
  std::fflush(stdout);
  while (state.step[0] < steps) {
    if (std::fmod(state.step[0], kStepsBetweenQuestions) == 0 && job.has_newcomers(comm)) {
      return false;
    }
    std::this_thread::sleep_for(kComputing);
    auto gradient = gradient_of(state, comm.rank().value(), comm.size());
    comm.all_reduce(gradient).wait();  // A failure leaves the state as it was.
    for (int i = 0; i < kTerms; ++i) state.weights[i] -= gradient[i];
    state.step[0] += 1;
  }
  comm.barrier().wait();
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  stretto::ElasticJob job;
  State state;
  for (bool finished = false; !finished;) {
    const auto comm = job.join();
    try {
      finished = train(job, *comm, state, steps);
    } catch (const stretto::PeerLost& lost) {
      std::fprintf(stderr, "meeting again: %s\n", lost.what());
    } catch (const stretto::Aborted& lost) {  // Another rank has noticed it first.
      std::fprintf(stderr, "meeting again: %s\n", lost.what());
    }
  }
  std::printf("after %.0f steps the first weights are %.6f %.6f\n", state.step[0], state.weights[0],
              state.weights[1]);
}
