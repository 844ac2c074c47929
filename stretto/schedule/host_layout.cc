// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/host_layout.h"

#include "stretto/base/check.h"

namespace stretto::schedule {

HostLayout::HostLayout(const Shape& shape)
    : hosts_(shape.hosts.begin(), shape.hosts.end()),
      positions_(shape.rank_count),
      run_end_(positions_) {
  const int n = shape.rank_count;
  if (hosts_.empty()) hosts_.resize(positions_.size());
  STRETTO_CHECK(std::ssize(hosts_) == n, "{} hosts of {} ranks", hosts_.size(), n);
  for (int rank = 0; rank < n; ++rank) {
    const int host = host_of(rank);
    STRETTO_CHECK(host >= 0 && host <= host_count(), "rank {} is on host {} of {}", rank, host,
                  host_count());
    if (host == host_count()) members_.emplace_back();
    auto& members = members_[static_cast<std::size_t>(host)];
    positions_[rank] = static_cast<int>(members.size());
    members.push_back(rank);
  }
  for (int rank = n - 1; rank >= 0; --rank) {
    const bool goes_on = rank + 1 < n && host_of(rank + 1) == host_of(rank);
    run_end_[rank] = goes_on ? run_end_[rank + 1] : rank + 1;
  }
}

}  // namespace stretto::schedule
