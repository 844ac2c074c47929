// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a program is told when it passes wrong arguments, word for word where it matters: who, what,
// which entry, and what would be right. Nothing has been sent by then, so the group goes on.

#include <gtest/gtest.h>

#include <atomic>
#include <complex>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "stretto/communicator/byte_exchange.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

// Buffers of the types that the calls want.
struct Buffers {
  std::vector<float> f = std::vector<float>(10);
  std::vector<float> g = std::vector<float>(10);
  std::vector<int> i = std::vector<int>(10);
  std::vector<std::complex<float>> c = std::vector<std::complex<float>>(10);
  std::vector<Float8E4M3> f8 = std::vector<Float8E4M3>(10);
};

// A call on both of two ranks, and what it throws on rank 1.
struct Wrong {
  std::function<void(Communicator&, Buffers&)> call;
  std::string text;
};

constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max() / 20;

std::vector<Wrong> wrong_reductions() {
  return {
      {[](auto& c, auto& b) { c.all_reduce(b.c, {.op = ReduceOp::min}).wait(); },
       "rank 1: all_reduce: min has no meaning for c64; possible are: "},
      {[](auto& c, auto& b) { c.reduce(b.f, {.op = ReduceOp::bit_and}).wait(); },
       "rank 1: reduce: bit_and has no meaning for f32; possible are: "},
      {[](auto& c, auto& b) { c.reduce_scatter(b.f8, as_output(b.f8).slice(5, 5)).wait(); },
       "rank 1: reduce_scatter: sum has no meaning for f8_e4m3; possible are: none"},
      {[](auto& c, auto& b) { c.all_reduce(b.i, {.factor = 2}).wait(); },
       "rank 1: all_reduce: a factor needs a floating point dtype, not i32; possible are: f16, "},
      {[](auto& c, auto& b) { c.all_reduce(b.i, b.f).wait(); },
       "rank 1: all_reduce: the input is i32, the output f32"},
      {[](auto& c, auto& b) { c.all_reduce(b.f, std::span(b.g).first(3)).wait(); },
       "rank 1: all_reduce: the output has 3 elements; it must have 10"},
      {[](auto& c, auto& b) {
         c.all_reduce(std::span(b.f).first(5), std::span(b.f).subspan(2, 5)).wait();
       },
       "rank 1: all_reduce: input and output overlap without being in place"},
      {[](auto& c, auto&) { c.all_reduce(View(nullptr, 3, DType::f32)).wait(); },
       "rank 1: all_reduce: a buffer has elements, but its address is null"},
      {[](auto& c, auto& b) { c.all_reduce(b.f, {.algorithm = "quick"}).wait(); },
       "rank 1: there is no algorithm \"quick\" for all_reduce here; there are: ring, direct, "},
  };
}

std::vector<Wrong> wrong_lists() {
  return {
      {[](auto& c, auto& b) {
         const std::array list = {as_output(b.f), View(nullptr, 10, DType::f32)};
         c.all_reduce_coalesced(list).wait();
       },
       "rank 1: all_reduce: a buffer has elements, but its address is null"},
      {[](auto& c, auto& b) {
         const std::array list = {as_output(b.f), as_output(b.i)};
         c.all_reduce_coalesced(list, {.factor = 0.5}).wait();
       },
       "rank 1: all_reduce_coalesced, entry 1: a factor needs a floating point dtype, not i32"},
      {[](auto& c, auto& b) {
         const std::array<ConstView, 2> inputs = {as_input(b.f), as_input(b.i)};
         const std::array outputs = {as_output(b.g).slice(0, 5), as_output(b.i).slice(0, 4)};
         c.reduce_scatter_coalesced(inputs, outputs).wait();
       },
       "rank 1: reduce_scatter_coalesced, entry 1: the input has 10 elements; it must have 8"},
      {[](auto& c, auto& b) {
         const std::array<ConstView, 2> inputs = {as_input(b.f), as_input(b.i)};
         c.reduce_scatter_list(inputs, as_output(b.g)).wait();
       },
       "rank 1: reduce_scatter_list, entry 1: the input is i32, the output f32"},
      {[](auto& c, auto& b) {
         const std::array<ConstView, 2> inputs = {as_input(b.f), as_input(b.f)};
         c.reduce_scatter_list(inputs, as_output(b.g).slice(0, 3)).wait();
       },
       "rank 1: reduce_scatter_list: the output has 3 elements; it must have 10"},
      {[](auto& c, auto& b) {
         const std::array<ConstView, 2> inputs = {as_input(b.f), as_input(b.i)};
         const std::array outputs = {as_output(b.g), as_output(b.g)};
         c.all_to_all_list(inputs, outputs).wait();
       },
       "rank 1: all_to_all_list, entry 1: the input is i32, the output f32"},
      {[](auto& c, auto& b) {
         const std::array<ConstView, 2> inputs = {as_input(b.f), as_input(b.f)};
         const std::array outputs = {as_output(b.g), as_output(b.i)};
         c.all_to_all_list(inputs, outputs).wait();
       },
       "rank 1: all_to_all_list, entry 1: the input is f32, the output i32"},
  };
}

