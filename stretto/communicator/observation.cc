// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/observation.h"

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/catch_all.h"
#include "stretto/base/error.h"
#include "stretto/base/log.h"
#include "stretto/communicator/arguments.h"

namespace stretto::communicator {
namespace {

std::shared_ptr<const ObservedGroup> group_of(const ScheduledBackend& backend) {
  auto group = std::make_shared<ObservedGroup>();
  group->serial = next_serial();
  group->id = fmt::format("{:x}", backend.group_id());
  group->name = backend.group_name();
  group->rank = backend.rank();
  for (Rank rank = 0; rank < backend.size(); rank = rank.value() + 1) {
    group->ranks.push_back(backend.job_rank(rank));
  }
  return group;
}

template <class Call>
void tell(const Call& call) {
  catch_all(call, [](const char* what) {
    log(LogLevel::error, "an observer of operations threw: {}", what);
  });
}

void tell_ended(OperationObserver& observer, const std::vector<std::uint64_t>& ids,
                const Status& how) {
  for (const std::uint64_t id : ids) tell([&] { observer.ended(id, how); });
}

// The end of operations that one Work stands for.
class End {
 public:
  End(std::shared_ptr<OperationObserver> observer, std::vector<std::uint64_t> ids)
      : observer_(std::move(observer)), ids_(std::move(ids)) {}
  // The first thread tells the observer, and others wait until it has.
  void tell_once(const Status& how) {
    std::call_once(once_, [&] { tell_ended(*observer_, ids_, how); });
  }

 private:
  const std::shared_ptr<OperationObserver> observer_;
  const std::vector<std::uint64_t> ids_;
  std::once_flag once_;
};

// An operation whose end the observer is told before the program.
class ToldOperation final : public group::Operation {
 public:
  ToldOperation(std::shared_ptr<group::Operation> inner, std::shared_ptr<End> end)
      : inner_(std::move(inner)), end_(std::move(end)) {
    inner_->then([end = end_](const Status& how) { end->tell_once(how); });
  }
  bool poll() override {
    const bool has_ended = inner_->poll();
    if (has_ended) end_->tell_once(inner_->wait(Deadline()));
    return has_ended;
  }
  Status wait(Deadline deadline) override {
    Status status = inner_->wait(deadline);
    (void)poll();
    return status;
  }
  Status wait_on_device() override {
    Status status = inner_->wait_on_device();
    (void)poll();  // It has ended if it is on host memory.
    return status;
  }
  void end() override {
    inner_->end();
    (void)poll();
  }
  void then(Continuation continuation) override {
    inner_->then([end = end_, continuation = std::move(continuation)](const Status& how) {
      end->tell_once(how);
      continuation(how);
    });
  }
  void abandon() override {
    inner_->abandon();
    (void)poll();
  }
  std::optional<Rank> source() const override { return inner_->source(); }
  OperationInfo info() const override { return inner_->info(); }

 private:
  const std::shared_ptr<group::Operation> inner_;
  const std::shared_ptr<End> end_;
};

}  // namespace

Observation::Observation(ScheduledBackend& backend, std::shared_ptr<OperationObserver> observer,
                         std::unique_ptr<Observation>&& earlier)
    : backend_(backend),
      group_(group_of(backend)),
      observer_(std::move(observer)),
      earlier_(std::move(earlier)) {}

void Observation::extend_to(Communicator& group) const {
  if (earlier_ != nullptr) earlier_->extend_to(group);
  group.observe(observer_);
}

std::vector<std::uint64_t> Observation::tell_begun(std::span<ObservedOperation> operations) {
  std::vector<std::uint64_t> ids;
  for (ObservedOperation& each : operations) {
    each.group = group_;
    const bool is_message = each.parts.front().collective == Collective::point_to_point;
    const std::uint64_t number = ++(is_message ? messages_ : collectives_);
    each.collective_number = is_message ? collectives_.load() : number;
    each.message_number = is_message ? number : messages_.load();
    tell([&] { ids.push_back(observer_->begun(each)); });
  }
  return ids;
}

template <class Submit>
Work Observation::tell_of(std::span<ObservedOperation> operations, const Submit& submit) {
  const auto submitted = std::chrono::system_clock::now();
  for (ObservedOperation& each : operations) each.submitted = submitted;
  try {
    Work work = submit();
    std::vector<std::uint64_t> ids = tell_begun(operations);
    // A captured operation has ended for the host; waiting for it has another meaning.
    if (work.operation_ == nullptr || work.is_captured()) {
      tell_ended(*observer_, ids, work.result_);
    } else {
      work.operation_ = std::make_shared<ToldOperation>(
          std::move(work.operation_), std::make_shared<End>(observer_, std::move(ids)));
    }
    return work;
  } catch (const Error& error) {
    // A call that is refused, perhaps on this rank only, does not count as an operation, as the
    // group goes on without it.
    if (backend_.has_failed()) tell_ended(*observer_, tell_begun(operations), error.status());
    throw;
  }
}

Work Observation::submit(std::span<CollectiveCall> calls, const std::string& algorithm,
                         const std::optional<Duration>& timeout) {
  std::vector<OperationDescriptor> parts;  // Copied, as submit() may move from calls.
  parts.reserve(calls.size());
  for (const CollectiveCall& call : calls) parts.push_back(call.operation);
  ObservedOperation operation{.parts = parts, .timeout = timeout};
  return tell_of({&operation, 1}, [&] {
    return earlier_ == nullptr ? backend_.submit(calls, algorithm, timeout)
                               : earlier_->submit(calls, algorithm, timeout);
  });
}

Work Observation::exchange(std::span<const Transfer> messages,
                           const std::optional<Duration>& timeout) {
  std::vector<OperationDescriptor> parts(messages.size());
  std::vector<ObservedOperation> operations(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Transfer& message = messages[i];
    parts[i] = {.collective = Collective::point_to_point,
                .dtype = message.sends ? message.outgoing.dtype : message.incoming.dtype,
                .count = message.sends ? message.outgoing.count : message.incoming.count};
    operations[i] = {.parts = {&parts[i], 1}, .timeout = timeout};
    (message.sends ? operations[i].message_to : operations[i].message_from) = message.peer;
  }
  return tell_of(operations, [&] {
    return earlier_ == nullptr ? backend_.exchange(messages, timeout)
                               : earlier_->exchange(messages, timeout);
  });
}

void Observation::abort(const std::string& reason) {
  earlier_ == nullptr ? backend_.abort(reason) : earlier_->abort(reason);
  tell([&] { observer_->aborted(*group_, reason); });
}

}  // namespace stretto::communicator
