// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The plug-in: ../packets/engine.h on an MPI library. Uses nothing else of stretto.

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/transport/packets/engine.h"

namespace stretto::transport::packets {
namespace {

// The engines of a process take turns: MPI need not be started for several threads at a time.
std::mutex mpi_mutex;

std::string describe(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "unknown error";
  return {text, static_cast<std::size_t>(length)};
}

// "Open MPI v4.1.4, package: ..." as far as it is of interest.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string name(text, static_cast<std::size_t>(length));
  return name.substr(0, name.find_first_of(",\n"));
}

void finalize() {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (is_over == 0) MPI_Finalize();
}

// Says why if MPI cannot be used.
std::string start() {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (is_over != 0) return "MPI has been finalized in this process, and cannot be started again";
  static bool is_ours = false;
  int is_started = 0;
  MPI_Initialized(&is_started);
  int given = MPI_THREAD_SINGLE;
  if (is_started == 0) {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given) != MPI_SUCCESS) {
      return "MPI_Init_thread failed";
    }
    std::atexit(finalize);
    is_ours = true;
    if (given >= MPI_THREAD_SERIALIZED) return "";
    return "this MPI has been built for programs of one thread; stretto needs "
           "MPI_THREAD_SERIALIZED";
  }
  MPI_Query_thread(&given);
  if (given == MPI_THREAD_MULTIPLE || is_ours) return "";
  return "the program has started MPI for less than MPI_THREAD_MULTIPLE, but stretto calls it from "
         "threads of its own: ask MPI_Init_thread for that, or let stretto start MPI";
}

class MpiEngine final : public Engine {
 public:
  MpiEngine(const EngineOptions& options, int world)
      : options_(options), world_(world), library_(library_name()) {
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

  // What asks MPI for anything else lets it work.
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
  // Of a message between ranks of one process, each of whose worlds has tags of its own.
  int tag(int from, int to) const { return (world_ * options_.size + from) * options_.size + to; }
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
  int world_;
  std::string library_;
  std::string failure_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Request> requests_;
  std::vector<int> free_;
  MPI_Message found_ = MPI_MESSAGE_NULL;
  int found_count_ = 0;
};

std::string check_place(const EngineOptions& options) {
  if (options.in_one_process) return "";
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == options.rank && size == options.size) return "";
  return "this is rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
         ", but MPI says " + std::to_string(rank) + " of " + std::to_string(size) +
         ": start the ranks with the mpirun of " + library_name() +
         ", and let no other variables number them";
}

}  // namespace
}  // namespace stretto::transport::packets

extern "C" __attribute__((visibility("default"))) stretto::transport::packets::Engine*
stretto_engine_2(const stretto::transport::packets::EngineOptions& options, char* text,
                 std::size_t text_bytes) {
  using namespace stretto::transport::packets;
  const std::lock_guard lock(mpi_mutex);
  // Worlds of one process are made rank by rank.
  static int worlds = 0;
  if (options.rank == 0) ++worlds;
  std::string why = start();
  if (why.empty()) why = check_place(options);
  std::unique_ptr<MpiEngine> engine;
  if (why.empty()) {
    engine = std::make_unique<MpiEngine>(options, worlds);
    why = engine->failure();
  }
  if (why.empty()) return engine.release();
  std::snprintf(text, text_bytes, "%s", why.c_str());
  return nullptr;
}
