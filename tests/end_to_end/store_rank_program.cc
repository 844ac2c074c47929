// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank that meets the others in the launcher's store, without the rest of the library:
//   store_rank_program meet    notes its rank, waits for all notes, prints how many there are
//   store_rank_program late    the same, but the last rank reads when the others have long ended
//   store_rank_program die     rank 1 notes an operation on the status board and kills itself

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

#include "stretto/base/environment.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/job/job.h"
#include "stretto/job/status_board.h"

namespace {

using namespace stretto::bootstrap;

void meet(const stretto::job::Job& job, bool last_is_late, stretto::Deadline deadline) {
  const TcpStoreOptions options{.host = job.rendezvous.host,
                                .port = job.rendezvous.port,
                                .key = *job.key,
                                .self = {.rank = job.rank}};
  const auto store = connect_tcp_store(options, deadline).or_throw();
  store->set(std::to_string(job.rank), "here", deadline).or_throw();
  if (last_is_late && job.rank == job.size - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  int met = 0;
  for (int peer = 0; peer < job.size; ++peer) {
    met += store->get(std::to_string(peer), deadline).or_throw() == "here" ? 1 : 0;
  }
  std::printf("met %d\n", met);
}

}  // namespace

int main(int /*argument_count*/, char** arguments) {
  const auto deadline = stretto::Deadline::after(std::chrono::seconds(20));
  const stretto::job::Job job =
      stretto::job::resolve_job({}, stretto::process_environment()).or_throw();
  stretto::job::StatusBoard board =
      stretto::job::StatusBoard::open(stretto::process_environment(), job.rank, job.size);
  const std::string mode = arguments[1];
  if (mode == "meet" || mode == "late") {
    meet(job, mode == "late", deadline);
  } else if (job.rank == 1) {
    board.write("all_reduce(sum f32 [8]) #3");
    ::kill(::getpid(), SIGKILL);
  } else {
    ::pause();
  }
  return 0;
}
