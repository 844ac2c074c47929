// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/symmetric_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/arguments.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/execution/shares.h"

namespace stretto {
namespace {

using communicator::Caller;
using ByteVector = std::vector<std::byte>;

// What a rank tells the others about its memory.
struct Announcement {
  std::uint64_t bytes = 0;
  transport::RemoteAddress address;
  std::uint64_t is_there = 0;
};

// A put, followed by its bytes, or a get, in a message to the rank that has the memory.
struct Request {
  std::uint64_t is_put = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
};

struct Get {
  ByteSpan to;
  Rank from = 0;
};

void copy(ConstByteSpan from, std::byte* to) {
  if (!from.empty()) std::memmove(to, from.data(), from.size());
}

void append(ByteVector& message, ConstByteSpan bytes) {
  message.insert(message.end(), bytes.begin(), bytes.end());
}

}  // namespace

struct SymmetricMemory::State {
  State(Communicator& communicator, std::size_t bytes, const std::optional<Duration>& timeout);

  Caller caller(std::string_view operation) const {
    return {.rank = comm->rank(), .operation = operation};
  }
  // The rank's number in the job, by which failures name it.
  Rank in_job(Rank rank) const { return comm->backend_->job_rank(rank); }
  Status failure(StatusCode code, Rank culprit, std::string_view what) const {
    return {code, fmt::format("rank {}: {}", in_job(comm->rank()).value(), what), in_job(culprit)};
  }
  ByteSpan place(std::string_view operation, Rank rank, std::size_t offset_bytes,
                 std::size_t bytes) const;
  void ask(Rank rank, const Request& request, ConstByteSpan payload);
  void map_others(std::span<const Announcement> announcements,
                  const std::optional<Duration>& timeout);
  RankVector<ByteVector> exchange(const RankVector<ByteVector>& outgoing,
                                  const RankVector<std::uint64_t>& lengths,
                                  const std::optional<Duration>& timeout) const;
  void exchange_requests(const std::optional<Duration>& timeout);
  ByteVector answer(Rank from, ConstByteSpan asked) const;
  ByteVector room_for(std::uint64_t bytes, std::string_view whose, Rank rank) const;
  // Aborts the communicator, as the other ranks wait for this one, and throws.
  [[noreturn]] void fail(const Status& status) const;

