// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/acceptor.h"

#include "stretto/base/log.h"
#include "stretto/base/poll.h"
#include "stretto/base/wait_until.h"
#include "stretto/transport/shortage.h"

namespace stretto::bootstrap {

Result<std::unique_ptr<Acceptor>> Acceptor::start(std::unique_ptr<ConnectionSource> source,
                                                  std::set<int> expected) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(expected)));
  acceptor->source_ = std::move(source);
  STRETTO_RETURN_IF_ERROR(acceptor->thread_.start(
      "stretto-accept", [acceptor = acceptor.get()](int stop) { acceptor->run(stop); }));
  return acceptor;
}

void Acceptor::run(int stop) {
  transport::ShortageTimer timer;
  while (true) {
    pollfd entries[] = {{stop, POLLIN, 0}, {source_->descriptor(), POLLIN, 0}};
    if (::poll(entries, 2, poll_milliseconds(source_->time_until_due())) < 0) continue;
    if (entries[0].revents != 0) return;
    for (auto& proven : source_->take()) {
      if (!admit(std::move(proven))) return;
    }
    Status reason = source_->end();
    if (reason.ok()) reason = timer.judge(source_->shortage());
    if (!reason.ok()) {
      const MutexLock lock(mutex_);
      failure_ = reason.with_context("other ranks cannot connect to this one");
      changed_.notify_all();
      return;
    }
  }
}

bool Acceptor::admit(ProvenConnection proven) {
  const int rank = proven.peer.rank;
  const MutexLock lock(mutex_);
  if (!expected_.contains(rank) || !seen_.insert(rank).second) {
    log(LogLevel::warning, "refused a connection from {}: it says that it is rank {}, which {}",
        proven.name, rank,
        seen_.contains(rank) ? "is connected already" : "does not connect to this rank");
    return true;
  }
  connected_[rank] = std::move(proven.fd);
  changed_.notify_all();
  return seen_.size() < expected_.size();
}

Status Acceptor::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

Result<FileDescriptor> Acceptor::take(int rank, const WaitLimit& limit) {
  MutexLock lock(mutex_);
  STRETTO_ASSIGN_OR_RETURN(const bool is_decided,
                           wait_until(changed_, lock, limit, [&]() STRETTO_REQUIRES(mutex_) {
                             return connected_.contains(rank) || !failure_.ok();
                           }));
  if (!is_decided) return status_of(StatusCode::timeout, "rank {} never connected", rank);
  if (!connected_.contains(rank)) return failure_;
  return std::move(connected_.extract(rank).mapped());
}

}  // namespace stretto::bootstrap
