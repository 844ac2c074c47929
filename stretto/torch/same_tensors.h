// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto::ddp {

// Throws Mismatch, on all ranks and with the same sentence, unless the tensors of all ranks have
// the same bits; it names the first one that differs, and on which ranks. All ranks pass as many,
// of the same names. Collective; blocks. 8 bytes for each tensor travel.
void check_same_tensors(Communicator& communicator, const std::vector<NamedTensor>& tensors,
                        const std::optional<Duration>& timeout);

}  // namespace stretto::ddp
