// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/agreement.h"

#include <string_view>

#include "stretto/base/error.h"
#include "stretto/communicator/byte_exchange.h"

namespace stretto::reducer {

void check_same_hook(Communicator& communicator, const std::string& name) {
  const auto names = all_gather_bytes(communicator, std::as_bytes(std::span(name)));
  const auto text = [&](std::size_t rank) {
    return std::string_view(reinterpret_cast<const char*>(names[rank].data()), names[rank].size());
  };
  for (std::size_t rank = 1; rank < names.size(); ++rank) {
    if (text(rank) == text(0)) continue;
    throw Mismatch(status_of(StatusCode::mismatch,
                             "gradients are reduced by '{}' on rank 0 and by '{}' on rank {}; give "
                             "all ranks the same options",
                             text(0), text(rank), rank));
  }
}

void refuse_converted(const std::string& hook, DType dtype) {
  throw InvalidArgument(status_of(
      StatusCode::invalid_argument,
      "'{}' is for gradients of f32, and gets {}: a hook around it, or a reduce_dtype, has "
      "converted them; leave that out, codecs have value formats of their own",
      hook, name(dtype)));
}

}  // namespace stretto::reducer
