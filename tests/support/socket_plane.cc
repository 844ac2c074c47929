// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/socket_plane.h"

#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <set>

namespace stretto::transport {
namespace {

constexpr std::uint64_t kUnexpectedMax = std::uint64_t{64} << 20;

struct Header {
  enum Kind : std::uint64_t { eager, announce, clear, data, credit };
  Kind kind = eager;
  std::uint64_t number = 0;  // Of an announced message; of a credit: all bytes taken so far.
  std::uint64_t offset = 0;  // Of this part of an announced message.
  MessageKey key = {};
  MessageLabel label = {};
};

// What the sockets, which keep the borders of what is sent, carry at a time.
struct Packet {
  Header header;
  std::byte bytes[kEagerBytes];
};

class SocketPlane final : public DataPlane {
 public:
  SocketPlane(Rank self, std::vector<FileDescriptor> sockets)
      : self_(self), peers_(sockets.size()), packet_(std::make_unique<Packet>()) {
    for (std::size_t r = 0; r < sockets.size(); ++r) peers_[r].socket = std::move(sockets[r]);
  }

  void send(Request& request) override {
    Peer& to = at(request.peer);
    const std::uint64_t bytes = request.outgoing.size();
    const bool is_eager = bytes <= kEagerBytes && to.sent + bytes - to.credit <= kUnexpectedMax;
    Header header{.key = request.key, .label = label_of(request)};
    if (is_eager) {
      to.sent += bytes;
      return push(to, header, request.outgoing, &request);
    }
    header.kind = Header::announce;
    header.number = ++to.announced;
    to.waiting[header.number] = &request;
    push(to, header);
  }

  void recv(Request& request) override {
    Peer& from = at(request.peer);
    const auto found = find(from, request.key);
    if (found == from.unexpected.end()) return from.receives.push_back(&request);
    const Message message = std::move(*found);
    from.unexpected.erase(found);
    deliver(from, request, message.header, message.bytes);
  }

  bool has_arrived(Rank peer, const MessageKey& key) const override {
    return find(peers_[static_cast<std::size_t>(peer)], key) !=
           peers_[static_cast<std::size_t>(peer)].unexpected.end();
  }

  std::optional<UnexpectedMessage> find_conflict(
      Rank peer, std::uint64_t group, std::uint32_t sequence,
      const OperationDescriptor& operation) const override {
    for (const auto& [header, bytes] : peers_[static_cast<std::size_t>(peer)].unexpected) {
      const bool concerned = header.key.group == group && header.key.sequence == sequence;
      if (!concerned || header.label.operation == operation) continue;
      return UnexpectedMessage{
          .from = peer, .key = header.key, .operation = header.label.operation};
    }
    return std::nullopt;
  }

  void cancel(Rank peer, std::uint64_t group, const Status& reason) override {
    Peer& other = at(peer);
    other.cancelled.insert(group);
    end(other, reason, [&](const MessageKey& key) { return key.group == group; });
    for (const Message& message : other.unexpected) {
      if (message.header.key.group == group) take(other, message.bytes.size());
    }
    other.unexpected.remove_if([&](const Message& m) { return m.header.key.group == group; });
  }

  void lose(Rank peer, const Status& reason) override {
    read_all(peer);
    end(at(peer), reason, [](const MessageKey&) { return true; });
    at(peer).out.clear();
    at(peer).unexpected.remove_if(
        [](const Message& message) { return message.header.kind == Header::announce; });
  }

  bool progress(UnexpectedQueue& unexpected) override {
    bool moved = false;
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      moved = flush(peers_[r]) || moved;
      moved = read_all(static_cast<int>(r)) || moved;
    }
    for (; !unexpected_.empty(); unexpected_.pop()) unexpected.push(unexpected_.front());
    return moved;
  }

  bool has_output(Rank peer) const override {
    return !peers_[static_cast<std::size_t>(peer)].out.empty();
  }

 private:
  struct Message {
    Header header;
    std::vector<std::byte> bytes;
  };
  struct Output {
    std::vector<std::byte> bytes;
    Request* request;  // Ends when this is in the socket; or null.
  };
  struct Peer {
    FileDescriptor socket;
    std::deque<Output> out;
    std::list<Message> unexpected;
    std::list<Request*> receives;
    std::map<std::uint64_t, Request*> waiting;  // Announced to the peer.
    std::map<std::uint64_t, Request*> cleared;  // Announced by the peer and expected.
    std::set<std::uint64_t> cancelled;
    std::uint64_t announced = 0, sent = 0, credit = 0, taken = 0, told = 0;
  };
  Peer& at(Rank rank) { return peers_[static_cast<std::size_t>(rank)]; }

  template <class OfPeer>
  static auto find(OfPeer& peer, const MessageKey& key) -> decltype(peer.unexpected.begin()) {
    return std::find_if(peer.unexpected.begin(), peer.unexpected.end(),
                        [&](const Message& message) { return message.header.key == key; });
  }

