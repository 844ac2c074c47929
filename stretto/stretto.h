// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// The whole library, without torch: join a job, get a Communicator, move and reduce data.
// With libtorch, include <stretto/torch.h> as well.

#include "stretto/communicator/blobs.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/join.h"