std::vector<Wrong> wrong_moves() {
  return {
      {[](auto& c, auto& b) { c.broadcast(b.f, {.root = 7}).wait(); },
       "rank 1: broadcast: root 7 is not one of 2 ranks"},
      {[](auto& c, auto& b) {
         c.all_gather(b.f, b.g, {.counts = {kHuge, kHuge}}).wait();
       },
       "rank 1: all_gather: the counts are too large to be true"},
      {[](auto& c, auto& b) {
         c.all_gather(b.f, b.g, {.counts = {1, 2, 3}}).wait();
       },
       "rank 1: all_gather: there are 3 counts for 2 ranks"},
      {[](auto& c, auto& b) {
         const std::array outputs = {as_output(b.g), as_output(b.g), as_output(b.g)};
         c.all_gather_list(as_input(b.f), outputs).wait();
       },
       "rank 1: all_gather_list: the list has 3 elements; it must have 2"},
      {[](auto& c, auto& b) {
         c.gather(b.f, b.g, {.root = 1, .counts = {5, 5}}).wait();
       },
       "rank 1: gather: the input has 10 elements; it must have 5"},
      {[](auto& c, auto& b) {
         c.scatter(b.f, std::span(b.g).first(3), {.counts = {5, 5}}).wait();
       },
       "rank 1: scatter: the output has 3 elements; it must have 5"},
      {[](auto& c, auto& b) {
         c.all_to_all(std::span(b.f).first(5), std::span(b.g).first(5)).wait();
       },
       "rank 1: all_to_all: the input has 5 elements, which cannot be divided among 2 ranks"},
      {[](auto& c, auto& b) {
         c.all_to_all(b.f, b.g, {.send_counts = {4, 6}}).wait();
       },
       "rank 1: all_to_all: either both lists of counts are given, or none"},
      {[](auto& c, auto& b) {
         // This rank's own share is 4 on the way out and 6 on the way in, or the other way round.
         c.all_to_all(b.f, b.g, {.send_counts = {6, 4}, .recv_counts = {4, 6}}).wait();
       },
       "rank 1: all_to_all: the share sent to oneself has 4 elements; it must have 6"},
      {[](auto& c, auto&) { (void)c.template allocate<double>(kHuge * 10); },
       "rank 1: allocate: too many elements: "},
      {[](auto& c, auto&) { (void)c.describe_link(5); },
       "rank 1: describe_link: rank 5 is not one of 2 ranks"},
  };
}

std::vector<Wrong> wrong_messages() {
  return {
      {[](auto& c, auto& b) { c.send(b.f, {.to = c.rank()}).wait(); },
       "rank 1: send: rank 1 is not one of the other 1 ranks"},
      {[](auto& c, auto& b) { c.recv(b.f, {.from = 9}).wait(); },
       "rank 1: recv: rank 9 is not one of the other 1 ranks"},
      {[](auto& c, auto& b) { c.send(b.f, {.to = 1 - c.rank().value(), .tag = -4}).wait(); },
       "rank 1: send: tag -4 is negative"},
      {[](auto& c, auto&) { c.recv(View(nullptr, 3, DType::f32), {.from = kAnyRank}).wait(); },
       "rank 1: recv: a buffer has elements, but its address is null"},
      {[](auto& c, auto& b) {
         const std::array batch = {Transfer::send(b.f, 1 - c.rank().value()),
                                   Transfer::recv(b.g, 5)};
         c.batch_send_recv(batch).wait();
       },
       "rank 1: batch_send_recv, entry 1: rank 5 is not one of the other 1 ranks"},
      {[](auto& c, auto&) { (void)c.new_group({}); },
       "rank 1: new_group: the list of ranks is empty"},
      {[](auto& c, auto&) {
         (void)c.new_group({0, 9});
       },
       "rank 1: new_group: rank 9 is not one of 2 ranks"},
      {[](auto& c, auto&) {
         (void)c.new_group({0, 0});
       },
       "rank 1: new_group: rank 0 is listed twice"},
      {[](auto& c, auto&) { (void)c.new_group({0}, {.timeout = -milliseconds(1500)}); },
       "rank 1: timeout: -1.5 s is negative; without one, the communicator's holds"},
      {[](auto& c, auto&) { (void)c.split({.color = 0, .timeout = -milliseconds(1500)}); },
       "rank 1: timeout: -1.5 s is negative; without one, the communicator's holds"},
      {[](auto& c, auto&) { (void)gather_bytes(c, {}, 3); },
       "rank 1: gather_bytes: root 3 is not one of 2 ranks"},
      {[](auto& c, auto&) { (void)all_gather_bytes(c, ByteVector(8), {.limit_bytes = 7}); },
       "rank 1: all_gather_bytes: rank 0 passes 8 bytes; the limit is 7"},
  };
}

