// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/comm_coordinator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include <fmt/format.h>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/fnv1a.h"
#include "stretto/communicator/all_gather_value.h"

namespace stretto::bench {
namespace {

// An id that differs between machines, and after each boot.
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

// Null if there is no board at `path`, or it cannot be opened.
std::unique_ptr<Board> open_board(const std::string& path, int rank) {
  if (path.empty()) return nullptr;
  try {
    return std::make_unique<Board>(path, rank);
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

int count_ranks_of(Communicator& comm, const std::string& host) {
  const std::uint64_t own = fnv1a(host);
  const auto all = communicator::all_gather_value(comm, own, std::nullopt);
  return static_cast<int>(std::ranges::count(all, own));
}

RankCoordinator::RankCoordinator(Communicator& comm, int cores)
    : ranks_of_host_(count_ranks_of(comm, boot_id())) {
  FileDescriptor file;
  std::string path;
  // The path is of this host: on another host it would name another process's file.
  if (comm.rank() == 0 && ranks_of_host_ == comm.size()) {
    file = FileDescriptor(::memfd_create("stretto-bench", MFD_CLOEXEC));
    if (file.valid()) {
      Board::format(file.get(), comm.size(), cores);
      path = fmt::format("/proc/{}/fd/{}", ::getpid(), file.get());
    }
  }
  board_ = open_board(announce(comm, path), comm.rank().value());
  if (!everywhere(comm, board_ != nullptr)) board_.reset();
  if (board_) {
    coordinator_ = std::make_unique<BoardCoordinator>(*board_);
  } else {
    coordinator_ = std::make_unique<CommCoordinator>(comm);
  }
}

}  // namespace stretto::bench
