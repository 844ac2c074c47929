// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The plug-in: ../packets/engine.h on an MPI library. Uses nothing else of stretto.

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "stretto/transport/mpi/mpi_process.h"
#include "stretto/transport/packets/engine.h"

namespace stretto::transport::packets {
namespace {

using mpi::describe;
using mpi::library_name;
using mpi::mpi_mutex;

class MpiEngine final : public Engine {
 public:
  MpiEngine(const EngineOptions& options, int first_tag)
      : options_(options), first_tag_(first_tag), library_(library_name()) {
    const MPI_Comm all = options.in_one_process ? MPI_COMM_SELF : MPI_COMM_WORLD;
    if (options.in_one_process) {
      static const MPI_Comm shared = duplicate(all);
      comm_ = shared;
    } else {
      check(MPI_Comm_dup(all, &comm_));
    }
    if (failure_.empty()) MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }

  const char* library() const override { return library_.c_str(); }
  const char* failure() const override { return failure_.c_str(); }
  const char* failure(int) const override { return ""; }
  const char* address() const override { return ""; }
  void connect(const char* const*) override {}

  // A synchronous send: it ends when the peer has begun to receive. Else the goodbye of a rank,
  // which goes another way, could overtake what it has sent before.
  int send(int peer, const std::byte* bytes, std::size_t count) override {
    const std::lock_guard lock(mpi_mutex);
    const int number = free_operation();
    const bool local = options_.in_one_process;
    check(MPI_Issend(bytes, static_cast<int>(count), MPI_BYTE, local ? 0 : peer,
                     local ? tag(options_.rank, peer) : 0, comm_, &request(number)));
    return number;
  }

  // All other calls let MPI work.
  bool progress() override { return false; }

  bool probe(int& peer, std::size_t& count) override {
    const std::lock_guard lock(mpi_mutex);
    if (!options_.in_one_process) {
      MPI_Status status;
      if (!probe(MPI_ANY_SOURCE, 0, status, count)) return false;
      peer = status.MPI_SOURCE;
      return true;
    }
    for (int from = 0; from < options_.size; ++from) {
      MPI_Status status;
      if (from == options_.rank || !probe(0, tag(from, options_.rank), status, count)) continue;
      peer = from;
      return true;
    }
    return false;
  }

  int receive(std::byte* into) override {
    const std::lock_guard lock(mpi_mutex);
    const int number = free_operation();
    check(MPI_Imrecv(into, found_count_, MPI_BYTE, &found_, &request(number)));
    return number;
  }

  bool has_ended(int operation) override {
    const std::lock_guard lock(mpi_mutex);
    int flag = 0;
    check(MPI_Test(&request(operation), &flag, MPI_STATUS_IGNORE));
    if (flag == 0 || !failure_.empty()) return false;
    free_.push_back(operation);
    return true;
  }

 private:
  static MPI_Comm duplicate(MPI_Comm comm) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_dup(comm, &copy);
    return copy;
  }
  // Says by which tag a message between ranks of one process goes.
  int tag(int from, int to) const { return first_tag_ + from * options_.size + to; }
  MPI_Request& request(int number) { return requests_[static_cast<std::size_t>(number)]; }

  int free_operation() {
    if (free_.empty()) {
      requests_.push_back(MPI_REQUEST_NULL);
      return static_cast<int>(requests_.size()) - 1;
    }
    const int number = free_.back();
    free_.pop_back();
    return number;
  }

  bool probe(int source, int tag, MPI_Status& status, std::size_t& count) {
    int flag = 0;
    check(MPI_Improbe(source, tag, comm_, &flag, &found_, &status));
    if (flag == 0 || !failure_.empty()) return false;
    check(MPI_Get_count(&status, MPI_BYTE, &found_count_));
    count = static_cast<std::size_t>(std::max(0, found_count_));
    return failure_.empty();
  }

  void check(int error) {
    if (error != MPI_SUCCESS && failure_.empty()) failure_ = describe(error);
  }

  EngineOptions options_;
  int first_tag_;
  std::string library_;
  std::string failure_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Request> requests_;
  std::vector<int> free_;
  MPI_Message found_ = MPI_MESSAGE_NULL;
  int found_count_ = 0;
};

}  // namespace
}  // namespace stretto::transport::packets

extern "C" __attribute__((visibility("default"))) stretto::transport::packets::Engine*
stretto_engine_2(const stretto::transport::packets::EngineOptions& options, char* text,
                 std::size_t text_bytes) {
  using namespace stretto::transport::packets;
  const std::lock_guard lock(mpi_mutex);
  // Worlds of one process are made rank by rank. Each has tags of its own, so that what one has
  // left unreceived never comes to another.
  static int first_tag = 0;
  static int next_tag = 0;
  if (options.rank == 0) {
    first_tag = next_tag;
    next_tag += options.size * options.size;
  }
  std::string why = stretto::transport::mpi::start(MPI_THREAD_SERIALIZED);
  if (why.empty() && !options.in_one_process) {
    why = stretto::transport::mpi::check_place(options.rank, options.size);
  }
  std::unique_ptr<MpiEngine> engine;
  if (why.empty()) {
    engine = std::make_unique<MpiEngine>(options, first_tag);
    why = engine->failure();
  }
  if (why.empty()) return engine.release();
  std::snprintf(text, text_bytes, "%s", why.c_str());
  return nullptr;
}
