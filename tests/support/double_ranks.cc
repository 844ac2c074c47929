// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/double_ranks.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include "stretto/job/nccl_factory.h"
#include "stretto/nccl/driver.h"
#include "stretto/transport/endpoint.h"
#include "stretto/transport/tcp/link.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/on_threads.h"
#include "tests/support/socket_pairs.h"

namespace stretto::testing {
std::string Double::file() { return STRETTO_BIN_DIR "/libfake_nccl.so"; }

Double& Double::get() {
  static auto* const loaded = new Double;
  return *loaded;
}

Double::Double() {
  void* const library = ::dlopen(file().c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto find = [&](const char* name, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
  };
  find("fake_nccl_change", change_);
  find("fake_nccl_reach", reach_);
}

void Double::change(const std::function<void(fake_nccl::Control&)>& change) {
  change_([](fake_nccl::Control& control,
             void* what) { (*static_cast<decltype(&change)>(what))(control); },
          const_cast<void*>(static_cast<const void*>(&change)));
}

fake_nccl::Control Double::control() {
  fake_nccl::Control now;
  change([&](const fake_nccl::Control& control) { now = control; });
  return now;
}

void Double::reset(const std::function<void(fake_nccl::Control&)>& then) {
  change([&](fake_nccl::Control& control) {
    control = {};
    if (then) then(control);
  });
}

std::byte* Double::allocate(std::size_t bytes, int device) const {
  const auto driver = nccl::Driver::open(file(), device).or_throw();
  const nccl::Driver::Current current(*driver);
  std::uint64_t pointer = 0;
  driver->status_of_call("cuMemAlloc", driver->call().allocate(&pointer, bytes)).or_throw();
  return reinterpret_cast<std::byte*>(pointer);
}

Result<communicator::LibraryFactory> double_factory() { return job::nccl_factory(Variables()); }

DoubleRanks::DoubleRanks(const Options& options)
    : sockets_(static_cast<std::size_t>(options.size),
               std::vector<int>(static_cast<std::size_t>(options.size), -1)),
      statuses_(static_cast<std::size_t>(options.size)),
      ranks_(static_cast<std::size_t>(options.size)) {
  const std::size_t size = ranks_.size();
  std::vector<transport::Endpoint::Parts> parts(size);
  for (std::size_t r = 0; r < size; ++r) {
    parts[r].rank = static_cast<int>(r);
    parts[r].links.resize(size);
  }
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = a + 1; b < size; ++b) {
      auto [mine, theirs] = make_tcp_pair();
      sockets_[a][b] = mine.get();
      sockets_[b][a] = theirs.get();
      parts[a].links[b] = transport::tcp::TcpLink::create(std::move(mine)).or_throw();
      parts[b].links[a] = transport::tcp::TcpLink::create(std::move(theirs)).or_throw();
    }
  }
  on_threads(size, [&](std::size_t r) {
    auto engine =
        group::Engine::create(transport::Endpoint::create(std::move(parts[r])).or_throw(),
                              {.local_ranks = options.size, .heartbeat = options.heartbeat})
            .or_throw();
    auto made = communicator::ScheduledBackend::make_world(
        std::move(engine), {.timeout = options.timeout, .library = double_factory().or_throw()});
    statuses_[r] = made.status();
    if (made.ok()) ranks_[r] = std::move(*made);
  });
}

void DoubleRanks::on_all(const std::function<void(Communicator&)>& body) {
  on_each(ranks_, [&](auto& rank) {
    if (rank != nullptr) body(*rank);
  });
}

// Its thread lives on, and must not tell one that another, whose socket has ended already, is dead:
// so nothing that it sends arrives any more before the first socket ends.
void DoubleRanks::kill(int rank) {
  const auto dead = static_cast<std::size_t>(rank);
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{.len = 1, .filter = &drop_all};
  for (std::size_t other = 0; other < sockets_.size(); ++other) {
    if (other == dead) continue;
    EXPECT_EQ(::setsockopt(sockets_[other][dead], SOL_SOCKET, SO_ATTACH_FILTER, &program,
                           sizeof(program)),
              0);
  }
  for (std::size_t other = 0; other < sockets_.size(); ++other) {
    if (other == dead) continue;
    ::shutdown(sockets_[other][dead], SHUT_RDWR);
    ::shutdown(sockets_[dead][other], SHUT_RDWR);
  }
}

}  // namespace stretto::testing
