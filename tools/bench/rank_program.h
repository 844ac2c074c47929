// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/stretto.h"
#include "tools/bench/bench_case.h"
#include "tools/bench/line.h"
#include "tools/bench/measure.h"
#include "tools/bench/options.h"

namespace stretto::bench {

// Joins the job by the transport in `options`. Throws what join() throws, and std::runtime_error if
// shared memory was asked for but not all ranks share it.
std::unique_ptr<Communicator> join_by(const BenchOptions& options);

// What each rank of `stretto bench` does: joins the job and measures all lines; rank 0 also prints
// them. Returns the exit status: 1 if a result was wrong. Throws what the library throws.
int run_rank(const BenchOptions& options);

// Measures one line on all ranks of `coordinator`; collective. `oversubscribed`: ranks take turns
// on cores.
Line measure_line(Coordinator& coordinator, BenchCase& bench_case, const BenchOptions& options,
                  bool oversubscribed);

// What each rank of `stretto bench --explain` does; rank 0 prints how the collectives run and why.
// Returns the exit status. Throws what the library throws.
int run_explaining_rank(const BenchOptions& options);

// What each rank of `stretto bench --compression` does: measures, in turns, the time of steps with
// each codec on these links; rank 0 prints which codecs pay. Returns the exit status. Throws what
// the library throws.
int run_compressing_rank(const BenchOptions& options);
// The same with `--explain`: measures nothing; rank 0 prints which way messages of each codec would
// travel, and what the model of the links predicts for each way.
int run_explaining_compression(const BenchOptions& options);

}  // namespace stretto::bench
