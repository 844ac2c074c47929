// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/agreement.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "stretto/base/content_hash.h"
#include "stretto/base/error.h"
#include "stretto/base/refuse.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/byte_exchange.h"

namespace stretto::reducer {
namespace {

// What each rank tells the others: its hook, and where that goes on.
struct Said {
  std::uint64_t hook = 0;  // Hash of its name.
  std::uint64_t step = 0;
  float announced_bytes = 0;
  std::uint32_t refuses = 0;
};

// Called when names are known to differ: gathers them to say how.
[[noreturn]] void refuse_other_hooks(Communicator& communicator, const std::string& name,
                                     const std::optional<Duration>& timeout) {
  const auto names =
      all_gather_bytes(communicator, std::as_bytes(std::span(name)), {.timeout = timeout});
  const auto text = [&](std::size_t rank) {
    return std::string_view(reinterpret_cast<const char*>(names[rank].data()), names[rank].size());
  };
  std::size_t rank = 1;
  while (rank + 1 < names.size() && text(rank) == text(0)) ++rank;
  throw Mismatch(status_of(StatusCode::mismatch,
                           "gradients are reduced by '{}' on rank {} and by '{}' on rank {}; give "
                           "all ranks the same options",
                           text(0), job_rank(communicator, 0), text(rank),
                           job_rank(communicator, rank)));
}

}  // namespace

ResumePoint take_over_together(Communicator& communicator, const std::string& name,
                               const std::function<ResumePoint()>& take_over,
                               const std::optional<Duration>& timeout) {
  Said own{.hook = content_hash(std::as_bytes(std::span(name)))};
  std::exception_ptr refusal;
  try {
    const ResumePoint point = take_over();
    own.step = point.step;
    own.announced_bytes = point.announced_bytes;
  } catch (...) {
    own.refuses = 1;
    refusal = std::current_exception();
  }
  ResumePoint agreed;
  std::optional<Rank> refuses;
  const auto all = communicator::all_gather_value(communicator, own, timeout);
  const auto is_other = [&](const Said& said) { return said.hook != all.front().hook; };
  if (std::ranges::any_of(all, is_other)) refuse_other_hooks(communicator, name, timeout);
  for (std::size_t rank = all.size(); rank-- > 0;) {
    agreed.step = std::max(agreed.step, all[rank].step);
    agreed.announced_bytes = std::max(agreed.announced_bytes, all[rank].announced_bytes);
    if (all[rank].refuses != 0) refuses = communicator.job_rank(static_cast<int>(rank));
  }
  if (refusal != nullptr) std::rethrow_exception(refusal);
  if (!refuses) return agreed;
  throw InvalidArgument(Status(
      StatusCode::invalid_argument,
      fmt::format(
          "rank {}: rank {} cannot use the hook, or the state that it has loaded, and says why",
          communicator.job_rank(communicator.rank()).value(), refuses->value()),
      refuses));
}

void check_same_hook(Communicator& communicator, const std::string& name,
                     const std::optional<Duration>& timeout) {
  const auto nothing = [] { return ResumePoint(); };
  (void)take_over_together(communicator, name, nothing, timeout);
}

void refuse_converted(const std::string& hook, DType dtype) {
  refuse(
      "'{}' is for gradients as they are, and gets {} made of them: a hook around it, or a "
      "reduce_dtype, has converted them; leave that out, codecs have value formats of their own",
      hook, name(dtype));
}

}  // namespace stretto::reducer
