// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/connection_state.h"

// The kernel's header: the tcp_info of the C library ends before the fields that are needed here.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace stretto::transport::tcp {
namespace {

constexpr int kClosed = 7;                   // TCP_CLOSE of the kernel's own headers.
constexpr int kRetransmissionPauseMax = 44;  // TCP_RTO_MAX_MS, which older headers do not have.

}  // namespace

std::optional<ConnectionState> read_connection_state(int socket) {
  tcp_info info{};
  // Kernels before 5.4 do not tell the window: then it counts as open.
  info.tcpi_snd_wnd = 1;
  socklen_t size = sizeof(info);
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_min_rtt) || info.tcpi_state == kClosed) {
    return std::nullopt;
  }
  int waiting_bytes = 0;
  (void)::ioctl(socket, SIOCOUTQ, &waiting_bytes);
  return ConnectionState{
      .acknowledged_bytes = info.tcpi_bytes_acked,
      .waiting_bytes = static_cast<std::uint64_t>(waiting_bytes),
      .received_bytes = info.tcpi_bytes_received,
      .received_packets = info.tcpi_segs_in,
      .in_flight = info.tcpi_unacked > 0,
      .unsent = info.tcpi_notsent_bytes > 0,
      .window_open = info.tcpi_snd_wnd > 0,
      .probe_unanswered = info.tcpi_probes > 0,
      .without_room = std::chrono::microseconds(info.tcpi_rwnd_limited),
      .since_acknowledgement = std::chrono::milliseconds(info.tcpi_last_ack_recv),
      .retransmission_pause = std::chrono::microseconds(info.tcpi_rto)};
}

void limit_retransmission_pause(int socket, Duration pause) {
  const auto wanted = std::chrono::duration_cast<std::chrono::milliseconds>(pause).count();
  const int milliseconds = static_cast<int>(std::clamp<std::int64_t>(wanted, 1000, 120'000));
  (void)::setsockopt(socket, IPPROTO_TCP, kRetransmissionPauseMax, &milliseconds,
                     sizeof(milliseconds));
}

}  // namespace stretto::transport::tcp