  static void push(Peer& to, const Header& header, ConstByteSpan bytes = {},
                   Request* request = nullptr) {
    Output& output = to.out.emplace_back(Output{{}, request});
    const ConstByteSpan first = std::as_bytes(std::span(&header, 1));
    output.bytes.assign(first.begin(), first.end());
    output.bytes.insert(output.bytes.end(), bytes.begin(), bytes.end());
    flush(to);
  }

  static bool flush(Peer& to) {
    bool moved = false;
    for (; !to.out.empty(); to.out.pop_front(), moved = true) {
      const Output& output = to.out.front();
      const ConstByteSpan bytes(output.bytes);
      if (::send(to.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        break;
      if (output.request != nullptr) complete(*output.request, Status());
    }
    return moved;
  }

  bool read_all(Rank rank) {
    constexpr auto kHeaderBytes = static_cast<ssize_t>(offsetof(Packet, bytes));
    for (bool moved = false;; moved = true) {
      const auto got = ::recv(at(rank).socket.get(), packet_.get(), sizeof(Packet), MSG_DONTWAIT);
      if (got < kHeaderBytes) return moved;
      arrive(rank, packet_->header,
             std::span(packet_->bytes).first(static_cast<std::size_t>(got - kHeaderBytes)));
    }
  }

  void arrive(Rank rank, const Header& header, ConstByteSpan bytes) {
    Peer& from = at(rank);
    if (header.kind == Header::credit) {
      from.credit = header.number;
    } else if (header.kind == Header::clear) {
      send_parts(from, header);
    } else if (header.kind == Header::data) {
      const auto found = from.cleared.find(header.number);
      if (found == from.cleared.end()) return;
      const ByteSpan place = found->second->incoming.subspan(header.offset);
      std::copy(bytes.begin(), bytes.end(), place.begin());
      if (place.size() > bytes.size()) return;
      complete(*found->second, Status());
      from.cleared.erase(found);
    } else if (from.cancelled.contains(header.key.group)) {
      take(from, bytes.size());
    } else {
      const auto found =
          std::find_if(from.receives.begin(), from.receives.end(),
                       [&](const Request* request) { return request->key == header.key; });
      if (found != from.receives.end()) {
        Request* request = *found;
        from.receives.erase(found);
        return deliver(from, *request, header, bytes);
      }
      from.unexpected.push_back({header, {bytes.begin(), bytes.end()}});
      unexpected_.push({.from = rank, .key = header.key, .operation = header.label.operation});
    }
  }

  static void send_parts(Peer& to, const Header& clear) {
    const auto found = to.waiting.extract(clear.number);
    if (found.empty()) return;
    Request& request = *found.mapped();
    ConstByteSpan rest = request.outgoing;
    Header header{.kind = Header::data, .number = clear.number};
    do {
      const ConstByteSpan part = rest.first(std::min(rest.size(), kEagerBytes));
      rest = rest.subspan(part.size());
      push(to, header, part, rest.empty() ? &request : nullptr);
      header.offset += part.size();
    } while (!rest.empty());
  }

  // A message has met its receive.
  void deliver(Peer& from, Request& request, const Header& header, ConstByteSpan bytes) {
    take(from, bytes.size());
    if (!agree(request, header.label, self_)) return;
    if (header.kind == Header::announce) {
      from.cleared[header.number] = &request;
      return push(from, {.kind = Header::clear, .number = header.number});
    }
    std::copy(bytes.begin(), bytes.end(), request.incoming.begin());
    complete(request, Status());
  }

  // Lets the peer know, now and then, that it may send more.
  static void take(Peer& from, std::size_t bytes) {
    from.taken += bytes;
    if (from.taken - from.told < kUnexpectedMax / 8) return;
    from.told = from.taken;
    push(from, {.kind = Header::credit, .number = from.taken});
  }

  template <class Concerned>
  static void end(Peer& peer, const Status& reason, const Concerned& concerned) {
    const auto end_one = [&](Request* request) {
      if (request == nullptr || !concerned(request->key)) return false;
      complete(*request, reason);
      return true;
    };
    std::erase_if(peer.receives, end_one);
    std::erase_if(peer.waiting, [&](const auto& item) { return end_one(item.second); });
    std::erase_if(peer.cleared, [&](const auto& item) { return end_one(item.second); });
    for (Output& output : peer.out) {
      if (end_one(output.request)) output.request = nullptr;
    }
  }

  Rank self_;
  std::vector<Peer> peers_;
  std::unique_ptr<Packet> packet_;
  UnexpectedQueue unexpected_;
};

}  // namespace

std::unique_ptr<DataPlane> make_socket_plane(Rank self, std::vector<FileDescriptor> sockets) {
  return std::make_unique<SocketPlane>(self, std::move(sockets));
}

}  // namespace stretto::transport
