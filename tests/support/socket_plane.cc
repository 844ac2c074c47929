// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/socket_plane.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <set>

#include "stretto/base/rank_vector.h"

namespace stretto::transport {
namespace {

// Of a peer that has sent so many bytes that nobody has asked for, no more is read.
constexpr std::size_t kUnexpectedMax = std::size_t{64} << 20;

// What the sockets, which keep the borders of what is sent, carry at a time: a message, or if it is
// larger, without its bytes; then the receiver says that it is clear to send, and the parts follow.
struct Header {
  enum Kind : std::uint64_t { message, clear, part };
  Kind kind = message;
  MessageKey key = {};
  MessageLabel label = {};
  std::uint64_t offset = 0;  // Of a part.
};
struct Packet {
  Header header;
  std::vector<std::byte> bytes;
  Request* request = nullptr;  // Ends when this is in the socket.

  const MessageKey& key() const { return header.key; }
  bool is_whole() const { return bytes.size() == header.label.message_bytes; }
};

using Requests = std::list<Request*>;

// The first of these requests, which it was; null: there is none.
Request* take(Requests& requests, const MessageKey& key) {
  const auto found = std::ranges::find(requests, key, &Request::key);
  if (found == requests.end()) return nullptr;
  Request* const request = *found;
  requests.erase(found);
  return request;
}

class SocketPlane final : public DataPlane {
 public:
  SocketPlane(Rank self, std::vector<FileDescriptor> sockets)
      : self_(self), peers_(sockets.size()), room_(sizeof(Header) + kEagerBytes) {
    for (std::size_t r = 0; r < sockets.size(); ++r) peers_[r].socket = std::move(sockets[r]);
  }

  void send(Request& request) override {
    Peer& to = peers_[request.peer];
    const Header header{.key = request.key, .label = label_of(request)};
    if (request.outgoing.size() <= kEagerBytes) return push(to, header, request.outgoing, &request);
    to.announced.push_back(&request);
    push(to, header);
  }

  void recv(Request& request) override {
    Peer& from = peers_[request.peer];
    const auto found = std::ranges::find(from.unexpected, request.key, &Packet::key);
    if (found == from.unexpected.end()) return from.receives.push_back(&request);
    const Packet message = std::move(*found);
    from.unexpected.erase(found);
    from.unexpected_bytes -= message.bytes.size();
    deliver(from, request, message);
  }

  bool has_arrived(Rank peer, const MessageKey& key) const override {
    const auto& unexpected = peers_[peer].unexpected;
    return std::ranges::find(unexpected, key, &Packet::key) != unexpected.end();
  }

  std::optional<UnexpectedMessage> find_conflict(
      Rank peer, std::uint64_t group, std::uint32_t sequence,
      const OperationDescriptor& operation) const override {
    for (const auto& [header, bytes, request] : peers_[peer].unexpected) {
      const OperationDescriptor& theirs = header.label.operation;
      const bool is_of_it = header.key.group == group && header.key.sequence == sequence;
      if (is_of_it && !(theirs == operation)) return UnexpectedMessage{peer, header.key, theirs};
    }
    return std::nullopt;
  }

  void cancel(Rank peer, std::uint64_t group, const Status& reason) override {
    peers_[peer].cancelled.insert(group);
    end(peers_[peer], reason, [&](const MessageKey& key) { return key.group == group; });
    peers_[peer].unexpected.remove_if([&](const Packet& message) {
      if (message.key().group != group) return false;
      peers_[peer].unexpected_bytes -= message.bytes.size();
      return true;
    });
  }

  void lose(Rank peer, const Status& reason) override {
    while (read(peer)) continue;
    end(peers_[peer], reason, [](const MessageKey&) { return true; });
    peers_[peer].out.clear();
    peers_[peer].unexpected.remove_if([](const Packet& message) { return !message.is_whole(); });
  }

  bool progress(UnexpectedQueue& unexpected) override {
    bool moved = false;
    for (std::int32_t r = 0; std::cmp_less(r, peers_.size()); ++r) {
      moved = flush(peers_[r]) || moved;
      while (peers_[r].unexpected_bytes < kUnexpectedMax && read(r)) moved = true;
    }
    for (; !unexpected_.empty(); unexpected_.pop()) unexpected.push(unexpected_.front());
    return moved;
  }

  bool has_output(Rank peer) const override { return !peers_[peer].out.empty(); }

