// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

namespace stretto::tools {

// What `stretto plan --streams` prints: the stages of a pipeline, what each waits for, and how
// slices go through it if all stages take as long as each other. Empty: there is no such pipeline.
std::string describe_pipeline(const std::string& name, int slots, int slices);
// "staged, singa, fairring".
std::string pipeline_names();

}  // namespace stretto::tools
