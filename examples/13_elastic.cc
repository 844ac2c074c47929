// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Training that goes on when a process dies, and lets in a new one. Kill any of the processes while
// it runs (kill -9 PID):
//   build/release/bin/stretto run -n 3 --restarts 10 -- build/release/bin/13_elastic 20000
// The argument is the number of steps. The result has the same bits, whichever processes die.

#include <unistd.h>

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
constexpr double kRate = 4e-4;
constexpr int kStepsBetweenQuestions = 10;
// A larger model would take longer than this one.
constexpr std::chrono::milliseconds kComputing(1);

// All that training changes, in one buffer.
struct State {
  std::array<double, kTerms + 1> values{};
  double& step() { return values[kTerms]; }
  double& weight(int i) { return values[i]; }  // Of the terms of a Fourier series.
};

double term(int index, double x) { return std::sin((index + 1) * x); }

// Fits a sawtooth wave to one sample: the gradient of its squared error.
std::array<float, kTerms> gradient_of(State& state, int sample) {
  const double x = std::numbers::pi * (2.0 * sample / kSamples - 1);
  double error = -x;
  for (int i = 0; i < kTerms; ++i) error += state.weight(i) * term(i, x);
  std::array<float, kTerms> gradient{};
  for (int i = 0; i < kTerms; ++i) gradient[i] = static_cast<float>(error * term(i, x));
  return gradient;
}

// Returns whether all steps are done; else processes wait to get in.
bool train(stretto::ElasticJob& job, stretto::Communicator& comm, State& state, int steps) {
  State newest = state;
  comm.broadcast(newest.values).wait();  // From rank 0. A failure leaves `state` as it was.
  state = newest;
  std::printf("generation %d: rank %d of %d goes on at step %.0f (pid %d)\n", job.generation(),
              comm.rank().value(), comm.size(), state.step(), ::getpid());
  std::fflush(stdout);
  // Its bits do not depend on the number of ranks.
  stretto::ReproducibleSum sum(comm, kTerms);
  while (state.step() < steps) {
    if (std::fmod(state.step(), kStepsBetweenQuestions) == 0 && job.has_newcomers(comm)) {
      return false;
    }
    std::this_thread::sleep_for(kComputing);
    for (int sample = comm.rank().value(); sample < kSamples; sample += comm.size()) {
      sum.add(gradient_of(state, sample));
    }
    const auto gradient = sum.reduce(1.0 / kSamples);  // A failure leaves the state as it was.
    for (int i = 0; i < kTerms; ++i) state.weight(i) -= kRate * gradient[i];
    state.step() += 1;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  stretto::ElasticJob job;
  State state;
  while (const auto comm = job.join()) {  // Null: the job has finished.
    try {
      if (train(job, *comm, state, steps)) job.finish();
    } catch (const stretto::Error& error) {
      if (!stretto::ElasticJob::is_loss(error)) throw;
      std::fprintf(stderr, "meeting again: %s\n", error.what());
    }
  }
  std::printf("after %.0f steps the first weights are %.17g %.17g\n", state.step(), state.weight(0),
              state.weight(1));
}
