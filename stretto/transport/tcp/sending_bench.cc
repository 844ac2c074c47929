// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a sender's processor takes for each GiB that it sends over TCP, by sendmsg, which is what
// links use, and by what spares a system call or a copy where there is a network card that reads
// the program's pages: MSG_ZEROCOPY and io_uring. Over loopback, where the counter "copied" says of
// how much the kernel reports that it has been copied after all.

#include <benchmark/benchmark.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <vector>

#include "stretto/base/check.h"
#include "stretto/base/file_descriptor.h"

namespace stretto::transport {
namespace {

// Two sockets and a thread that reads what is sent.
class Connection {
 public:
  Connection() {
    const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any_address = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    const bool connected = ::bind(listener.get(), any_address, length) == 0 &&
                           ::listen(listener.get(), 1) == 0 &&
                           ::getsockname(listener.get(), any_address, &length) == 0 &&
                           ::connect(sender_.get(), any_address, length) == 0;
    STRETTO_CHECK(connected, "loopback cannot be connected to: errno {}", errno);
    reader_ = std::thread([receiver = FileDescriptor(::accept(listener.get(), nullptr, nullptr))] {
      std::vector<char> bytes(1 << 20);
      while (::recv(receiver.get(), bytes.data(), bytes.size(), 0) > 0) {
      }
    });
  }
  ~Connection() {
    ::shutdown(sender_.get(), SHUT_RDWR);
    reader_.join();
  }
  int fd() const { return sender_.get(); }

 private:
  FileDescriptor sender_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::thread reader_;
};

// Sends all of a buffer, which then may be used again.
class Plain {
 public:
  explicit Plain(int fd) : fd_(fd) {}
  bool is_there() const { return true; }
  void send(const std::vector<char>& bytes) { send_with(bytes, 0); }
  double copied() const { return 1; }

 protected:
  // Returns how many calls it took.
  int send_with(const std::vector<char>& bytes, int flags) {
    int calls = 0;
    for (std::size_t at = 0; at < bytes.size(); ++calls) {
      iovec part{const_cast<char*>(bytes.data()) + at, bytes.size() - at};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      const ssize_t sent = ::sendmsg(fd_, &message, flags | MSG_NOSIGNAL);
      STRETTO_CHECK(sent > 0, "sendmsg failed: errno {}", errno);
      at += static_cast<std::size_t>(sent);
    }
    return calls;
  }
  int fd_;
};

class ZeroCopy : public Plain {
 public:
  explicit ZeroCopy(int fd) : Plain(fd) {
    const int on = 1;
    is_there_ = ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
  }
  bool is_there() const { return is_there_; }
  double copied() const { return copied_ / ended_; }
  void send(const std::vector<char>& bytes) {
    for (int calls = send_with(bytes, MSG_ZEROCOPY); calls > 0;) calls -= take_ends();
  }

 private:
  // Of how many calls the pages are no longer needed.
  int take_ends() {
    alignas(cmsghdr) std::array<char, 128> control{};
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    pollfd ready{.fd = fd_, .events = 0, .revents = 0};
    ::poll(&ready, 1, -1);
    if (::recvmsg(fd_, &message, MSG_ERRQUEUE) < 0) return 0;
    const auto* const end =
        reinterpret_cast<const sock_extended_err*>(CMSG_DATA(CMSG_FIRSTHDR(&message)));
    const int calls = static_cast<int>(end->ee_data - end->ee_info) + 1;
    ended_ += calls;
    if (end->ee_code == SO_EE_CODE_ZEROCOPY_COPIED) copied_ += calls;
    return calls;
  }

