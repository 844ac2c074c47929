// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/transport/transport.h"

namespace stretto::communicator {

// What has to happen to the caller's buffers before a collective and after it, where its schedule
// cannot run on them as they are: a factor, several buffers as one, an input that the output
// overwrites too early.
struct Packing {
  // Copied, with `more` behind it, times `factor`, before the operation starts. All of one dtype.
  ConstView source;
  std::vector<ConstView> more = {};  // Empty for most, who then allocate nothing.
  double factor = 1;
  // Filled, one behind the other, when it has ended well. Empty: nothing is to be done then.
  std::vector<View> targets = {};
  // Where the sources go. Null: scratch that the group lends, of their size.
  std::byte* place = nullptr;
  transport::Transport::Region scratch = {};  // Lent.

  std::size_t bytes() const;
  Status pack() const;
  void unpack() const;
};

// Registered memory that is used again and again, so that packing costs no system calls.
class ScratchPool {
 public:
  // At least `bytes`.
  Result<transport::Transport::Region> take(std::size_t bytes, transport::Transport& transport);
  void give_back(transport::Transport::Region region);

 private:
  std::vector<transport::Transport::Region> idle_;
};

}  // namespace stretto::communicator
