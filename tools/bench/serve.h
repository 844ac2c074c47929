// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "tools/bench/measure.h"

// How a parent has many drivers measure in turns: each has a Board, to which the parent writes one
// request at a time. The standard library and POSIX only.
namespace stretto::bench {

// What a driver says to a request, besides the times.
struct Reply {
  Answer answer = Answer::ok;
  Summary summary = {};
  std::string algorithm = {};
  std::string text = {};  // What is wrong.
};

namespace detail {

template <std::size_t N>
void put(char (&field)[N], const std::string& text) {
  const std::size_t count = std::min(text.size(), N - 1);
  std::memcpy(field, text.data(), count);
  std::memset(field + count, 0, N - count);
}

template <std::size_t N>
std::string get(const char (&field)[N]) {
  return {field, ::strnlen(field, N)};
}

inline void nap() {
  const timespec pause{0, 200'000};
  ::nanosleep(&pause, nullptr);
}

}  // namespace detail

// The parent's side. One request at a time: the next one only when all ranks have answered.
inline std::uint64_t post(Board& board, const Request& request) {
  BoardHead& head = board.head();
  head.bytes = request.bytes;
  head.seconds = request.seconds;
  head.in_place = request.in_place;
  head.check = request.check;
  head.pin = request.pin;
  detail::put(head.operation, request.operation);
  detail::put(head.dtype, request.dtype);
  detail::put(head.op, request.op);
  detail::put(head.buffers, request.buffers);
  detail::put(head.algorithm, request.algorithm);
  const std::uint64_t sequence = head.request.load() + 1;
  head.request.store(sequence, std::memory_order_release);
  return sequence;
}

inline bool all_answered(const Board& board, std::uint64_t sequence) {
  for (int rank = 0; rank < board.size(); ++rank) {
    if (board.page(rank).answered.load(std::memory_order_acquire) != sequence) return false;
  }
  return true;
}

// The worst answer of any rank, with its text, and rank 0's times.
inline Reply reply_of(const Board& board) {
  const BoardHead& head = board.head();
  Reply reply{.answer = Answer::ok,
              .summary = {.p50_us = head.p50_us,
                          .p99_us = head.p99_us,
                          .max_us = head.max_us,
                          .min_us = head.min_us,
                          .samples = head.samples,
                          .batched = head.batched != 0,
                          .latency_before_ns = head.latency_before_ns,
                          .latency_after_ns = head.latency_after_ns},
              .algorithm = detail::get(board.page(0).algorithm),
              .text = detail::get(board.page(0).text)};
  for (int rank = 0; rank < board.size(); ++rank) {
    const auto answer = static_cast<Answer>(board.page(rank).answer);
    if (answer == Answer::ok || reply.answer != Answer::ok) continue;
    reply.answer = answer;
    reply.text = "rank " + std::to_string(rank) + ": " + detail::get(board.page(rank).text);
  }
  return reply;
}

// A driver's side, on each of its ranks: waits for requests with `idle()`, again and again until
// there is one, and answers with `handle(request)`, a Reply. `idle` sleeps, so that an idle system
// costs the one under measurement nothing. Returns when asked to quit. An exception of `handle` is
// answered, then thrown on: the other ranks may still wait for this one, and their barriers throw
// then.
template <class Handle, class Idle>
void serve(Board& board, Handle&& handle, Idle&& idle) {
  BoardHead& head = board.head();
  RankPage& page = board.page(board.rank());
  std::uint64_t done = 0;
  while (true) {
    std::uint64_t sequence = head.request.load(std::memory_order_acquire);
    for (; sequence == done; sequence = head.request.load(std::memory_order_acquire)) idle();
    const Request request{.operation = detail::get(head.operation),
                          .dtype = detail::get(head.dtype),
                          .op = detail::get(head.op),
                          .buffers = detail::get(head.buffers),
                          .algorithm = detail::get(head.algorithm),
                          .bytes = head.bytes,
                          .seconds = head.seconds,
                          .in_place = head.in_place != 0,
                          .check = head.check != 0,
                          .pin = head.pin != 0};
    const auto answer = [&](const Reply& reply) {
      if (board.rank() == 0) {
        const Summary& summary = reply.summary;
        head.p50_us = summary.p50_us;
        head.p99_us = summary.p99_us;
        head.max_us = summary.max_us;
        head.min_us = summary.min_us;
        head.samples = summary.samples;
        head.batched = summary.batched;
        head.latency_before_ns = summary.latency_before_ns;
        head.latency_after_ns = summary.latency_after_ns;
      }
      page.answer = static_cast<std::uint32_t>(reply.answer);
      detail::put(page.text, reply.text);
      detail::put(page.algorithm, reply.algorithm);
      page.answered.store(sequence, std::memory_order_release);
      done = sequence;
    };
    if (request.operation == "quit") {
      answer({});
      return;
    }
    try {
      answer(handle(request));
    } catch (const std::exception& failure) {
      board.give_up();
      answer({.answer = Answer::failed, .summary = {}, .algorithm = {}, .text = failure.what()});
      throw;
    }
  }
}

// The same for a driver that is alone, or nearly: it looks for requests every 200 us.
template <class Handle>
void serve(Board& board, Handle&& handle) {
  serve(board, handle, detail::nap);
}

}  // namespace stretto::bench