 private:
  struct Peer {
    FileDescriptor socket;
    std::deque<Packet> out;
    std::list<Packet> unexpected;
    std::size_t unexpected_bytes = 0;
    Requests receives;
    Requests announced;  // To the peer.
    Requests cleared;    // Announced by the peer, and its parts are coming.
    std::set<std::uint64_t> cancelled;
  };

  static void push(Peer& to, const Header& header, ConstByteSpan bytes = {},
                   Request* request = nullptr) {
    to.out.push_back({header, {bytes.begin(), bytes.end()}, request});
    flush(to);
  }

  static bool flush(Peer& to) {
    bool moved = false;
    for (; !to.out.empty(); to.out.pop_front(), moved = true) {
      Packet& packet = to.out.front();
      iovec pieces[] = {{&packet.header, sizeof(Header)},
                        {packet.bytes.data(), packet.bytes.size()}};
      msghdr whole{};
      whole.msg_iov = pieces;
      whole.msg_iovlen = std::size(pieces);
      if (::sendmsg(to.socket.get(), &whole, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
      if (packet.request != nullptr) complete(*packet.request, Status());
    }
    return moved;
  }

  bool read(Rank rank) {
    const auto got = ::recv(peers_[rank].socket.get(), room_.data(), room_.size(), MSG_DONTWAIT);
    Packet packet;
    if (got < static_cast<ssize_t>(sizeof(Header))) return false;
    std::memcpy(&packet.header, room_.data(), sizeof(Header));
    packet.bytes.assign(room_.begin() + sizeof(Header), room_.begin() + got);
    arrive(rank, peers_[rank], std::move(packet));
    return true;
  }

  void arrive(Rank rank, Peer& from, Packet packet) {
    const auto& [kind, key, label, offset] = packet.header;
    if (kind == Header::clear) {
      if (Request* const request = take(from.announced, key)) send_parts(from, *request);
    } else if (kind == Header::part) {
      // The first of its key was the first to be cleared.
      const auto found = std::ranges::find(from.cleared, key, &Request::key);
      if (found == from.cleared.end()) return;
      const ByteSpan place = (*found)->incoming.subspan(offset);
      std::ranges::copy(packet.bytes, place.begin());
      if (place.size() == packet.bytes.size()) complete(*take(from.cleared, key), Status());
    } else if (Request* const request = take(from.receives, key)) {
      deliver(from, *request, packet);
    } else if (!from.cancelled.contains(key.group)) {
      unexpected_.push({.from = rank, .key = key, .operation = label.operation});
      from.unexpected_bytes += packet.bytes.size();
      from.unexpected.push_back(std::move(packet));
    }
  }

  // A message has met its receive.
  void deliver(Peer& from, Request& request, const Packet& message) {
    if (!agree(request, message.header.label, self_)) return;
    if (!message.is_whole()) {
      from.cleared.push_back(&request);
      return push(from, {.kind = Header::clear, .key = message.key()});
    }
    std::ranges::copy(message.bytes, request.incoming.begin());
    complete(request, Status());
  }

  static void send_parts(Peer& to, Request& request) {
    const ConstByteSpan all = request.outgoing;
    for (std::size_t begin = 0; begin < all.size(); begin += kEagerBytes) {
      const ConstByteSpan bytes = all.subspan(begin, std::min(kEagerBytes, all.size() - begin));
      push(to, {.kind = Header::part, .key = request.key, .offset = begin}, bytes,
           begin + bytes.size() == all.size() ? &request : nullptr);
    }
  }

  template <class Concerned>
  static void end(Peer& peer, const Status& reason, const Concerned& concerned) {
    const auto end_one = [&](Request* request) {
      const bool ends = request != nullptr && concerned(request->key);
      if (ends) complete(*request, reason);
      return ends;
    };
    for (Requests* list : {&peer.receives, &peer.announced, &peer.cleared}) {
      list->remove_if(end_one);
    }
    for (Packet& packet : peer.out) {
      if (end_one(packet.request)) packet.request = nullptr;
    }
  }

  const Rank self_;
  RankVector<Peer> peers_;
  std::vector<std::byte> room_;  // Of what is read.
  UnexpectedQueue unexpected_;
};

}  // namespace

std::unique_ptr<DataPlane> make_socket_plane(Rank self, std::vector<FileDescriptor> sockets) {
  return std::make_unique<SocketPlane>(self, std::move(sockets));
}

}  // namespace stretto::transport
