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

// A block of host memory on every rank of a group, of the same size on each. All ranks read and
// write all blocks without the owner's help: one-sided communication. MPI calls it a window
// (MPI_Win_allocate, MPI_Put, MPI_Get, MPI_Win_fence); OpenSHMEM and PyTorch, symmetric memory.
//
// Calls of fence() divide time into epochs. In one epoch a byte may either be written by one rank,
// which may be its owner, or be read by any ranks; otherwise its content is undefined. When fence()
// returns, all puts and gets of the epoch that it ends are complete. After put(), `from` may be
// used again at once.
//
// Ranks of one host have mapped each other's memory: put() and get() are copies there, and span()
// of another rank is its memory itself. Between other ranks, the data of puts and gets travels in
// messages when fence() is called.
//
// The constructor and fence() are collective and block; all ranks must call them and the
// collectives of the communicator in the same order. put() and get() do not block. One thread at a
// time. The communicator must outlive this object. Before a rank destroys it, it must call fence()
// after the last put() and get() of other ranks.
class SymmetricMemory final {
 public:
  // The memory is zeroed. If this rank has no memory, it throws what allocate_bytes() throws, and
  // the other ranks throw OutOfMemory. All ranks throw InvalidArgument if they do not name the same
  // size. The communicator can still be used after these. Otherwise throws what operations throw.
  SymmetricMemory(Communicator& comm, std::size_t bytes,
                  const std::optional<Duration>& timeout = std::nullopt);
  SymmetricMemory(SymmetricMemory&&) noexcept;
  SymmetricMemory& operator=(SymmetricMemory&&) noexcept;
  ~SymmetricMemory();

  // This rank's memory.
  std::span<std::byte> span() const;
  // The memory of `rank`, mapped in this process; empty if only messages reach it.
  std::span<std::byte> span(Rank rank) const;

  // Writes `from` to the memory of `to`, from byte `offset_bytes` on. Throws InvalidArgument if it
  // does not fit there.
  void put(std::span<const std::byte> from, Rank to, std::size_t offset_bytes);
  // Fills `to` with the memory of `from`, from byte `offset_bytes` on. Throws InvalidArgument if
  // that has fewer bytes. `to` has its content after the next fence().
  void get(std::span<std::byte> to, Rank from, std::size_t offset_bytes);
  // Ends an epoch. Throws what operations throw; the communicator has then failed.
  void fence(const std::optional<Duration>& timeout = std::nullopt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same for `count` elements on each rank; positions are in elements.
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
  // A byte count that would overflow becomes the largest one, which no memory can hold.
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
