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

// What a rank tells the others of a group about its window.
struct WindowNotice {
  std::uint64_t offset_bytes = 0;
  std::uint32_t region = 0;
  std::uint8_t reaches_all = 0;   // Whether it shares memory with all ranks of the group...
  std::uint8_t reaches_host = 0;  // ...or with those of its host.
  SingleCopy single_copy = SingleCopy::off;
  std::uint8_t lacks_cores = 0;  // Fewer than there are ranks on this host, as far as it knows.
};
static_assert(sizeof(WindowNotice) == 16, "travels as it lies in memory");

namespace {

constexpr std::uint64_t kWorldGroup = 1;

}  // namespace

ScheduledCommunicator::ScheduledCommunicator(std::shared_ptr<group::Engine> engine,
                                             execution::Membership membership, Options options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      exceptions_when_made_(std::uncaught_exceptions()) {
  // As a default it says what is chosen anyway, wherever all buffers are registered.
  if (options_.algorithm == "direct_mapped") options_.algorithm.clear();
  auto held = engine_->lock();
  group_ = std::make_unique<group::Group>(engine_, std::move(membership), options_.group);
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
    std::shared_ptr<group::Engine> engine, Options options) {
  if (options.timeout < Duration::zero()) {
    return status_of(StatusCode::invalid_argument, "a timeout of {:g} s is negative",
                     seconds(options.timeout));
  }
  execution::Membership everyone{
      .group = kWorldGroup, .rank = engine->transport().rank(), .members = {}};
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
  group::Group::Submission submission{.operation = {.collective = Collective::all_gather,
                                                    .count = all.size(),
                                                    .layout = kSetUpLayout},
                                      .input = own,
                                      .output = all,
                                      .deadline = until};
  auto held = engine_->lock();
  Result<std::shared_ptr<group::PendingOperation>> operation = group_->submit(submission, held);
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

std::vector<Rank> ScheduledCommunicator::ranks_of_host() const {
  const group::HostList hosts = group::hosts_of(options_.group.hosts, group_->membership().members);
  const auto host_of = [&](Rank r) {
    return hosts.empty() ? 0 : hosts[static_cast<std::size_t>(r)];
  };
  std::vector<Rank> ranks;
  for (std::int32_t r = 0; r < size(); ++r) {
    if (host_of(r) == host_of(rank())) ranks.push_back(r);
  }
  return ranks;
}

// Makes this rank's window, if there is somebody to map it, and says what it is to tell the others.
Result<WindowNotice> ScheduledCommunicator::make_window(execution::Windows& windows) {
  const execution::Membership& membership = group_->membership();
  const std::vector<Rank> of_host = ranks_of_host();
  auto held = engine_->lock();
  transport::Transport& transport = engine_->transport();
  const bool reaches_all = std::ranges::all_of(
      membership.members, [&](Rank member) { return transport.shares_memory(member); });
  const bool reaches_host = std::ranges::all_of(
      of_host, [&](Rank r) { return transport.shares_memory(membership.job_rank(r)); });
  const bool reaches_all_private = std::ranges::all_of(membership.members, [&](Rank member) {
    return member == transport.rank() || transport.reaches_private(member);
  });
  held.unlock();
  if (reaches_all || (reaches_host && of_host.size() > 1)) {
    Result<transport::Transport::Region> region = allocate_region(execution::Window::bytes());
    if (!region.ok()) return region.status();
    windows.own = std::move(*region);
  }
  return WindowNotice{.offset_bytes = windows.own.address.offset_bytes,
                      .region = windows.own.address.region,
                      .reaches_all = reaches_all,
                      .reaches_host = reaches_host,
                      .single_copy = reaches_all_private ? options_.single_copy : SingleCopy::off,
                      .lacks_cores = !engine_->has_core_for_each_rank()};
}

// Maps the windows of the team. The regions arrive on another way than the notices.
Status ScheduledCommunicator::map_windows(execution::Windows& windows,
                                          std::span<const WindowNotice> notices,
                                          const Deadline& until) {
  windows.of.resize(notices.size());
  transport::Transport& transport = engine_->transport();
  transport::ShortageTimer timer;
  Status shortage;
  std::size_t mapped = 0;
  const auto map_all = [&] {
    for (; mapped < windows.team.size(); ++mapped) {
      const Rank member = windows.team[mapped];
      const auto index = static_cast<std::size_t>(member);
      const transport::RemoteAddress address{notices[index].region, notices[index].offset_bytes};
      const Rank job_rank = group_->membership().job_rank(member);
      std::byte* window = transport.resolve(job_rank, address, execution::Window::bytes());
      if (window == nullptr) {
        shortage = timer.judge(transport.find_shortage(job_rank, address));
        return !shortage.ok() || !group_->failure().ok();
      }
      windows.of[index] = reinterpret_cast<execution::Window*>(window);
      windows.held.push_back(transport.hold(job_rank, address));
    }
    return true;
  };
  if (engine_->drive(map_all, until)) return shortage;
  return status_of(StatusCode::timeout, "the shared memory of rank {} never arrived",
                   group_->membership().job_rank(windows.team[mapped]).value());
}

// Lets the ranks of the group map each other's windows: all of them, if they can; else those of
// each host, if they can on every host. Collective.
Status ScheduledCommunicator::exchange_windows(const Deadline& until) {
  if (size() == 1 || !options_.share_windows) return {};
  execution::Windows windows;
  Result<WindowNotice> notice = make_window(windows);
  if (!notice.ok()) return notice.status();
  std::vector<WindowNotice> notices(static_cast<std::size_t>(size()));
  STRETTO_RETURN_IF_ERROR(set_up_all_gather(std::as_bytes(std::span(&*notice, 1)),
                                            std::as_writable_bytes(std::span(notices)), until));
  if (std::ranges::all_of(notices, &WindowNotice::reaches_all)) {
    for (std::int32_t r = 0; r < size(); ++r) windows.team.push_back(r);
  } else if (std::ranges::all_of(notices, &WindowNotice::reaches_host)) {
    windows.team = ranks_of_host();
  } else {
    return {};
  }
  windows.crowded = std::ranges::any_of(notices, &WindowNotice::lacks_cores);
  windows.single_copy = std::ranges::min(notices, {}, &WindowNotice::single_copy).single_copy;
  if (windows.team.size() > 1) STRETTO_RETURN_IF_ERROR(map_windows(windows, notices, until));
  // A rank may leave the group at once; its window must not go before everybody has mapped it.
  const std::byte mapped{};
  std::vector<std::byte> all_mapped(notices.size());
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
                      (!group_->is_one_team() || options_.measure_links->refresh);
  if (!wanted) return {};
  group::HostList hosts = options_.group.hosts;
  hosts.resize(static_cast<std::size_t>(size()));
  Result<group::LinkModel> links = agree_on_links(*this, hosts, *options_.measure_links);
  if (!links.ok()) return links.status();
  options_.group.links = std::move(*links);  // Of the groups made of this one, too.
  const auto held = engine_->lock();
  group_->use_links(options_.group.links);
  return {};
}

Deadline ScheduledCommunicator::deadline(const std::optional<Duration>& timeout) const {
  if (timeout && *timeout < Duration::zero()) {
    refuse({.rank = rank(), .operation = "timeout"},
           fmt::format("{:g} s is negative; without one, the communicator's holds",
                       seconds(*timeout)));
  }
  return Deadline::after(timeout.value_or(options_.timeout));
}

Result<std::shared_ptr<group::Operation>> ScheduledCommunicator::submit_locked(
    group::Group::Submission& submission, const std::string& algorithm,
    std::unique_lock<std::mutex>& held) {
  // A default algorithm that does not exist for this collective is no error; a named one is.
  const bool named = !algorithm.empty();
  submission.algorithm = named ? algorithm : std::string_view(options_.algorithm);
  Result<std::shared_ptr<group::PendingOperation>> operation = group_->submit(submission, held);
  if (!operation.ok() && !named && operation.status().code() == StatusCode::invalid_argument) {
    submission.algorithm = {};
    operation = group_->submit(submission, held);
  }
  if (operation.ok()) return std::shared_ptr<group::Operation>(std::move(*operation));
  const bool refused = operation.status().code() == StatusCode::invalid_argument;
  return refused ? operation.status().with_context(fmt::format("rank {}", rank().value()))
                 : operation.status();
}

Work ScheduledCommunicator::submit(group::Group::Submission submission,
                                   const std::string& algorithm,
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
    group::Group::Submission submission{.operation = operation, .input = input, .output = output};
    work = submit_queued(submission, algorithm, timeout);
  }
  return work;
}

Work ScheduledCommunicator::submit_queued(group::Group::Submission& submission,
                                          const std::string& algorithm,
                                          const std::optional<Duration>& timeout) {
  submission.deadline = deadline(timeout);
  auto held = engine_->lock();
  Result<std::shared_ptr<group::Operation>> operation = submit_locked(submission, algorithm, held);
  engine_->run_continuations(held);
  return Work(std::move(operation).or_throw());
}

bool ScheduledCommunicator::submit_fast(const OperationDescriptor& operation,
                                        const std::byte* input, std::byte* output,
                                        const std::string& algorithm,
                                        const std::optional<Duration>& timeout, Work& work) {
  const bool plain = algorithm.empty() && options_.algorithm.empty();
  if (!plain || (timeout && *timeout < Duration::zero())) return false;
  std::shared_ptr<group::PendingOperation> parked;
  const auto outcome = group_->try_fast({.operation = operation,
                                         .input = input,
                                         .output = output,
                                         .timeout = timeout.value_or(options_.timeout)},
                                        parked);
  if (outcome == group::Group::FastOutcome::refused) return false;
  if (outcome == group::Group::FastOutcome::ended) return true;  // As `work` says already.
  auto held = engine_->lock();
  group_->adopt_parked();
  engine_->run_continuations(held);
  work = Work(std::move(parked));
  return true;
}

Work ScheduledCommunicator::join(std::vector<std::shared_ptr<group::Operation>> parts) {
  if (parts.empty()) return Work();
  if (parts.size() == 1) return Work(std::move(parts.front()));
  return Work(std::make_shared<group::JoinedOperation>(std::move(parts)));
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
  const std::string text = fmt::format("rank {} {}", job_rank().value(), why);
  group_->fail(Status(StatusCode::aborted, text, job_rank()), announce);
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
  auto held = engine_->lock();
  const std::shared_ptr<const group::Planner> planner = group_->planner();
  held.unlock();
  return planner->explain(operation, options_.algorithm);
}

}  // namespace stretto::communicator
