// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto::transport::packets {

// What stretto needs of a library that moves bytes, such as an MPI or UCX, as a plug-in that is
// compiled against that library gives it (../mpi/plugin.cc, ../ucx/plugin.cc). So a program needs
// none of them for being linked with stretto, and one stretto works with any of them. Nothing here
// refers to a symbol of either side.
//
// A packet is a piece of a stream to one peer: packets of two ranks arrive in order. One thread at
// a time; nothing waits.
class Engine {
 public:
  virtual ~Engine() = default;

  // "Open MPI v4.1.4".
  virtual const char* library() const = 0;
  // What the library has said of the first call that failed, after which nothing works; "" before.
  virtual const char* failure() const = 0;
  // The same of what concerns one peer, to which nothing is sent any more.
  virtual const char* failure(int peer) const = 0;

  // Where others reach this rank, as text; "" if the library itself knows where all ranks are.
  virtual const char* address() const = 0;
  // Takes those of all ranks, in their order, before anything is sent.
  virtual void connect(const char* const* addresses) = 0;

  // Begins to send a packet, whose bytes stay in place until has_ended() of the number returned:
  // then the peer has begun to take it, or is known to have failed.
  virtual int send(int peer, const std::byte* bytes, std::size_t count) = 0;
  // Lets the library move what it can move now. Returns whether anything did, as far as it says.
  virtual bool progress() = 0;
  // Whether a packet has come that no receive() has taken, and from whom, of how many bytes.
  virtual bool probe(int& peer, std::size_t& count) = 0;
  // Begins to receive the packet that probe() has just found, also to be asked after by number.
  virtual int receive(std::byte* into) = 0;
  // Asked again until it says so, and then no more.
  virtual bool has_ended(int operation) = 0;
};

struct EngineOptions {
  int rank = 0;
  int size = 1;
  // Whether all ranks are in this process, which then is the only one that the library knows: for
  // tests. Else they are those of MPI_COMM_WORLD, or wherever their addresses say.
  bool in_one_process = false;
};

// What plug-ins export, under a name that changes with what is above: the engine, or null and why
// in `text`. An MPI is started if nobody has started it; all ranks call this together.
using MakeEngine = Engine* (*)(const EngineOptions& options, char* text, std::size_t text_bytes);
inline constexpr const char* kMakeEngine = "stretto_engine_2";

}  // namespace stretto::transport::packets
