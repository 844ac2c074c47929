// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "stretto/communicator/communicator.h"

namespace stretto {

// Memory of every rank of a group, as much on each, which all of them read and write without the
// owner's help: one-sided communication. It is what MPI calls a window (MPI_Win_allocate, MPI_Put,
// MPI_Get, MPI_Win_fence), and OpenSHMEM and PyTorch symmetric memory. In memory of the host.
//
// Calls of fence() divide time into epochs. In one epoch a byte is either written by one rank, its
// owner included, or read by any; else what is there is undefined. What was put in an epoch is
// there, and what was got has come, when the fence() at its end has returned; `from` of a put() may
// be used again at once.
//
// Ranks of one host have mapped each other's memory: a put() or get() is a copy there, and span()
// of another rank is its memory itself. To others, what was put and what is wanted travels in
// messages when fence() is called.
//
// Its constructor and fence() are collective, like operations of the communicator and in one order
// with them, and block; put() and get() do not. One thread at a time. The communicator must outlive
// it. A rank that destroys it must have called fence() after the last put() and get() of others.
class SymmetricMemory final {
 public:
  // Zeroed. Throws what allocate_bytes() throws, then OutOfMemory on the other ranks, and
  // InvalidArgument on all ranks if they do not name the same size; the communicator goes on.
  // Otherwise throws what operations throw.
  SymmetricMemory(Communicator& comm, std::size_t bytes,
                  const std::optional<Duration>& timeout = std::nullopt);
  SymmetricMemory(SymmetricMemory&&) noexcept;
  SymmetricMemory& operator=(SymmetricMemory&&) noexcept;
  ~SymmetricMemory();

  // This rank's.
  std::span<std::byte> span() const;
  // That of `rank`, as it lies in this process; empty where only messages reach it.
  std::span<std::byte> span(Rank rank) const;

  // Writes `from` to the memory of `to`, from `offset_bytes` on. Throws InvalidArgument if it does
  // not fit there.
  void put(std::span<const std::byte> from, Rank to, std::size_t offset_bytes);
  // Reads the memory of `from`, from `offset_bytes` on. Throws InvalidArgument if there is not so
  // much.
  void get(std::span<std::byte> to, Rank from, std::size_t offset_bytes);
  // Ends an epoch. Throws what operations throw; then the communicator has failed.
  void fence(const std::optional<Duration>& timeout = std::nullopt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same for `count` elements on each rank; places are told in elements.
template <class T>
class SymmetricBuffer final {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SymmetricBuffer(Communicator& comm, std::size_t count,
                  const std::optional<Duration>& timeout = std::nullopt)
      : memory_(comm, bytes_of(count), timeout) {}

  std::span<T> span() const { return elements(memory_.span()); }
  std::span<T> span(Rank rank) const { return elements(memory_.span(rank)); }

  void put(std::span<const T> from, Rank to, std::size_t first) {
    memory_.put(std::as_bytes(from), to, bytes_of(first));
  }
  void get(std::span<T> to, Rank from, std::size_t first) {
    memory_.get(std::as_writable_bytes(to), from, bytes_of(first));
  }
  void fence(const std::optional<Duration>& timeout = std::nullopt) { memory_.fence(timeout); }

 private:
  // What is too much for a number of bytes is too much for memory, too.
  static std::size_t bytes_of(std::size_t count) {
    constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
    return count > kMax / sizeof(T) ? kMax : count * sizeof(T);
  }
  static std::span<T> elements(std::span<std::byte> bytes) {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  SymmetricMemory memory_;
};

}  // namespace stretto
