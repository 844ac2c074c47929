// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/scheduled_communicator.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "stretto/base/memory_limit.h"
#include "stretto/communicator/arguments.h"
#include "stretto/transport/shortage.h"

namespace stretto::communicator {
namespace {

constexpr std::uint64_t kWorldGroup = 1;

// What a rank tells the others about its window.
struct WindowNotice {
  std::uint64_t offset_bytes = 0;
  std::uint32_t region = 0;
  std::uint8_t reaches_all = 0;
  SingleCopy single_copy = SingleCopy::off;
  std::uint16_t lacks_cores = 0;  // Fewer than there are ranks on this host, as far as it knows.
};
static_assert(sizeof(WindowNotice) == 16, "travels as it lies in memory");

}  // namespace

ScheduledCommunicator::ScheduledCommunicator(std::shared_ptr<Engine> engine, Membership membership,
                                             Options options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      exceptions_when_made_(std::uncaught_exceptions()) {
  // As a default it says what is chosen anyway, wherever all buffers are registered.
  if (options_.algorithm == "direct_mapped") options_.algorithm.clear();
  auto held = engine_->lock();
  group_ = std::make_unique<Group>(engine_, std::move(membership), options_.group);
}

ScheduledCommunicator::~ScheduledCommunicator() {
  if (!engine_->is_home()) {
    (void)group_.release();  // The parent of this process goes on with it.
    return;
  }
  auto held = engine_->lock();
  if (std::uncaught_exceptions() > exceptions_when_made_) group_->unwind(nullptr);
  group_.reset();
  engine_->run_continuations(held);
}

Result<std::unique_ptr<Communicator>> ScheduledCommunicator::make_world(
    std::shared_ptr<Engine> engine, Options options) {
  Membership everyone{.group = kWorldGroup, .rank = engine->transport().rank(), .members = {}};
  for (int r = 0; r < engine->transport().size(); ++r) everyone.members.push_back(r);
  std::unique_ptr<ScheduledCommunicator> world(
      new ScheduledCommunicator(std::move(engine), std::move(everyone), std::move(options)));
  try {
    STRETTO_RETURN_IF_ERROR(world->share_windows(world->deadline(std::nullopt)));
    STRETTO_RETURN_IF_ERROR(world->measure_links());
    world->begin_numbering();
  } catch (const Error& error) {  // The operations in it speak as the public face does.
    return error.status();
  }
  return std::unique_ptr<Communicator>(std::move(world));
}

Status ScheduledCommunicator::set_up_all_gather(std::span<const std::byte> own,
                                                std::span<std::byte> all, Deadline until) {
  Group::Submission submission{.operation = {.collective = Collective::all_gather,
                                             .count = all.size(),
                                             .layout = kSetUpLayout},
                               .input = own,
                               .output = all,
                               .deadline = until};
  auto held = engine_->lock();
  Result<std::shared_ptr<PendingOperation>> operation = group_->submit(submission);
  engine_->run_continuations(held);
  held.unlock();
  return operation.ok() ? Work(std::move(*operation)).wait_status() : operation.status();
}

// A rank that cannot take part ends the group for all, with its reason.
Status ScheduledCommunicator::share_windows(const Deadline& until) {
  const Status status = exchange_windows(until);
  if (status.ok()) return {};
  auto held = engine_->lock();
  const Rank self = engine_->transport().rank();
  group_->fail(
      {status.code(),
       fmt::format("rank {} could not set up the group: {}", self.value(), status.message()),
       status.rank().value_or(self)},
      true);
  engine_->run_continuations(held);
  return group_->failure();
}

// The regions arrive on another way than the notices about them.
template <class Notices>
Status ScheduledCommunicator::map_windows(Windows& windows, const Notices& notices,
                                          const Deadline& until) {
  const auto& members = group_->membership().members;
  transport::ShortageTimer timer;
  Status shortage;
  const auto map_all = [&] {
    for (std::size_t i = windows.of.size(); i < members.size(); ++i) {
      const transport::RemoteAddress address{notices[i].region, notices[i].offset_bytes};
      std::byte* window = engine_->transport().resolve(members[i], address, Window::bytes());
      if (window == nullptr) {
        shortage = timer.judge(engine_->transport().find_shortage(members[i], address));
        return !shortage.ok() || !group_->failure().ok();
      }
      windows.of.push_back(reinterpret_cast<Window*>(window));
      windows.held.push_back(engine_->transport().hold(members[i], address));
    }
    return true;
  };
  if (engine_->drive(map_all, until)) return shortage;
  return status_of(StatusCode::timeout, "the shared memory of rank {} never arrived",
                   members[windows.of.size()].value());
}

// Lets the ranks of the group map each other's windows, if they can. Collective.
Status ScheduledCommunicator::exchange_windows(const Deadline& until) {
  if (size() == 1 || !options_.share_windows) return {};
  const auto& members = group_->membership().members;
  Windows windows;
  WindowNotice notice;
  {
    auto held = engine_->lock();
    transport::Transport& transport = engine_->transport();
    const bool reaches_all = std::all_of(members.begin(), members.end(), [&](Rank member) {
      return transport.shares_memory(member);
    });
    const bool reaches_all_private = std::all_of(members.begin(), members.end(), [&](Rank member) {
      return member == transport.rank() || transport.reaches_private(member);
    });
    if (reaches_all) {
      held.unlock();
      Result<transport::Transport::Region> region = allocate_region(Window::bytes());
      if (!region.ok()) return region.status();
      windows.own = std::move(*region);
    }
    notice = {.offset_bytes = windows.own.address.offset_bytes,
              .region = windows.own.address.region,
              .reaches_all = static_cast<std::uint8_t>(reaches_all),
              .single_copy = reaches_all_private ? options_.single_copy : SingleCopy::off,
              .lacks_cores = static_cast<std::uint16_t>(!engine_->has_core_for_each_rank())};
  }
  std::vector<WindowNotice> notices(members.size());
  STRETTO_RETURN_IF_ERROR(set_up_all_gather(std::as_bytes(std::span(&notice, 1)),
                                            std::as_writable_bytes(std::span(notices)), until));
  const bool all = std::all_of(notices.begin(), notices.end(),
                               [](const WindowNotice& n) { return n.reaches_all != 0; });
  if (!all) return {};
  windows.crowded = std::any_of(notices.begin(), notices.end(),
                                [](const WindowNotice& n) { return n.lacks_cores != 0; });
  windows.single_copy = std::ranges::min(notices, {}, &WindowNotice::single_copy).single_copy;
  STRETTO_RETURN_IF_ERROR(map_windows(windows, notices, until));
  // A rank may leave the group at once; its window must not go before everybody has mapped it.
  const std::byte mapped{};
  std::vector<std::byte> all_mapped(members.size());
  STRETTO_RETURN_IF_ERROR(set_up_all_gather(std::span(&mapped, 1), all_mapped, until));
  const auto held = engine_->lock();
  group_->use_windows(std::move(windows));
  return {};
}

void ScheduledCommunicator::begin_numbering() {
  const auto held = engine_->lock();
  group_->begin_numbering();
}

// Where all ranks share memory nothing is chosen by what messages cost.
Status ScheduledCommunicator::measure_links() {
  const bool wanted = options_.measure_links && size() > 1 &&
                      (!group_->has_windows() || options_.measure_links->refresh);
  if (!wanted) return {};
  HostList hosts = options_.group.hosts;
  hosts.resize(static_cast<std::size_t>(size()));
  Result<LinkModel> links = agree_on_links(*this, hosts, *options_.measure_links);
  if (!links.ok()) return links.status();
  options_.group.links = std::move(*links);  // Of the groups made of this one, too.
  const auto held = engine_->lock();
  group_->use_links(options_.group.links);
  return {};
}

Deadline ScheduledCommunicator::deadline(const std::optional<Duration>& timeout) const {
  return Deadline::after(timeout.value_or(options_.timeout));
}

Result<std::shared_ptr<Operation>> ScheduledCommunicator::submit_locked(
    Group::Submission& submission, const std::string& algorithm) {
  // A default algorithm that does not exist for this collective is no error; a named one is.
  const bool named = !algorithm.empty();
  submission.algorithm = named ? algorithm : std::string_view(options_.algorithm);
  Result<std::shared_ptr<PendingOperation>> operation = group_->submit(submission);
  if (!operation.ok() && !named && operation.status().code() == StatusCode::invalid_argument) {
    submission.algorithm = {};
    operation = group_->submit(submission);
  }
  if (operation.ok()) return std::shared_ptr<Operation>(std::move(*operation));
  const bool refused = operation.status().code() == StatusCode::invalid_argument;
  return refused ? operation.status().with_context(fmt::format("rank {}", rank().value()))
                 : operation.status();
}

Work ScheduledCommunicator::submit(Group::Submission submission, const std::string& algorithm,
                                   const std::optional<Duration>& timeout) {
  if (submission.packing || submission.shares) return submit_queued(submission, algorithm, timeout);
  return submit_plain(submission.operation, submission.input, submission.output, algorithm,
                      timeout);
}

Work ScheduledCommunicator::submit_plain(const OperationDescriptor& operation, ConstByteSpan input,
                                         ByteSpan output, const std::string& algorithm,
                                         const std::optional<Duration>& timeout) {
  Work work;
  if (!submit_fast(operation, input.data(), output.data(), algorithm, timeout, work)) {
    Group::Submission submission{.operation = operation, .input = input, .output = output};
    work = submit_queued(submission, algorithm, timeout);
  }
  return work;
}

Work ScheduledCommunicator::submit_queued(Group::Submission& submission,
                                          const std::string& algorithm,
                                          const std::optional<Duration>& timeout) {
  submission.deadline = deadline(timeout);
  auto held = engine_->lock();
  Result<std::shared_ptr<Operation>> operation = submit_locked(submission, algorithm);
  engine_->run_continuations(held);
  return Work(std::move(operation).or_throw());
}

bool ScheduledCommunicator::submit_fast(const OperationDescriptor& operation,
                                        const std::byte* input, std::byte* output,
                                        const std::string& algorithm,
                                        const std::optional<Duration>& timeout, Work& work) {
  if (!algorithm.empty() || !options_.algorithm.empty()) return false;
  std::shared_ptr<PendingOperation> parked;
  const auto outcome = group_->try_fast({.operation = operation,
                                         .input = input,
                                         .output = output,
                                         .timeout = timeout.value_or(options_.timeout)},
                                        parked);
  if (outcome == Group::FastOutcome::refused) return false;
  if (outcome == Group::FastOutcome::ended) return true;  // As `work` says already.
  auto held = engine_->lock();
  group_->adopt_parked();
  engine_->run_continuations(held);
  work = Work(std::move(parked));
  return true;
}

Work ScheduledCommunicator::join(std::vector<std::shared_ptr<Operation>> parts) {
  if (parts.empty()) return Work();
  if (parts.size() == 1) return Work(std::move(parts.front()));
  return Work(std::make_shared<JoinedOperation>(std::move(parts)));
}

// What others have freed is there again when they have heard of it; what this process lacks for a
// moment comes back, too.
Result<transport::Transport::Region> ScheduledCommunicator::allocate_region(std::size_t bytes) {
  const auto allocate_now = [&] {
    const auto held = engine_->lock();
    return engine_->transport().allocate(bytes);
  };
  Result<transport::Transport::Region> region = allocate_now();
  const auto may_fit_soon = [&] {
    if (region.status().code() == StatusCode::system) return true;
    if (region.status().code() != StatusCode::out_of_memory) return false;
    const auto left = find_memory_left();
    return !left || bytes <= left->limit_bytes;
  };
  // What a rank has freed is there again when the others have heard of it, by the next turn of
  // their heartbeat.
  constexpr int kAttempts = 20;
  const Duration pause = engine_->options().heartbeat / (kAttempts / 2);
  for (int i = 0; i < kAttempts && may_fit_soon(); ++i) {
    (void)engine_->drive([] { return false; }, Deadline::after(pause));
    region = allocate_now();
  }
  return region;
}

Memory ScheduledCommunicator::allocate_bytes(std::size_t bytes) {
  transport::Transport::Region region = allocate_region(bytes).or_throw();
  return Memory(std::move(region.owner), region.bytes);
}

void ScheduledCommunicator::abort(const std::string& reason) { end("aborted: " + reason, true); }

void ScheduledCommunicator::end(const std::string& why, bool announce) {
  auto held = engine_->lock();
  const std::string text = fmt::format("rank {} {}", rank().value(), why);
  group_->fail(Status(StatusCode::aborted, text, rank()), announce);
  engine_->run_continuations(held);
}

std::string ScheduledCommunicator::describe_links() const {
  const auto held = engine_->lock();
  std::string text;
  const auto& members = group_->membership().members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (static_cast<std::int32_t>(i) == rank().value()) continue;
    text += fmt::format("{}{} to rank {}", text.empty() ? "" : "; ",
                        engine_->transport().link_name(members[i]), i);
  }
  return text.empty() ? "no other ranks" : text;
}

std::string ScheduledCommunicator::describe_link(Rank other) const {
  check_root({.rank = rank(), .operation = "describe_link"}, other, size());
  const auto held = engine_->lock();
  return engine_->transport().link_name(group_->membership().job_rank(other));
}

Explanation ScheduledCommunicator::explain(Collective collective, DType dtype,
                                           std::size_t count) const {
  OperationDescriptor operation{.collective = collective, .dtype = dtype, .count = count};
  if (has_root(collective)) operation.root = 0;
  const auto held = engine_->lock();
  return group_->explain(operation, options_.algorithm);
}

}  // namespace stretto::communicator
