// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/socket_plane.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <set>

#include "stretto/base/rank_vector.h"
#include "stretto/transport/frame.h"

namespace stretto::transport {
namespace {

// What the sockets, which keep the borders of what is sent, carry at a time: a message, or if it is
// larger, without its bytes; then the receiver says that it is clear to send, and the parts follow.
struct Header {
  enum : std::uint64_t { message, clear, part } kind = message;
  MessageKey key = {};
  MessageLabel label = {};
  std::uint64_t offset = 0;  // Of a part.
};
struct Packet : Header {
  std::vector<std::byte> bytes;
  Request* request = nullptr;  // Ends when this is in the socket.
  bool is_whole() const { return bytes.size() == label.message_bytes; }
};
using Requests = std::list<Request*>;
struct Peer {
  FileDescriptor socket;
  std::list<Packet> out;
  std::list<Packet> unexpected;
  std::size_t unexpected_bytes = 0;
  Requests receives;
  Requests announced;  // To the peer.
  Requests cleared;    // Announced by the peer, and its parts are coming.
  std::set<std::uint64_t> cancelled;
};

// The first of these requests, which it was; null: there is none.
Request* take(Requests& requests, const MessageKey& key) {
  const auto found = std::ranges::find(requests, key, &Request::key);
  Request* const request = found == requests.end() ? nullptr : *found;
  requests.remove(request);
  return request;
}

bool flush(Peer& to) {
  bool moved = false;
  for (; !to.out.empty(); to.out.pop_front(), moved = true) {
    Packet& packet = to.out.front();
    iovec pieces[] = {{static_cast<Header*>(&packet), sizeof(Header)},
                      {packet.bytes.data(), packet.bytes.size()}};
    msghdr whole{};
    whole.msg_iov = pieces;
    whole.msg_iovlen = std::size(pieces);
    if (::sendmsg(to.socket.get(), &whole, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    if (packet.request != nullptr) complete(*packet.request, Status());
  }
  return moved;
}

// In parts, if it has to be, with the last of which the request ends.
void push(Peer& to, Header header, ConstByteSpan bytes = {}, Request* request = nullptr) {
  for (bool more = true; more; header.offset += kEagerBytes) {
    const ConstByteSpan left = bytes.subspan(header.offset);
    more = left.size() > kEagerBytes;
    const ConstByteSpan part = more ? left.first(kEagerBytes) : left;
    to.out.push_back({header, {part.begin(), part.end()}, more ? nullptr : request});
  }
  flush(to);
}

// Ends the requests of a group, or all, with `reason`, and drops what is here of it, or in part.
void end(Peer& peer, const Status& reason, std::optional<std::uint64_t> group = std::nullopt) {
  const auto end_one = [&](Request* request) {
    const bool ends = request != nullptr && (!group || request->key.group == *group);
    if (ends) complete(*request, reason);
    return ends;
  };
  for (Requests* list : {&peer.receives, &peer.announced, &peer.cleared}) list->remove_if(end_one);
  for (Packet& packet : peer.out) {
    if (end_one(packet.request)) packet.request = nullptr;
  }
  peer.unexpected.remove_if([&](const Packet& message) {
    const bool drops = group ? message.key.group == *group : !message.is_whole();
    if (drops) peer.unexpected_bytes -= message.bytes.size();
    return drops;
  });
}

class SocketPlane final : public DataPlane {
 public:
  SocketPlane(Rank self, std::vector<FileDescriptor> sockets) : self_(self) {
    for (FileDescriptor& socket : sockets) peers_.emplace_back().socket = std::move(socket);
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
    deliver(from, request, *found);
    from.unexpected_bytes -= found->bytes.size();
    from.unexpected.erase(found);
  }
  bool has_arrived(Rank peer, const MessageKey& key) const override {
    return std::ranges::count(peers_[peer].unexpected, key, &Packet::key) > 0;
  }
  std::optional<UnexpectedMessage> find_conflict(
      Rank peer, std::uint64_t group, std::uint32_t sequence,
      const OperationDescriptor& operation) const override {
    for (const Packet& message : peers_[peer].unexpected) {
      const OperationDescriptor& theirs = message.label.operation;
      const bool is_of_it = message.key.group == group && message.key.sequence == sequence;
      if (is_of_it && !(theirs == operation)) return UnexpectedMessage{peer, message.key, theirs};
    }
    return std::nullopt;
  }
  void cancel(Rank peer, std::uint64_t group, const Status& reason) override {
    peers_[peer].cancelled.insert(group);
    end(peers_[peer], reason, group);
  }
  void lose(Rank peer, const Status& reason) override {
    while (read(peer)) continue;
    end(peers_[peer], reason);
    peers_[peer].out.clear();
  }
  bool progress(UnexpectedQueue& unexpected) override {
    bool moved = false;
    for (std::int32_t r = 0; std::cmp_less(r, peers_.size()); ++r) {
      moved = flush(peers_[r]) || moved;
      while (peers_[r].unexpected_bytes < kUnexpectedBytesMax && read(r)) moved = true;
    }
    for (; !unexpected_.empty(); unexpected_.pop()) unexpected.push(unexpected_.front());
    return moved;
  }
  bool has_output(Rank peer) const override { return !peers_[peer].out.empty(); }

 private:
  bool read(Rank rank) {
    Peer& from = peers_[rank];
    std::byte datagram[sizeof(Header) + kEagerBytes];
    const auto got = ::recv(from.socket.get(), datagram, sizeof(datagram), MSG_DONTWAIT);
    if (got < static_cast<ssize_t>(sizeof(Header))) return false;
    Packet packet;
    std::memcpy(static_cast<Header*>(&packet), datagram, sizeof(Header));
    packet.bytes.assign(datagram + sizeof(Header), datagram + got);
    if (packet.kind == Header::clear) {
      Request* const request = take(from.announced, packet.key);
      if (request != nullptr) push(from, {Header::part, packet.key}, request->outgoing, request);
    } else if (packet.kind == Header::part) {
      // The first of its key was the first to be cleared.
      const auto found = std::ranges::find(from.cleared, packet.key, &Request::key);
      if (found == from.cleared.end()) return true;
      const ByteSpan place = (*found)->incoming.subspan(packet.offset);
      std::ranges::copy(packet.bytes, place.begin());
      if (place.size() == packet.bytes.size()) complete(*take(from.cleared, packet.key), Status());
    } else if (Request* const request = take(from.receives, packet.key)) {
      deliver(from, *request, packet);
    } else if (!from.cancelled.contains(packet.key.group)) {
      unexpected_.push({.from = rank, .key = packet.key, .operation = packet.label.operation});
      from.unexpected_bytes += packet.bytes.size();
      from.unexpected.push_back(std::move(packet));
    }
    return true;
  }
  void deliver(Peer& from, Request& request, const Packet& message) {
    if (!agree(request, message.label, self_)) return;
    if (!message.is_whole()) {
      from.cleared.push_back(&request);
      return push(from, {.kind = Header::clear, .key = message.key});
    }
    std::ranges::copy(message.bytes, request.incoming.begin());
    complete(request, Status());
  }

  const Rank self_;
  RankVector<Peer> peers_;
  UnexpectedQueue unexpected_;
};

}  // namespace

std::unique_ptr<DataPlane> make_socket_plane(Rank self, std::vector<FileDescriptor> sockets) {
  return std::make_unique<SocketPlane>(self, std::move(sockets));
}

}  // namespace stretto::transport