  bool is_there_ = false;
  double ended_ = 0;
  double copied_ = 0;
};

// One call hands a send over and waits until it has ended.
template <std::uint8_t kOperation>
class Uring {
 public:
  explicit Uring(int fd) : fd_(fd) {
    io_uring_params params{};
    ring_ = FileDescriptor(static_cast<int>(::syscall(SYS_io_uring_setup, 4, &params)));
    if (!ring_.valid() || (params.features & IORING_FEAT_SINGLE_MMAP) == 0) return;
    const auto map = [&](std::size_t bytes, std::uint64_t what) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_.get(),
                                  static_cast<off_t>(what));
      return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
    };
    char* const queues =
        map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_SQ_RING);
    if (queues == nullptr) return;
    entry_ = reinterpret_cast<io_uring_sqe*>(map(sizeof(io_uring_sqe), IORING_OFF_SQES));
    const auto at = [&](std::uint32_t offset) {
      return reinterpret_cast<std::uint32_t*>(queues + offset);
    };
    submitted_ = at(params.sq_off.tail);
    taken_ = at(params.cq_off.head);
    ended_ = at(params.cq_off.tail);
    mask_ = *at(params.cq_off.ring_mask);
    ends_ = reinterpret_cast<io_uring_cqe*>(queues + params.cq_off.cqes);
    // Every place of the queue names the one entry.
    std::fill_n(at(params.sq_off.array), params.sq_entries, 0U);
  }
  bool is_there() const { return entry_ != nullptr; }
  double copied() const { return copied_ / sends_; }
  void send(const std::vector<char>& bytes) {
    *entry_ = {};
    entry_->opcode = kOperation;
    entry_->fd = fd_;
    entry_->addr = reinterpret_cast<std::uintptr_t>(bytes.data());
    entry_->len = static_cast<std::uint32_t>(bytes.size());
    entry_->msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    if (kOperation == IORING_OP_SEND_ZC) entry_->ioprio = IORING_SEND_ZC_REPORT_USAGE;
    std::atomic_ref(*submitted_).fetch_add(1, std::memory_order_release);
    ++sends_;
    unsigned count = 1;
    for (bool more = true; more; count = 0) {
      ::syscall(SYS_io_uring_enter, ring_.get(), count, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
      while (more && std::atomic_ref(*ended_).load(std::memory_order_acquire) != *taken_) {
        more = take(ends_[*taken_ & mask_], bytes.size());
        std::atomic_ref(*taken_).fetch_add(1, std::memory_order_release);
      }
    }
  }

 private:
  // Whether the kernel will say more of this send.
  bool take(const io_uring_cqe& end, std::size_t bytes) {
    if ((end.flags & IORING_CQE_F_NOTIF) != 0) {
      if ((static_cast<std::uint32_t>(end.res) & IORING_NOTIF_USAGE_ZC_COPIED) != 0) ++copied_;
      return false;
    }
    STRETTO_CHECK(end.res == static_cast<int>(bytes), "io_uring sent {} of {} bytes", end.res,
                  bytes);
    if (kOperation == IORING_OP_SEND) ++copied_;
    return (end.flags & IORING_CQE_F_MORE) != 0;
  }

  int fd_;
  FileDescriptor ring_;
  io_uring_sqe* entry_ = nullptr;
  std::uint32_t* submitted_ = nullptr;
  std::uint32_t* taken_ = nullptr;
  std::uint32_t* ended_ = nullptr;
  std::uint32_t mask_ = 0;
  io_uring_cqe* ends_ = nullptr;
  double sends_ = 0;
  double copied_ = 0;
};

template <class Sender>
void bench_send(benchmark::State& state) {
  const Connection connection;
  Sender sender(connection.fd());
  if (!sender.is_there()) return state.SkipWithError("this kernel has none, or does not let us");
  const std::vector<char> bytes(static_cast<std::size_t>(state.range(0)), 1);
  for (auto _ : state) sender.send(bytes);
  const double gigabytes =
      static_cast<double>(state.iterations()) * static_cast<double>(bytes.size()) / (1 << 30);
  state.counters["s/GiB"] =
      benchmark::Counter(gigabytes, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["copied"] = sender.copied();
}

BENCHMARK(bench_send<Plain>)->Arg(64)->Arg(16 << 10)->Arg(256 << 10);
BENCHMARK(bench_send<ZeroCopy>)->Arg(64)->Arg(16 << 10)->Arg(256 << 10);
BENCHMARK(bench_send<Uring<IORING_OP_SEND>>)->Arg(64)->Arg(16 << 10)->Arg(256 << 10);
BENCHMARK(bench_send<Uring<IORING_OP_SEND_ZC>>)->Arg(64)->Arg(16 << 10)->Arg(256 << 10);

}  // namespace
}  // namespace stretto::transport
