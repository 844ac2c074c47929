// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <stdexcept>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "stretto/communicator/flight_recorder.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"
#include "tests/support/files.h"

namespace stretto::testing {
namespace {

// What observers are told of operations, and what flight recorders make of it.

using nlohmann::json;

// Notes each operation in a line: "1 all_reduce(sum f32 [3]) ok".
class Notes final : public OperationObserver {
 public:
  std::uint64_t begun(const ObservedOperation& operation) override {
    const std::lock_guard lock(mutex_);
    std::string text = operation.group->name + ":";
    const bool is_message = operation.message_to || operation.message_from;
    text += std::to_string(is_message ? operation.message_number : operation.collective_number);
    for (const OperationDescriptor& part : operation.parts) text += " " + describe(part);
    if (operation.message_to) text += " to " + std::to_string(operation.message_to->value());
    if (operation.message_from) text += " from " + std::to_string(operation.message_from->value());
    lines_.push_back(text);
    return lines_.size() - 1;
  }
  void ended(std::uint64_t id, const Status& how) override {
    const std::lock_guard lock(mutex_);
    lines_.at(id) += how.ok() ? " ok" : " failed";
  }
  void aborted(const ObservedGroup&, const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back("abort: " + reason);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class Observers : public OnEveryKind {};
INSTANTIATE_TEST_SUITE_P(, Observers, OnEveryKind::all(), OnEveryKind::name);

TEST_P(Observers, AreToldOfEveryOperationAndItsEnd) {
  on_all(make(2), [](Communicator& comm) {
    const auto notes = std::make_shared<Notes>();
    comm.observe(notes);
    std::vector<float> one(3, 1), two(6, 1);
    comm.all_reduce(one).wait();
    std::vector<float> large(400000, 1);
    comm.all_reduce(large, {.op = ReduceOp::max}).wait();
    comm.all_gather(one, two).wait();
    const std::array inputs = {as_input(one), as_input(one)};
    std::vector<float> other(6);
    const std::array outputs = {as_output(two), as_output(other)};
    comm.all_gather_coalesced(inputs, outputs).wait();
    comm.barrier().wait();
    const Rank peer = 1 - comm.rank().value();
    const std::array transfers = {Transfer::send(one, peer), Transfer::recv(two, peer)};
    std::vector<float> three(3);
    const std::array pair = {transfers[0], Transfer::recv(three, peer)};
    comm.batch_send_recv(pair).wait();
    const auto group = comm.new_group({1, 0}, {.name = "dp"});
    group->broadcast(one, {.root = 1}).wait();
    const std::string from = std::to_string(peer.value());
    EXPECT_EQ(
        notes->lines(),
        (std::vector<std::string>{
            ":1 all_reduce(sum f32 [3]) ok", ":2 all_reduce(max f32 [400000]) ok",
            ":3 all_gather(f32 [6]) ok", ":4 all_gather(f32 [6]) all_gather(f32 [6]) ok",
            ":5 barrier() ok", ":1 send/recv(f32 [3]) to " + from + " ok",
            ":2 send/recv(f32 [3]) from " + from + " ok",
            ":6 all_gather(u8 [16] for a new group) ok", "dp:1 broadcast(f32 [3] root 1) ok"}));
  });
}

TEST_P(Observers, AreNotToldOfCallsThatAreRefused) {
  on_all(make(2), [](Communicator& comm) {
    const auto notes = std::make_shared<Notes>();
    comm.observe(notes);
    std::vector<float> data(3);
    if (comm.rank() == 0) {
      EXPECT_THROW(comm.broadcast(data, {.root = 7}).wait(), InvalidArgument);
      EXPECT_THROW(comm.all_reduce(data, {.algorithm = "none"}).wait(), InvalidArgument);
    }
    comm.barrier().wait();
    EXPECT_EQ(notes->lines(), std::vector<std::string>{":1 barrier() ok"});
  });
}

TEST(ObserversOfOneRank, AreNotToldOfCallsForWhichThereIsNoMemory) {
  const RankList ranks = make_thread_ranks({.size = 1});
  Communicator& comm = *ranks.front();
  const auto notes = std::make_shared<Notes>();
  comm.observe(notes);
  std::byte one{};
  const View endless(&one, std::size_t{1} << 50, DType::f32);
  EXPECT_THROW(comm.all_gather_list(endless, {&endless, 1}).wait(), OutOfMemory);
  comm.barrier().wait();
  EXPECT_EQ(notes->lines(), std::vector<std::string>{":1 barrier() ok"});
}

TEST_P(Observers, AreToldOfFailures) {
  auto ranks = make(2);
  std::atomic<bool> has_left_barrier = false;  // An abort may overtake the barrier's end.
  on_each(ranks, [&](std::unique_ptr<Communicator>& comm) {
    const auto notes = std::make_shared<Notes>();
    comm->observe(notes);
    comm->barrier().wait();
    if (comm->rank() == 0) has_left_barrier = true;
    while (!has_left_barrier) comm->poll();
    if (comm->rank() == 1) return comm->abort("enough");
    std::vector<float> data(3);
    EXPECT_THROW(comm->all_reduce(data).wait(), Error);
    EXPECT_THROW(comm->all_reduce(data).wait(), Error);  // The call itself throws.
    EXPECT_EQ(notes->lines(),
              (std::vector<std::string>{":1 barrier() ok", ":2 all_reduce(sum f32 [3]) failed",
                                        ":3 all_reduce(sum f32 [3]) failed"}));
    comm->abort("too");
    EXPECT_EQ(notes->lines().back(), "abort: too");
  });
}

TEST_P(Observers, MayThrowAndBeSeveral) {
  class Clumsy final : public OperationObserver {
   public:
    std::uint64_t begun(const ObservedOperation&) override { throw std::logic_error("oh"); }
    void ended(std::uint64_t, const Status&) override { throw std::logic_error("dear"); }
  };
  on_all(make(2), [](Communicator& comm) {
    const auto first = std::make_shared<Notes>(), last = std::make_shared<Notes>();
    comm.observe(first);
    comm.observe(std::make_shared<Clumsy>());
    comm.observe(last);
    std::vector<float> data(3, 1);
    comm.all_reduce(data).wait();
    EXPECT_EQ(data, std::vector<float>(3, 2));
    EXPECT_EQ(first->lines(), std::vector<std::string>{":1 all_reduce(sum f32 [3]) ok"});
    EXPECT_EQ(last->lines(), first->lines());
  });
}

json entries_of(const FlightRecorder& recorder) {
  return json::parse(recorder.json()).at("entries");
}

TEST_P(Observers, RecordFlights) {
  on_all(make(3), [](Communicator& comm) {
    const auto recorder = std::make_shared<FlightRecorder>();
    comm.observe(recorder);
    const auto group = comm.new_group({2, 0}, {.name = "pair"});
    std::vector<std::int64_t> whole(6, 1), share(2);
    comm.reduce_scatter(whole, share, {.timeout = std::chrono::seconds(20)}).wait();
    std::vector<double> own(static_cast<std::size_t>(comm.rank().value())), all(3);
    comm.all_gather(own, all, {.counts = {0, 1, 2}}).wait();
    if (group != nullptr) {
      if (group->rank() == 0) group->send(whole, {.to = 1}).wait();
      if (group->rank() == 1) group->recv(whole, {.from = 0}).wait();
    }
    const json record = json::parse(recorder->json());
    json entries = record.at("entries");
    ASSERT_EQ(entries.size(), group != nullptr ? 4u : 3u);
    EXPECT_EQ(entries[0].at("input_sizes"), json::parse("[[8]]")) << "to make the group";
    entries.erase(0);
    EXPECT_EQ(entries[0].at("profiling_name"), "gloo:_reduce_scatter_base");
    EXPECT_EQ(entries[0].at("input_sizes"), json::parse("[[6]]"));
    EXPECT_EQ(entries[0].at("output_sizes"), json::parse("[[2]]"));
    EXPECT_EQ(entries[0].at("input_dtypes"), json::parse(R"(["Long"])"));
    EXPECT_EQ(entries[0].at("timeout_ms"), 20000);
    EXPECT_EQ(entries[1].at("profiling_name"), "gloo:all_gather_v");
    EXPECT_EQ(entries[1].at("collective_seq_id"), 3);
    for (const json& entry : entries) {
      EXPECT_EQ(entry.at("state"), "completed");
      EXPECT_GE(entry.at("duration_ms"), 0);
      EXPECT_LE(entry.at("time_created_ns"), entry.at("time_discovered_completed_ns"));
    }
    if (group == nullptr) return;
    EXPECT_EQ(entries[2].at("profiling_name"),
              group->rank() == 0 ? "gloo:send 1->0" : "gloo:recv 0<-1")
        << "by their order in the job";
    EXPECT_EQ(entries[2].at(group->rank() == 0 ? "output_sizes" : "input_sizes"), json::array());
    const std::string id = entries[2].at("process_group")[0];
    EXPECT_NE(id, entries[0].at("process_group")[0]);
    EXPECT_EQ(record.at("pg_config").at(id).at("ranks"), "[2, 0]");
    EXPECT_EQ(record.at("pg_config").at(id).at("desc"), "pair");
  });
}

TEST_P(Observers, MayRecordSeveralGroupsInOneRecord) {
  on_all(make(2), [](Communicator& comm) {
    const auto recorder = std::make_shared<FlightRecorder>();
    const auto first = comm.new_group({0, 1}, {.name = "\xff"}), last = comm.new_group({0, 1});
    for (Communicator* each : {first.get(), last.get(), &comm}) {
      each->observe(recorder);
      each->barrier().wait();
    }
    const auto own = static_cast<std::size_t>(comm.rank().value()) + 1;
    std::vector<float> some(own), others(own), all(3), all_others(3);
    const std::array inputs = {as_input(some), as_input(others)};
    const std::array outputs = {as_output(all), as_output(all_others)};
    comm.all_gather_coalesced(inputs, outputs, {.counts = {1, 2}}).wait();
    const json record = json::parse(recorder->json());
    ASSERT_EQ(record.at("entries").size(), 4u);
    EXPECT_EQ(record.at("pg_config").size(), 3u);
    EXPECT_EQ(record.at("entries")[0].at("process_group")[1], "\xef\xbf\xbd") << "no UTF-8";
    EXPECT_EQ(record.at("entries")[1].at("process_group")[1], "undefined");
    EXPECT_EQ(record.at("entries")[3].at("profiling_name"), "gloo:all_gather_v");
    EXPECT_THROW(comm.observe(nullptr), InvalidArgument);
  });
}

TEST_P(Observers, RecordTheLastOperationsOnly) {
  on_all(make(2), [](Communicator& comm) {
    const auto recorder = std::make_shared<FlightRecorder>(3),
               none = std::make_shared<FlightRecorder>(0);
    comm.observe(recorder);
    comm.observe(none);
    std::vector<float> data(1);
    const Rank peer = 1 - comm.rank().value();
    Work late = comm.recv(data, {.from = peer});  // Its entry has been overwritten when it ends.
    for (int i = 0; i < 5; ++i) comm.barrier().wait();
    std::vector<float> own(1);
    comm.send(own, {.to = peer}).wait();
    late.wait();
    const json entries = entries_of(*recorder);
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[0].at("record_id"), 4);
    EXPECT_EQ(entries[2].at("profiling_name").get<std::string>().substr(0, 9), "gloo:send");
    EXPECT_EQ(entries[1].at("state"), "completed");
    EXPECT_EQ(entries_of(*none), json::array());
  });
}

TEST_P(Observers, WriteTheFlightRecordAtTheFirstFailure) {
  const TemporaryFolder folder;
  auto ranks = make(2);
  std::atomic<bool> has_left_barrier = false;
  on_each(ranks, [&](std::unique_ptr<Communicator>& comm) {
    const std::string path = folder / ("rank_" + std::to_string(comm->rank().value()));
    const auto recorder = std::make_shared<FlightRecorder>();
    recorder->write_at_failure(path);
    comm->observe(recorder);
    comm->barrier().wait();
    EXPECT_FALSE(std::filesystem::exists(path));
    if (comm->rank() == 0) has_left_barrier = true;
    while (!has_left_barrier) comm->poll();
    if (comm->rank() == 1) {
      comm->abort("enough");
    } else {
      EXPECT_THROW(comm->barrier().wait(), Aborted);
    }
    EXPECT_EQ(read_file(path), recorder->pickled());
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
    EXPECT_THROW(recorder->write(folder / "nowhere/rank"), SystemError);
  });
}

TEST(FlightRecords, AreWholeThoughSeveralThreadsWriteOne) {
  const TemporaryFolder folder;
  const std::string path = folder / "record";
  const FlightRecorder recorder;
  on_threads(2, [&](int) {
    for (int i = 0; i < 200; ++i) {
      EXPECT_NO_THROW(recorder.write(path));
      EXPECT_EQ(read_file(path), recorder.pickled());
    }
  });
}

}  // namespace
}  // namespace stretto::testing
