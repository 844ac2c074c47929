// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/optimizer_state.h"

#include <sstream>

#include "stretto/torch/optimizer_parts.h"

namespace stretto {

void broadcast_optimizer(torch::optim::Optimizer& optimizer, Communicator& communicator, Rank root,
                         const std::optional<Duration>& timeout) {
  std::ostringstream text;
  if (communicator.rank() == root) torch::save(optimizer, text);
  const ByteVector bytes = ddp::broadcast_text(communicator, text.str(), root, timeout);
  if (communicator.rank() == root) return;
  torch::serialize::InputArchive archive;
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ddp::load_whole(optimizer, archive);
}

}  // namespace stretto