class WrongArguments : public OnBoth {
 protected:
  static void expect_told(const std::vector<Wrong>& table) {
    on_all(make(2), [&](Communicator& comm) {
      Buffers buffers;
      for (const Wrong& wrong : table) {
        const std::string text = error_of<InvalidArgument>([&] { wrong.call(comm, buffers); });
        if (comm.rank() == 1) expect_contains(text, wrong.text);
      }
      comm.barrier().wait();
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, WrongArguments, OnBoth::both(), OnBoth::name);

TEST_P(WrongArguments, OfReductions) { expect_told(wrong_reductions()); }
TEST_P(WrongArguments, OfLists) { expect_told(wrong_lists()); }
TEST_P(WrongArguments, OfMoves) { expect_told(wrong_moves()); }
TEST_P(WrongArguments, OfMessagesGroupsAndBytes) { expect_told(wrong_messages()); }

TEST(ErrorTexts, AloneThereIsNobodyToReceiveFrom) {
  auto ranks = make_thread_ranks({.size = 1});
  std::vector<float> data(3);
  const auto receive = [&] { ranks[0]->recv(data, {.from = kAnyRank}).wait(); };
  EXPECT_EQ(error_of<InvalidArgument>(receive), "rank 0: recv: there is no other rank");
}

TEST(ErrorTexts, MessagesThatDoNotFitNameTheirTag) {
  auto ranks = make_thread_ranks({.size = 2, .timeout = std::chrono::seconds(20)});
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> five(5);
    std::vector<double> doubles(5);
    const std::string text = error_of<Mismatch>([&] {
      if (comm.rank() == 0) comm.send(five, {.to = 1, .tag = 77}).wait();
      if (comm.rank() == 1) comm.recv(doubles, {.from = 0, .tag = 77}).wait();
      comm.barrier().wait();
    });
    expect_contains(text, "rank 0 called send/recv(f32 [5]) with tag 77");
    expect_contains(text, "First difference: dtype");
  });
}

TEST(ErrorTexts, ListsOfANewGroupThatDifferAreBothShown) {
  auto ranks = make_thread_ranks({.size = 3, .timeout = std::chrono::seconds(20)});
  on_all(ranks, [](Communicator& comm) {
    const bool odd = comm.rank() == 2;
    const std::string text = error_of<Mismatch>([&] {
      (void)comm.new_group(odd ? std::vector<Rank>{0, 2} : std::vector<Rank>{1, 0});
    });
    expect_contains(text, odd ? "new_group: rank 0 listed the ranks 1, 0, rank 2 listed 0, 2"
                              : "new_group: rank 2 listed the ranks 0, 2, rank ");
    comm.barrier().wait();
  });
}

class WhoIsLate : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, WhoIsLate, OnBoth::both(), OnBoth::name);

// A rank that was asked a moment ago may just not have looked yet.
TEST_P(WhoIsLate, AShortSilenceIsNotTakenForDeath) {
  auto ranks = make(2);
  std::atomic<bool> failed{false};
  on_all(ranks, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!failed) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    std::vector<float> data(10);
    const std::string text =
        error_of<Timeout>([&] { comm.all_reduce(data, {.timeout = milliseconds(40)}).wait(); });
    failed = true;
    expect_contains(text, "timed out waiting for rank 1");
    expect_contains(text, " ms; 0 of 1 others have arrived");
    expect_lacks(text, "which does not answer");
  });
}