  Communicator* comm;
  Memory memory;
  RankVector<std::shared_ptr<std::byte>> mapped;  // Null for this rank and those out of reach.
  bool all_reach_all = false;
  // The puts and gets of this epoch that have to travel by messages.
  RankVector<ByteVector> requests;  // To each rank.
  std::vector<Get> gets;            // In the order of the requests to each rank.
};

SymmetricMemory::State::State(Communicator& communicator, std::size_t bytes,
                              const std::optional<Duration>& timeout)
    : comm(&communicator), mapped(comm->size()), requests(comm->size()) {
  Status lacks;
  try {
    memory = comm->allocate_bytes(bytes);
  } catch (const Error& error) {
    lacks = error.status();
  }
  const Announcement own{.bytes = bytes,
                         .address = comm->backend_->locate(memory.bytes()),
                         .is_there = lacks.ok() ? 1u : 0u};
  const auto announcements = communicator::all_gather_value(*comm, own, timeout);
  lacks.or_throw();
  for (std::size_t r = 0; r < announcements.size(); ++r) {
    if (announcements[r].bytes != bytes) {
      refuse(caller("symmetric memory"), fmt::format("rank {} names {} bytes, and this rank {}", r,
                                                     announcements[r].bytes, bytes));
    }
    if (announcements[r].is_there == 0) {
      const Rank lacks_room = static_cast<std::int32_t>(r);
      failure(StatusCode::out_of_memory, lacks_room,
              fmt::format("symmetric memory: rank {} has no room for {} bytes",
                          in_job(lacks_room).value(), bytes))
          .or_throw();
    }
  }
  map_others(announcements, timeout);
  const std::uint8_t reaches_all = std::ranges::count(mapped, nullptr) == 1;
  // After this all_gather all ranks have mapped what they reach, so that a rank may free its
  // memory.
  all_reach_all =
      std::ranges::min(communicator::all_gather_value(*comm, reaches_all, timeout)) != 0;
}

void SymmetricMemory::State::map_others(std::span<const Announcement> announcements,
                                        const std::optional<Duration>& timeout) {
  for (std::size_t r = 0; r < announcements.size(); ++r) {
    const Rank rank = static_cast<std::int32_t>(r);
    if (rank == comm->rank()) continue;
    mapped[r] = comm->backend_->map(rank, announcements[r].address, memory.bytes().size(), timeout);
  }
}

// The address of these bytes of `rank` in this process; empty if they can only be reached by
// messages.
ByteSpan SymmetricMemory::State::place(std::string_view operation, Rank rank,
                                       std::size_t offset_bytes, std::size_t bytes) const {
  const std::size_t whole = memory.bytes().size();
  check_rank(caller(operation), rank, comm->size());
  if (offset_bytes > whole || bytes > whole - offset_bytes) {
    refuse(caller(operation), fmt::format("{} bytes from byte {} on do not lie in the {} bytes of "
                                          "rank {}",
                                          bytes, offset_bytes, whole, rank.value()));
  }
  std::byte* const begin = rank == comm->rank() ? memory.bytes().data() : mapped[rank].get();
  return begin == nullptr ? ByteSpan() : ByteSpan(begin + offset_bytes, bytes);
}

void SymmetricMemory::State::ask(Rank rank, const Request& request, ConstByteSpan payload) {
  append(requests[rank], std::as_bytes(std::span(&request, 1)));
  append(requests[rank], payload);
}

// Memory for bytes that come from `rank` or go there.
ByteVector SymmetricMemory::State::room_for(std::uint64_t bytes, std::string_view whose,
                                            Rank rank) const {
  try {
    return ByteVector(bytes);
  } catch (const std::exception&) {
    fail(failure(StatusCode::out_of_memory, comm->rank(),
                 fmt::format("fence: there is no room for {} bytes {} rank {}", bytes, whose,
                             in_job(rank).value())));
  }
}

// Sends a message to each rank and receives one from each; `lengths` are those of the received
// ones.
RankVector<ByteVector> SymmetricMemory::State::exchange(
    const RankVector<ByteVector>& outgoing, const RankVector<std::uint64_t>& lengths,
    const std::optional<Duration>& timeout) const {
  RankVector<ByteVector> messages;
  std::vector<ConstView> sent;
  std::vector<View> received;
  for (std::size_t r = 0; r < outgoing.size(); ++r) {
    messages.push_back(room_for(lengths[r], "of", static_cast<std::int32_t>(r)));
    sent.push_back(as_input(outgoing[r]));
    received.push_back(as_output(messages.back()));
  }
  comm->all_to_all_list(sent, received, {.timeout = timeout}).wait();
  return messages;
}

// All ranks exchange the lengths of their requests, then the requests, and then the replies to
// gets. The barrier at the end is for a rank that maps the memory to which another rank has put.
void SymmetricMemory::State::exchange_requests(const std::optional<Duration>& timeout) {
  RankVector<std::uint64_t> outgoing;
  for (const ByteVector& request : requests) outgoing.push_back(request.size());
  RankVector<std::uint64_t> incoming(comm->size());
  comm->all_to_all(outgoing, incoming, {.timeout = timeout}).wait();
  RankVector<ByteVector> replies;
  for (const ByteVector& asked : exchange(requests, incoming, timeout)) {
    replies.push_back(answer(static_cast<std::int32_t>(replies.size()), asked));
  }
  RankVector<std::uint64_t> wanted(comm->size());
  for (const Get& get : gets) wanted[get.from] += get.to.size();
  const auto got = exchange(replies, wanted, timeout);
  RankVector<std::size_t> taken(comm->size());
  for (const Get& get : gets) {
    std::size_t& begin = taken[get.from];
    copy(std::span(got[get.from]).subspan(begin, get.to.size()), get.to.data());
    begin += get.to.size();
  }
  comm->barrier({.timeout = timeout}).wait();
}

// Carries out the requests of `from`, and returns the bytes that it gets.
ByteVector SymmetricMemory::State::answer(Rank from, ConstByteSpan asked) const {
  const ByteSpan own = memory.bytes();
  std::vector<ConstByteSpan> wanted;
  std::uint64_t reply_bytes = 0;
  const auto check = [&](bool makes_sense) {
    if (makes_sense) return;
    fail(failure(StatusCode::protocol, from,
                 fmt::format("fence: what rank {} has put, or wants to get, makes no sense",
                             in_job(from).value())));
  };
  while (!asked.empty()) {
    Request request;
    check(asked.size() >= sizeof(request));
    copy(asked.first(sizeof(request)), reinterpret_cast<std::byte*>(&request));
    asked = asked.subspan(sizeof(request));
    check(request.offset_bytes <= own.size() && request.bytes <= own.size() - request.offset_bytes);
    const ByteSpan place = own.subspan(request.offset_bytes, request.bytes);
    if (request.is_put != 0) {
      check(place.size() <= asked.size());
      copy(asked.first(place.size()), place.data());
      asked = asked.subspan(place.size());
    } else {
      wanted.push_back(place);
      reply_bytes += place.size();
      check(reply_bytes >= place.size());  // No overflow, or the reply would be too short.
    }
  }
  ByteVector reply = room_for(reply_bytes, "for", from);
  std::byte* end = reply.data();
  for (const ConstByteSpan place : wanted) {
    copy(place, end);
    end += place.size();
  }
  return reply;
}

void SymmetricMemory::State::fail(const Status& status) const {
  comm->abort(std::string(status.message()));
  status.or_throw();
  throw InternalError(status);
}

SymmetricMemory::SymmetricMemory(Communicator& comm, std::size_t bytes,
                                 const std::optional<Duration>& timeout)
    : state_(std::make_unique<State>(comm, bytes, timeout)) {}
SymmetricMemory::SymmetricMemory(SymmetricMemory&&) noexcept = default;
SymmetricMemory& SymmetricMemory::operator=(SymmetricMemory&&) noexcept = default;
SymmetricMemory::~SymmetricMemory() = default;

std::span<std::byte> SymmetricMemory::span() const { return state_->memory.bytes(); }

std::span<std::byte> SymmetricMemory::span(Rank rank) const {
  return state_->place("span", rank, 0, state_->memory.bytes().size());
}

void SymmetricMemory::put(std::span<const std::byte> from, Rank to, std::size_t offset_bytes) {
  const ByteSpan place = state_->place("put", to, offset_bytes, from.size());
  if (from.empty()) return;
  if (!place.empty()) return copy(from, place.data());
  state_->ask(to, {.is_put = 1, .offset_bytes = offset_bytes, .bytes = from.size()}, from);
}

void SymmetricMemory::get(std::span<std::byte> to, Rank from, std::size_t offset_bytes) {
  const ByteSpan place = state_->place("get", from, offset_bytes, to.size());
  if (to.empty()) return;
  if (!place.empty()) return copy(place, to.data());
  state_->ask(from, {.offset_bytes = offset_bytes, .bytes = to.size()}, {});
  state_->gets.push_back({.to = to, .from = from});
}

void SymmetricMemory::fence(const std::optional<Duration>& timeout) {
  if (state_->all_reach_all) {
    state_->comm->barrier({.timeout = timeout}).wait();
    return;
  }
  try {
    state_->exchange_requests(timeout);
  } catch (const std::bad_alloc&) {
    state_->fail(state_->failure(StatusCode::out_of_memory, state_->comm->rank(),
                                 "fence: there is no memory left"));
  }
  std::ranges::fill(state_->requests, ByteVector());
  state_->gets.clear();
}

}  // namespace stretto
