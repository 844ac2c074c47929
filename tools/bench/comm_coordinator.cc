// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/comm_coordinator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include <fmt/format.h>

#include "stretto/base/file_descriptor.h"

namespace stretto::bench {
namespace {

// Differs between machines, and after each boot.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string announce(Communicator& comm, const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  const ByteVector told = broadcast_bytes(comm, {bytes, text.size()}, 0);
  return {reinterpret_cast<const char*>(told.data()), told.size()};
}

// Null where the board of rank 0 cannot be reached, or must not be taken for one.
std::unique_ptr<Board> open_board(const std::string& where, int rank) {
  const std::size_t end = where.find('\n');
  if (end == std::string::npos || where.substr(0, end) != boot_id()) return nullptr;
  try {
    return std::make_unique<Board>(where.substr(end + 1), rank);
  } catch (const std::runtime_error&) {
    return nullptr;
  }
}

bool everywhere(Communicator& comm, bool value) {
  std::vector<std::int32_t> flag = {value ? 1 : 0};
  comm.all_reduce(flag, {.op = ReduceOp::min}).wait();
  return flag[0] == 1;
}

}  // namespace

double CommCoordinator::agree(double value) {
  std::vector<double> values = {value};
  comm_.broadcast(values).wait();
  return values[0];
}

void CommCoordinator::maxima(std::vector<double>& values) {
  if (!values.empty()) comm_.all_reduce(values, {.op = ReduceOp::max}).wait();
}

void RankCoordinator::abandon() {
  if (board_) board_->abandon();
}

RankCoordinator::RankCoordinator(Communicator& comm, int cores) {
  FileDescriptor file;
  std::string where;
  if (comm.rank() == 0) {
    file = FileDescriptor(::memfd_create("stretto-bench", MFD_CLOEXEC));
    if (file.valid()) {
      Board::format(file.get(), comm.size(), cores);
      where = fmt::format("{}\n/proc/{}/fd/{}", boot_id(), ::getpid(), file.get());
    }
  }
  board_ = open_board(announce(comm, where), comm.rank().value());
  if (!everywhere(comm, board_ != nullptr)) board_.reset();
  if (board_) {
    coordinator_ = std::make_unique<BoardCoordinator>(*board_);
  } else {
    coordinator_ = std::make_unique<CommCoordinator>(comm);
  }
}

}  // namespace stretto::bench
