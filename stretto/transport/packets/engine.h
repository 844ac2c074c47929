// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto::transport::packets {

// What stretto needs of a library that moves bytes, such as an MPI or UCX. A plug-in that is
// compiled against the library implements it (../mpi/plugin.cc, ../ucx/plugin.cc). So a program
// that is linked with stretto needs none of these libraries, and one build of stretto works with
// any of them. Nothing here refers to a symbol of stretto or of the library.
//
// A packet is a part of a stream to one peer: packets from one rank to another arrive in order. One
// thread at a time; no function waits.
class Engine {
 public:
  virtual ~Engine() = default;

  // "Open MPI v4.1.4".
  virtual const char* library() const = 0;
  // The library's text about the first call that failed, after which nothing works; "" before.
  virtual const char* failure() const = 0;
  // The same for the first call about one peer that failed, after which nothing is sent to that
  // peer.
  virtual const char* failure(int peer) const = 0;

  // The address of this rank, as text; "" if the library itself knows where all ranks are.
  virtual const char* address() const = 0;
  // Takes the addresses of all ranks, in their order. To be called before anything is sent.
  virtual void connect(const char* const* addresses) = 0;

  // Begins to send a packet. The caller keeps its bytes in place until has_ended() of the number
  // returned is true: then the peer has begun to take it, or is known to have failed.
  virtual int send(int peer, const std::byte* bytes, std::size_t count) = 0;
  // Lets the library move what it can move now. Returns whether anything did, as far as it says.
  virtual bool progress() = 0;
  // Whether a packet has come that no receive() has taken; sets `peer`, which sent it, and `count`,
  // its bytes.
  virtual bool probe(int& peer, std::size_t& count) = 0;
  // Begins to receive the packet that probe() has just found. Returns a number for has_ended().
  virtual int receive(std::byte* into) = 0;
  // Whether a send or receive has ended. To be called until it returns true, and then no more.
  virtual bool has_ended(int operation) = 0;
};

struct EngineOptions {
  int rank = 0;
  int size = 1;
  // For tests: whether all ranks are in this process, the only one that the library then knows.
  // Otherwise they are those of MPI_COMM_WORLD, or are where their addresses say.
  bool in_one_process = false;
};

// The function that plug-ins export, under a name that changes with the declarations above. Returns
// the engine, or null and the reason in `text`. Starts an MPI if nobody has. All ranks call it
// together.
using MakeEngine = Engine* (*)(const EngineOptions& options, char* text, std::size_t text_bytes);
inline constexpr const char* kMakeEngine = "stretto_engine_2";

}  // namespace stretto::transport::packets
