// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// The MPI of this process, as the parts of the plug-in share it. Uses nothing else of stretto.

#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

namespace stretto::transport::mpi {

// Held by whoever calls MPI, so that messages do not need MPI_THREAD_MULTIPLE. Only the making of
// groups, in which a rank waits for others, does not hold it.
inline std::mutex mpi_mutex;
// The number of groups that are being made, or whose collectives have been abandoned. These may
// never end, and MPI_Finalize() would wait for them.
inline std::atomic<int> unended = 0;

inline std::string describe(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "unknown error";
  return {text, static_cast<std::size_t>(length)};
}

// The beginning of the library's "Open MPI v4.1.4, package: ...", up to the first comma.
inline std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string name(text, static_cast<std::size_t>(length));
  return name.substr(0, name.find_first_of(",\n"));
}

inline void finalize() {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (is_over == 0 && unended == 0) MPI_Finalize();
}

// Starts MPI, if nobody has. Returns "", or why it cannot be used as `wanted` says: by threads that
// take turns (MPI_THREAD_SERIALIZED), or by several at a time (MPI_THREAD_MULTIPLE).
inline std::string start(int wanted) {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (is_over != 0) return "MPI has been finalized in this process, and cannot be started again";
  static bool is_ours = false;
  int is_started = 0;
  MPI_Initialized(&is_started);
  int given = MPI_THREAD_SINGLE;
  if (is_started == 0) {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given) != MPI_SUCCESS) {
      return "MPI_Init_thread failed";
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // The default handler ends the
                                                                 // job.
    std::atexit(finalize);
    is_ours = true;
  }
  MPI_Query_thread(&given);
  if (given == MPI_THREAD_MULTIPLE) return "";
  if (!is_ours) {
    return "the program has started MPI for less than MPI_THREAD_MULTIPLE, but stretto calls it "
           "from threads of its own: ask MPI_Init_thread for that, or let stretto start MPI";
  }
  if (wanted == MPI_THREAD_MULTIPLE) {
    return "this MPI gives no MPI_THREAD_MULTIPLE, without which groups that threads make at the "
           "same time would wait for each other";
  }
  if (given == MPI_THREAD_SERIALIZED) return "";
  return "this MPI has been built for programs of one thread; stretto needs MPI_THREAD_SERIALIZED";
}

// Returns a reason if MPI numbers this process differently, or "".
inline std::string check_place(int job_rank, int job_size) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == job_rank && size == job_size) return "";
  return "this is rank " + std::to_string(job_rank) + " of " + std::to_string(job_size) +
         ", but MPI says " + std::to_string(rank) + " of " + std::to_string(size) +
         ": start the ranks with the mpirun of " + library_name() +
         ", and let no other variables number them";
}

}  // namespace stretto::transport::mpi