TEST_P(WhoIsLate, SaysWhatItDoesAndOthersHowLongTheyHaveWaited) {
  auto ranks = make(3);
  std::atomic<int> failed{0};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(12);
    comm.all_reduce(data).wait();
    if (comm.rank() == 2) {
      comm.note("loading data");
      while (failed < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    const Status status =
        failure_of<Timeout>([&] { comm.all_reduce(data, {.timeout = milliseconds(2400)}).wait(); });
    ++failed;
    EXPECT_EQ(status.rank(), Rank(2));
    for (const char* text :
         {"all_reduce(sum f32 [12]) #2", "timed out waiting for rank 2 (",
          "), which ended all_reduce(sum f32 [12]) #1", "in its own code: loading data",
          "; 1 of 2 others has arrived", "; waited 2."}) {
      expect_contains(status.message(), text);
    }
    expect_lacks(status.message(), "waiting for rank 0");
    expect_lacks(status.message(), "waiting for rank 1");
  });
}

class NamedGroups : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, NamedGroups, OnBoth::both(), OnBoth::name);

TEST_P(NamedGroups, AreNamedWhereOneIsLateAndWhereItIs) {
  auto ranks = make(2);
  std::atomic<bool> failed{false};
  on_all(ranks, [&](Communicator& comm) {
    auto plain = comm.new_group({0, 1});
    auto first = comm.new_group({0, 1}, {.name = "dp"});
    auto second = comm.split({.color = 0, .name = "pp\n\x01" + std::string(100, 'x')});
    std::vector<float> data(12);
    const std::string shown = "group \"pp ?" + std::string(60, 'x') + "\"";
    if (comm.rank() == 1) {
      Work waiting = second->all_reduce(data);
      while (!failed) std::this_thread::sleep_for(milliseconds(1));
      expect_contains(error_of<Aborted>([&] { second->abort("enough"), waiting.wait(); }),
                      shown + ": rank 1 aborted: enough");
      return;
    }
    const AllReduceOptions briefly{.timeout = milliseconds(2400)};
    std::vector<float> more(12);
    Work in_first = first->all_reduce(data, briefly);
    Work in_plain = plain->all_reduce(more, briefly);
    const std::string is_in = "is in all_reduce(sum f32 [12]) #1 of " + shown;
    const std::string late = error_of<Timeout>([&] { in_first.wait(); });
    expect_contains(late, "all_reduce(sum f32 [12]) #1 of group \"dp\" on rank 0: timed out");
    expect_contains(late, is_in);
    const std::string late_in_plain = error_of<Timeout>([&] { in_plain.wait(); });
    expect_contains(late_in_plain, "all_reduce(sum f32 [12]) #1 on rank 0: timed out");
    expect_contains(late_in_plain, is_in);
    failed = true;
    expect_contains(error_of<Aborted>([&] { second->recv(data, {.from = 1}).wait(); }),
                    shown + ": rank 1 abandoned the group: rank 1 aborted: enough");
  });
}

TEST_P(NamedGroups, AreNamedAfterALossAndWhereRanksDisagree) {
  auto ranks = make(3);
  on_all(ranks, [&](Communicator& comm) {
    auto torn = comm.new_group({0, 1, 2}, {.name = fmt::format("mine, {}", comm.rank().value())});
    auto left = comm.new_group({0, 1, 2}, {.name = "left"});
    const std::string own = fmt::format("group \"mine, {}\"", comm.rank().value());
    std::vector<float> alike(4), data(comm.rank() == 1 ? 5 : 4);
    const std::string text = error_of<Mismatch>([&] { torn->all_reduce(data).wait(); });
    expect_contains(text, own);
    if (comm.rank() == 2) left.reset();
    if (left == nullptr) return comm.barrier().wait();
    const std::string lost = error_of<PeerLost>([&] { left->all_reduce(alike).wait(); });
    expect_contains(lost, "all_reduce(sum f32 [");
    expect_contains(lost, " of group \"left\" on rank ");
    comm.barrier().wait();
  });
}

TEST(ErrorTexts, WhoHasDestroyedItsGroupSaysSo) {
  auto ranks =
      make_thread_ranks({.size = 3, .shared_memory = false, .timeout = std::chrono::seconds(20)});
  std::atomic<bool> failed{false};
  on_all(ranks, [&](Communicator& comm) {
    auto group = comm.new_group({0, 1, 2});
    if (comm.rank() == 1) {
      group.reset();
      comm.note("packing up");
    }
    std::vector<float> data(1);
    if (comm.rank() == 0) {
      // Rank 0 receives straight from rank 2, which does not come.
      const std::string text = error_of<Timeout>([&] {
        group
            ->broadcast(data,
                        {.root = 2, .algorithm = "binomial_tree", .timeout = milliseconds(2400)})
            .wait();
      });
      failed = true;
      expect_contains(text, "rank 1 (");
      expect_contains(text, "does not have this group; in its own code: packing up");
    }
    while (!failed) std::this_thread::sleep_for(milliseconds(1));
  });
}

}  // namespace
}  // namespace stretto::testing
