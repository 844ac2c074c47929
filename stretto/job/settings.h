// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stretto/base/clock.h"
#include "stretto/base/environment.h"
#include "stretto/base/single_copy.h"
#include "stretto/base/status.h"
#include "stretto/group/progress_thread.h"
#include "stretto/job/join_options.h"
#include "stretto/job/sourced.h"
#include "stretto/schedule/verify/proof.h"

namespace stretto::job {

// How a rank runs, as options and environment say. Where it runs is in Job.
struct Settings {
  ProgressThread progress_thread;
  bool checks_memory;
  SingleCopy single_copy;
  schedule::Verification verification;
  std::string algorithm;
  Duration warn_after;
  std::optional<int> device;  // JoinOptions::device.
};

// Fails with invalid_argument, naming the variable or the option, if a value makes no sense. Adds
// to `sources` what it has found, and also variables that other code reads when it needs them.
Result<Settings> read_settings(const JoinOptions& options, const Environment& environment,
                               Sources& sources);

// All variables of stretto's that a rank, or its launcher, reads or sets.
std::span<const std::string_view> variables();

}  // namespace stretto::job
