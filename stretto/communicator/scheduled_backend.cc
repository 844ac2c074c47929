// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/scheduled_backend.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "stretto/communicator/device_calls.h"
#include "stretto/communicator/memory_probe.h"
#include "stretto/kernel/copy.h"
#include "stretto/transport/shortage.h"

namespace stretto::communicator {

// What a rank tells the others of a group about its window.
struct WindowNotice {
  std::uint64_t offset_bytes = 0;
  std::uint32_t region = 0;
  std::uint8_t reaches_all = 0;   // Whether it shares memory with all ranks of the group...
  std::uint8_t reaches_host = 0;  // ...or with those of its host.
  SingleCopy single_copy = SingleCopy::off;
  std::uint8_t lacks_cores = 0;   // Whether this host has fewer cores than ranks.
  std::uint64_t cache_bytes = 0;  // Of the last level, as far as it knows.
  std::uint64_t remeasures = 0;   // Whether this rank is to use no stored costs of links.
};
static_assert(sizeof(WindowNotice) == 32, "travels as it lies in memory");

namespace {

constexpr std::uint64_t kWorldGroup = 1;

}  // namespace

ScheduledBackend::ScheduledBackend(std::shared_ptr<group::Engine> engine,
                                   execution::Membership membership, Options options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      exceptions_when_made_(std::uncaught_exceptions()) {
  // As a default it has no effect: it is chosen anyway if all buffers are registered.
  if (options_.algorithm == "direct_mapped") options_.algorithm.clear();
  group::EngineLock held(*engine_);
  group_ = std::make_unique<group::Group>(engine_, std::move(membership), options_.group);
}

ScheduledBackend::~ScheduledBackend() {
  if (!engine_->is_owner_process()) {
    (void)group_.release();  // The parent process still uses it.
    (void)scratch_.release();
    (void)new auto(std::move(device_library_));
    return;
  }
  group::EngineLock held(*engine_);
  if (std::uncaught_exceptions() > exceptions_when_made_) group_->unwind(nullptr);
  group_->leave();
  if (!group_->has_ended()) {
    held.unlock();  // Other groups go on, and this one may wait for them.
    (void)engine_->drive(
        [this]() STRETTO_REQUIRES(group::engine_held) { return group_->has_ended(); }, Deadline());
    held.lock();
  }
  group_.reset();
  engine_->run_continuations(held);
  held.unlock();
  device_library_.reset();  // Without the lock, as it may wait for the device.
}

Result<std::unique_ptr<Communicator>> ScheduledBackend::make_world(
    std::shared_ptr<group::Engine> engine, Options options, const std::optional<Deadline>& until) {
  if (options.timeout < Duration::zero()) {
    return status_of(StatusCode::invalid_argument, "a timeout of {:g} s is negative",
                     seconds(options.timeout));
  }
  execution::Membership everyone{
      .group = kWorldGroup, .rank = engine->transport().rank(), .members = {}};
  for (int r = 0; r < engine->transport().size(); ++r) everyone.members.push_back(r);
  std::unique_ptr<ScheduledBackend> backend(
      new ScheduledBackend(std::move(engine), std::move(everyone), std::move(options)));
  ScheduledBackend& own = *backend;
  auto world = std::make_unique<Communicator>(std::move(backend));
  try {
    STRETTO_RETURN_IF_ERROR(own.set_up(until.value_or(own.deadline(std::nullopt)), world.get()));
  } catch (const Error& error) {  // The world's own operations throw.
    return error.status();
  }
  return world;
}

Status ScheduledBackend::set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all,
                                           Deadline until) {
  group::Group::Submission submission{.operation = {.collective = Collective::all_gather,
                                                    .count = all.size(),
                                                    .layout = kSetUpLayout},
                                      .input = own,
                                      .output = all,
                                      .deadline = until};
  group::EngineLock held(*engine_);
  Result<std::shared_ptr<group::PendingOperation>> operation = group_->submit(submission, held);
  if (operation.ok()) group_->run_inline(all.size());
  engine_->run_continuations(held);
  held.unlock();
  return operation.ok() ? Work(std::move(*operation)).wait_status() : operation.status();
}

Status ScheduledBackend::use_library(const Deadline& until) {
  const LibraryFactory& factory = options_.library;
  if (!factory.make || (size() == 1 && !factory.for_devices)) return {};
  const LibraryMeeting meeting{
      .local_rank = local_rank(),
      .all_gather = [&](ConstByteSpan own,
                        ByteSpan all) { return set_up_all_gather(own, all, until); },
      .wait = [&](const auto& done) { return wait_in_meeting(done, until); }};
  STRETTO_ASSIGN_OR_RETURN(auto library, factory.make(group_->membership(), meeting));
  // Waits for all, as a rank that has made its library may leave at once while others still connect
  // to it.
  const std::byte made{};
  RankVector<std::byte> all_made(size());
  STRETTO_RETURN_IF_ERROR(set_up_all_gather({&made, 1}, all_made, until));
  const std::shared_ptr<CollectiveLibrary> shared = std::move(library);
  if (DeviceLibrary* const devices = shared->for_devices()) {
    device_library_ = std::shared_ptr<DeviceLibrary>(shared, devices);
    devices_ = devices;
  }
  const group::EngineLock held(*engine_);
  group_->use_library(shared);
  return {};
}

// Runs before all ranks meet, so that memory which a peer allocates later finds this rank's device.
Status ScheduledBackend::use_device(const Deadline& until) {
  if (!options_.open_device) return {};
  if (options_.device == nullptr) {
    STRETTO_ASSIGN_OR_RETURN(options_.device, options_.open_device(local_rank()));
    const group::EngineLock held(*engine_);
    engine_->transport().memory().use_device(options_.device);
  }
  STRETTO_ASSIGN_OR_RETURN(auto queue, options_.device->make_queue());
  STRETTO_ASSIGN_OR_RETURN(auto devices, number_devices(until));
  devices_ = options_.device.get();
  const group::EngineLock held(*engine_);
  group_->use_device(std::move(queue), std::move(devices));
  return {};
}

// Per rank, the first rank that has the same device.
Result<std::vector<std::int32_t>> ScheduledBackend::number_devices(const Deadline& until) {
  STRETTO_ASSIGN_OR_RETURN(const auto own, options_.device->id());
  std::vector<std::decay_t<decltype(own)>> seen(static_cast<std::size_t>(size()));
  STRETTO_RETURN_IF_ERROR(set_up_all_gather(own, std::as_writable_bytes(std::span(seen)), until));
  std::vector<std::int32_t> numbers;
  for (const auto& device : seen) {
    numbers.push_back(static_cast<std::int32_t>(std::ranges::find(seen, device) - seen.begin()));
  }
  return numbers;
}

// Sleeps only briefly, as a library wakes no thread.
Status ScheduledBackend::wait_in_meeting(const std::function<bool()>& done, const Deadline& until) {
  constexpr auto kNap = std::chrono::milliseconds(1);
  Status failure;
  const auto ended = [&]() STRETTO_REQUIRES(group::engine_held) {
    failure = group_->failure();
    return !failure.ok() || done();
  };
  while (!engine_->drive(ended, Deadline::after(std::min<Duration>(kNap, until.remaining())))) {
    if (!until.passed()) continue;
    return Status(StatusCode::timeout, "the library has not connected the ranks in time");
  }
  return failure;
}

// Called if this rank cannot take part: ends the group for all, with the reason.
Status ScheduledBackend::fail_set_up(const Status& why) {
  group::EngineLock held(*engine_);
  const Rank self = engine_->transport().rank();
  group_->fail({why.code(),
                fmt::format("rank {} could not set up the group: {}", self.value(), why.message()),
                why.rank().value_or(self)},
               true);
  engine_->run_continuations(held);
  return group_->failure();
}

std::size_t ScheduledBackend::window_bytes() const {
  return execution::Window::bytes(ranks_of_host().size() < group_->membership().members.size());
}

// Makes this rank's window, if other ranks can map it, and returns what to tell them.
Result<WindowNotice> ScheduledBackend::make_window(execution::Windows& windows) {
  const execution::Membership& membership = group_->membership();
  const std::vector<Rank> of_host = ranks_of_host();
  group::EngineLock held(*engine_);
  transport::Endpoint& transport = engine_->transport();
  const bool reaches_all = std::ranges::all_of(
      membership.members, [&](Rank member) { return transport.memory().reaches(member); });
  // True for a rank that is alone on its host.
  const bool reaches_host = std::ranges::all_of(of_host, [&](Rank r) {
    return r == rank() || transport.memory().reaches(membership.job_rank(r));
  });
  const bool reaches_all_private = std::ranges::all_of(membership.members, [&](Rank member) {
    return member == transport.rank() || transport.memory().reaches_private(member);
  });
  held.unlock();
  if (reaches_all || (reaches_host && of_host.size() > 1)) {
    STRETTO_ASSIGN_OR_RETURN(windows.own, allocate_region(window_bytes()));
  }
  return WindowNotice{.offset_bytes = windows.own.address.offset_bytes,
                      .region = windows.own.address.region,
                      .reaches_all = reaches_all,
                      .reaches_host = reaches_host,
                      .single_copy = reaches_all_private ? options_.single_copy : SingleCopy::off,
                      .lacks_cores = !engine_->has_core_for_each_rank(),
                      .cache_bytes = kernel::last_level_cache_bytes(),
                      .remeasures = options_.measure_links && options_.measure_links->refresh};
}

// Maps the windows of the team. Waits for their regions, which do not arrive together with the
// notices.
Status ScheduledBackend::map_windows(execution::Windows& windows,
                                     const RankVector<WindowNotice>& notices,
                                     const Deadline& until) {
  windows.of.resize(notices.size());
  transport::Endpoint& transport = engine_->transport();
  transport::ShortageTimer timer;
  Status shortage;
  std::size_t mapped = 0;
  const auto map_all = [&]() STRETTO_REQUIRES(group::engine_held) {
    for (; mapped < windows.team.size(); ++mapped) {
      const Rank member = windows.team[mapped];
      const transport::RemoteAddress address{notices[member].region, notices[member].offset_bytes};
      const Rank job_rank = group_->membership().job_rank(member);
      std::byte* window = transport.memory().resolve(job_rank, address, window_bytes());
      if (window == nullptr) {
        shortage = timer.judge(transport.memory().find_shortage(job_rank, address));
        return !shortage.ok() || !group_->failure().ok();
      }
      windows.of[member] = reinterpret_cast<execution::Window*>(window);
      windows.held.push_back(transport.memory().hold(job_rank, address));
    }
    return true;
  };
  if (engine_->drive(map_all, until)) return shortage;
  return status_of(StatusCode::timeout, "the shared memory of rank {} never arrived",
                   group_->membership().job_rank(windows.team[mapped]).value());
}

// Lets the ranks of the group map each other's windows: those of all ranks if all can; else those
// of each host if that works on every host. Collective.
Status ScheduledBackend::share_windows(const Deadline& until) {
  // With a device, even a single rank needs a window.
  if ((size() == 1 && !options_.open_device) || !options_.share_windows) return {};
  execution::Windows windows;
  STRETTO_ASSIGN_OR_RETURN(WindowNotice notice, make_window(windows));
  RankVector<WindowNotice> notices(size());
  STRETTO_RETURN_IF_ERROR(set_up_all_gather(std::as_bytes(std::span(&notice, 1)),
                                            std::as_writable_bytes(std::span(notices)), until));
  if (options_.measure_links) {  // One rank's refresh holds for all, as they measure together.
    options_.measure_links->refresh = std::ranges::any_of(notices, &WindowNotice::remeasures);
  }
  if (std::ranges::all_of(notices, &WindowNotice::reaches_all)) {
    for (std::int32_t r = 0; r < size(); ++r) windows.team.push_back(r);
  } else if (std::ranges::all_of(notices, &WindowNotice::reaches_host) && some_share_a_host()) {
    windows.team = ranks_of_host();
  } else {
    return {};
  }
  windows.oversubscribed = std::ranges::any_of(notices, &WindowNotice::lacks_cores);
  windows.single_copy = std::ranges::min(notices, {}, &WindowNotice::single_copy).single_copy;
  windows.cache_bytes = std::ranges::min(notices, {}, &WindowNotice::cache_bytes).cache_bytes;
  if (windows.team.size() > 1 || size() == 1) {
    STRETTO_RETURN_IF_ERROR(map_windows(windows, notices, until));
  }
  // A rank may leave the group at once, and its window must stay until all ranks have mapped it.
  const std::byte mapped{};
  std::vector<std::byte> all_mapped(notices.size());
  STRETTO_RETURN_IF_ERROR(set_up_all_gather(std::span(&mapped, 1), all_mapped, until));
  const group::EngineLock held(*engine_);
  group_->use_windows(std::move(windows));
  return {};
}

// If all ranks share memory, algorithms are chosen by the cost of a sync and not of messages. If
// ranks share cores, syncs are not measured either.
Status ScheduledBackend::measure_links(Communicator& world) {
  if (!options_.measure_links || size() == 1) return {};
  const LinkCacheOptions& cache = *options_.measure_links;  // As all ranks have agreed.
  group::EngineLock held(*engine_);
  const bool is_one_team = group_->is_one_team();
  const bool syncs = group_->planner()->setting().selector.has_core_for_each_rank;
  held.unlock();
  group::LinkModel links;
  if (!is_one_team || cache.refresh) {
    group::HostList hosts = options_.group.hosts;
    hosts.resize(static_cast<std::size_t>(size()));
    STRETTO_ASSIGN_OR_RETURN(links, agree_on_links(world, hosts, cache));
  }
  if (is_one_team && syncs) {
    const auto choose_by = [&](const group::MemoryModel& memory) {
      const group::EngineLock again(*engine_);
      group_->use_links({.memory = memory});
    };
    STRETTO_RETURN_IF_ERROR(agree_on_memory(world, cache, choose_by, links));
  }
  options_.group.links = std::move(links);  // For groups made of this one, too.
  held.lock();
  group_->use_links(options_.group.links);
  return {};
}

Work ScheduledBackend::submit(std::span<CollectiveCall> calls, const std::string& algorithm,
                              const std::optional<Duration>& timeout) {
  if (devices_ != nullptr) {
    auto ends =
        go_by_memory(calls, {rank(), job_rank(rank()), algorithm, *devices_, maps_devices()});
    for (CollectiveCall& each : calls) lend_scratch(each);
    if (!ends.empty()) {
      const Collective last = calls.back().operation.collective;
      return make_captured(submit_queued(calls, algorithm, timeout), last, std::move(ends));
    }
  }
  const CollectiveCall& call = calls.front();
  const bool plain = calls.size() == 1 && !call.shares && !call.packing && algorithm.empty() &&
                     options_.algorithm.empty();
  const bool runs_inline = std::max(call.input.size(), call.output.size()) <= kInlineBytes;
  if (!plain || !runs_inline) return submit_queued(calls, algorithm, timeout);
  std::shared_ptr<group::PendingOperation> parked;
  std::uint32_t number = 0;
  const auto outcome = group_->fast_lane().run({.operation = call.operation,
                                                .input = call.input.data(),
                                                .output = call.output.data(),
                                                .timeout = time_for(timeout)},
                                               parked, number);
  using Outcome = group::FastLane::Outcome;
  if (outcome == Outcome::ended) {
    return Work(call.operation.collective, number);
  }
  if (outcome == Outcome::refused) return submit_queued(calls, algorithm, timeout);
  group::EngineLock held(*engine_);
  group_->fast_lane().adopt_parked();
  engine_->run_continuations(held);
  return Work(std::move(parked));
}

Work ScheduledBackend::submit_queued(std::span<CollectiveCall> calls, const std::string& algorithm,
                                     const std::optional<Duration>& timeout) {
  const Deadline ends = deadline(timeout);
  // Declared before the lock, so that an exception abandons these after the lock is released.
  Work last;
  std::vector<Work> parts;
  std::size_t bytes = 0;
  group::EngineLock held(*engine_);
  for (CollectiveCall& call : calls) {
    group::Group::Submission submission{.operation = call.operation,
                                        .input = call.input,
                                        .output = call.output,
                                        .shares = call.shares,
                                        .algorithm = algorithm,
                                        .deadline = ends,
                                        .packing = std::move(call.packing)};
    auto part = submit_locked(submission, held);
    bytes += std::max(submission.input.size(), submission.output.size());
    // Earlier calls already use the caller's buffers, and other ranks wait for all calls.
    if (!part.ok() && !parts.empty()) group_->fail(part.status(), true);
    if (!part.ok()) engine_->run_continuations(held);
    last = Work(std::move(part).or_throw());
    // Runs inline once, after the last operation: all of a list together may be long, though each
    // is short.
    if (&call == &calls.back()) group_->run_inline(bytes);
    if (calls.size() > 1) parts.push_back(std::exchange(last, Work()));
  }
  engine_->run_continuations(held);
  held.unlock();
  // A device begins when all ranks have entered, and their messages may have arrived by now.
  // Without a progress thread, the caller may take no other turn before it waits for the device.
  const bool is_for_device = is_on_device(calls.back().operation.algorithm);
  if (is_for_device && !engine_->has_progress_thread()) (void)engine_->turn();
  return parts.empty() ? std::move(last) : Work::all(std::move(parts));
}

Result<std::shared_ptr<group::Operation>> ScheduledBackend::submit_locked(
    group::Group::Submission& submission, group::EngineLock& held) {
  // It is no error if the default algorithm does not exist for this collective.
  const bool by_default = submission.algorithm.empty() &&
                          submission.operation.layout != kSetUpLayout &&
                          !is_on_device(submission.operation.algorithm);
  if (by_default) submission.algorithm = options_.algorithm;
  Result<std::shared_ptr<group::PendingOperation>> operation = group_->submit(submission, held);
  const bool refused = operation.status().code() == StatusCode::invalid_argument;
  if (refused && by_default && !options_.algorithm.empty()) {
    submission.algorithm = {};
    operation = group_->submit(submission, held);
  }
  if (!operation.ok() && lacks_scratch(submission, operation.status().code())) {
    STRETTO_RETURN_IF_ERROR(lend_scratch(*submission.packing, held));
    operation = group_->submit(submission, held);
  }
  if (operation.ok()) return std::shared_ptr<group::Operation>(std::move(*operation));
  return operation.status().code() == StatusCode::invalid_argument
             ? operation.status().with_context(fmt::format("rank {}", rank().value()))
             : operation.status();
}

Work ScheduledBackend::exchange(std::span<const Transfer> messages,
                                const std::optional<Duration>& timeout) {
  if (devices_) refuse_device_memory(messages, {rank(), job_rank(rank()), {}, *devices_});
  const Deadline ends = deadline(timeout);
  const auto post = [&](const Transfer& message) STRETTO_REQUIRES(group::engine_held) {
    const View& in = message.incoming;
    const ConstView what =
        message.sends ? message.outgoing : ConstView{in.data, in.count, in.dtype};
    return group_->submit({.sends = message.sends,
                           .peer = message.peer,
                           .tag = message.tag,
                           .operation = {.collective = Collective::point_to_point,
                                         .dtype = what.dtype,
                                         .count = what.count},
                           .outgoing = message.outgoing.span(),
                           .incoming = message.incoming.span(),
                           .deadline = ends});
  };
  std::vector<Work> parts;  // If they are abandoned, the lock is released.
  if (messages.size() > 1) parts.reserve(messages.size());
  group::EngineLock held(*engine_);
  if (messages.size() == 1) {
    auto operation = post(messages.front()).or_throw();
    engine_->run_continuations(held);
    return Work(std::move(operation));
  }
  // Receives first, so that arriving messages find their buffers at once.
  for (const bool sends : {false, true}) {
    for (const Transfer& message : messages) {
      if (message.sends == sends) parts.emplace_back(post(message).or_throw());
    }
  }
  engine_->run_continuations(held);
  held.unlock();
  return Work::all(std::move(parts));
}

void ScheduledBackend::abort(const std::string& reason) {
  group::EngineLock held(*engine_);
  group_->abort(ended_because_it("aborted: " + reason));
  engine_->run_continuations(held);
}

Status ScheduledBackend::ended_because_it(std::string_view did) const {
  const Rank self = job_rank(rank());
  return {StatusCode::aborted, fmt::format("rank {} {}", self.value(), did), self};
}

bool ScheduledBackend::has_failed() const {
  if (!engine_->is_owner_process()) return false;  // In a forked child, all calls are refused.
  const group::EngineLock held(*engine_);
  return !group_->failure().ok();
}

std::string ScheduledBackend::link_name(Rank other) const {
  const group::EngineLock held(*engine_);
  return engine_->transport().link_name(group_->membership().job_rank(other));
}

Explanation ScheduledBackend::explain(const OperationDescriptor& operation) const {
  group::EngineLock held(*engine_);
  const std::shared_ptr<const group::Planner> planner = group_->planner();
  held.unlock();
  Explanation explanation = planner->explain(operation, options_.algorithm);
  explanation.lock_free_runs = group_->fast_lane().ended_count();
  return explanation;
}

}  // namespace stretto::communicator
