// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/double_ranks.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "stretto/cuda_driver/driver.h"
#include "stretto/cuda_driver/symbol_table.h"
#include "stretto/job/device_factory.h"
#include "stretto/transport/endpoint.h"
#include "stretto/transport/shm/host.h"
#include "stretto/transport/tcp/link.h"
#include "tests/support/connect_pairs.h"
#include "tests/support/on_threads.h"
#include "tests/support/rank_list.h"
#include "tests/support/socket_pairs.h"

namespace stretto::testing {
std::string Double::file() { return STRETTO_BIN_DIR "/libfake_nccl.so"; }

Double& Double::get() {
  static auto* const loaded = new Double;
  return *loaded;
}

Double::Double() {
  cuda::SymbolTable::open({file()})
      .or_throw()
      .find_all({{"fake_nccl_change", &change_},
                 {"fake_nccl_reach", &reach_},
                 {"fake_nccl_enqueue", &enqueue_}})
      .or_throw();
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
  const auto driver = cuda::Driver::open(file(), device).or_throw();
  const cuda::Driver::Current current(*driver);
  std::uint64_t pointer = 0;
  driver->status_of_call("cuMemAlloc", driver->call().allocate(&pointer, bytes)).or_throw();
  return reinterpret_cast<std::byte*>(pointer);
}

void Double::enqueue(int device, cuda::StreamHandle stream, std::function<void()> work) const {
  using Function = std::function<void()>;
  const auto driver = cuda::Driver::open(file(), device).or_throw();
  const cuda::Driver::Current current(*driver);
  enqueue_(
      stream, [](void* what) { (*static_cast<Function*>(what))(); }, new Function(std::move(work)),
      [](void* what) { delete static_cast<Function*>(what); });
}

void Double::delay_program(int device, Duration time) const {
  enqueue(device, nullptr, [time] { std::this_thread::sleep_for(time); });
}

View on_device(const Communicator& rank, std::size_t count) {
  std::byte* const data = Double::get().allocate(count * sizeof(float), rank.device().value());
  std::memset(Double::get().reach(data), 0, count * sizeof(float));
  return {data, count, DType::f32};
}

namespace {

transport::Endpoint::Parts connect_by_tcp(int rank, std::vector<FileDescriptor> sockets) {
  transport::Endpoint::Parts parts{.rank = rank};
  for (FileDescriptor& socket : sockets) {
    parts.links.push_back(nullptr);
    if (!socket.valid()) continue;
    parts.links.back() = std::make_unique<transport::tcp::TcpLink>(
        std::make_unique<transport::tcp::SocketStream>(std::move(socket)));
  }
  return parts;
}

}  // namespace

DoubleRanks::DoubleRanks(const Options& options) : sockets_(options.size) {
  const bool by_memory = options.maps_devices && options.shares_memory;
  auto sockets = connect_pairs(options.size, [&](int, int) {
    return by_memory ? make_unix_pair(SOCK_STREAM) : make_tcp_pair();
  });
  RankVector<std::unique_ptr<transport::Endpoint>> endpoints(options.size);
  on_threads(options.size, [&](int rank) {
    for (const FileDescriptor& socket : sockets[rank]) sockets_[rank].push_back(socket.get());
    auto parts = by_memory ? transport::shm::attach(rank, std::move(sockets[rank]),
                                                    Deadline::after(std::chrono::seconds(10)))
                                 .or_throw()
                           : connect_by_tcp(rank, std::move(sockets[rank]));
    endpoints[rank] = transport::Endpoint::create(std::move(parts)).or_throw();
  });
  communicator::ScheduledBackend::Options own{.timeout = options.timeout};
  if (options.maps_devices) {
    own.open_device = job::device_opener(nccl_variables()).or_throw();
  } else {
    own.library = job::nccl_factory(nccl_variables()).or_throw();
  }
  ranks_ = make_ranks(
      endpoints, {.progress_thread = options.progress_thread, .heartbeat = options.heartbeat}, own);
}

void DoubleRanks::on_all(const std::function<void(Communicator&)>& body) {
  on_each(ranks_, [&](auto& rank) {
    if (rank != nullptr) body(*rank);
  });
}

// The thread of the killed rank lives on. It must not tell a rank that another rank, whose socket
// has already ended, is dead. So nothing that it sends arrives any more before the first socket
// ends.
void DoubleRanks::kill(int rank) {
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{.len = 1, .filter = &drop_all};
  for (int other = 0; other < size(); ++other) {
    if (other == rank) continue;
    EXPECT_EQ(::setsockopt(sockets_[other][rank], SOL_SOCKET, SO_ATTACH_FILTER, &program,
                           sizeof(program)),
              0);
  }
  for (int other = 0; other < size(); ++other) {
    if (other == rank) continue;
    ::shutdown(sockets_[other][rank], SHUT_RDWR);
    ::shutdown(sockets_[rank][other], SHUT_RDWR);
  }
}

}  // namespace stretto::testing
