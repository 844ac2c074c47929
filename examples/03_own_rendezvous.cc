// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Ranks that no launcher has started: each is told its number, and all meet in a file.
//
// Build: ./dev build 03_own_rendezvous
// Run:   build/release/bin/03_own_rendezvous 0 2 /tmp/meeting &
//        build/release/bin/03_own_rendezvous 1 2 /tmp/meeting; wait

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <stretto/bootstrap/file_store.h>
#include <stretto/stretto.h>

int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: 03_own_rendezvous RANK SIZE FILE\n", stderr), 2;
  const auto soon = stretto::Deadline::after(std::chrono::seconds(30));
  std::shared_ptr<stretto::bootstrap::Store> store =
      stretto::bootstrap::open_file_store(argv[3], soon).or_throw();
  auto comm = stretto::make_communicator(store, std::atoi(argv[1]), std::atoi(argv[2]));
  comm->barrier().wait();                       // All have joined: nobody needs the file.
  if (comm->rank() == 0) std::remove(argv[3]);  // The next job needs a new one.

  std::vector<float> sum = {1};
  std::vector<float> all(static_cast<std::size_t>(comm->size()));
  comm->all_reduce(sum)
      .then([&] { return comm->all_gather(sum, all); })  // As soon as the sum is there.
      .wait();
  std::printf("rank %d of %d: each of %zu sums is %g\n", comm->rank().value(), comm->size(),
              all.size(), static_cast<double>(all.back()));
}
