// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/same_tensors.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "stretto/base/content_hash.h"
#include "stretto/reducer/replica_check.h"
#include "stretto/torch/tensor_bytes.h"

namespace stretto::ddp {

void check_same_tensors(Communicator& communicator, const std::vector<NamedTensor>& tensors,
                        const std::optional<Duration>& timeout) {
  std::vector<std::string> names;
  std::vector<std::uint64_t> hashes;
  const TensorBytes bytes(tensors_of(tensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    names.push_back(fmt::format("parameter '{}'", tensors[i].name));
    hashes.push_back(content_hash(bytes.spans()[i]));
  }
  reducer::check_replicas_hash_alike(communicator, names, hashes, timeout);
}

}  // namespace stretto::ddp
