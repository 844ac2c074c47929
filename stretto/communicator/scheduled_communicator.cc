// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/scheduled_communicator.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/random.h"

namespace stretto::communicator {
namespace {

constexpr std::uint64_t kWorldGroup = 1;

// Ranks that make the same groups in the same order give them the same numbers, without asking.
std::uint64_t group_number(std::uint64_t parent, std::uint64_t made,
                           const std::vector<Rank>& ranks) {
  std::uint64_t number = Random(parent).next() ^ Random(made).next();
  for (const Rank rank : ranks) {
    number = Random(number ^ static_cast<std::uint64_t>(rank.value())).next();
  }
  return number;
}

// What a rank tells the others about its window.
struct WindowNotice {
  std::uint64_t offset_bytes = 0;
  std::uint32_t region = 0;
  std::uint32_t reaches_all = 0;
};
static_assert(sizeof(WindowNotice) == 16, "travels as it lies in memory");

template <class T>
View bytes_view(T* data, std::size_t count) {
  return {reinterpret_cast<std::byte*>(data), count * sizeof(T), DType::u8};
}

void check(bool holds, const std::string& otherwise) {
  if (!holds) throw InvalidArgument(Status(StatusCode::invalid_argument, otherwise));
}

void check_op(ReduceOp op, DType dtype) {
  if (supports(op, dtype)) return;
  check(false, fmt::format("{} has no meaning for {}; possible are: {}", name(op), name(dtype),
                           supported_ops(dtype)));
}

bool overlap(ConstView a, View b) {
  const std::less<const std::byte*> before;
  return a.bytes() > 0 && b.bytes() > 0 && before(a.data, b.data + b.bytes()) &&
         before(b.data, a.data + a.bytes());
}

void check_overlap(ConstView input, View output, const std::byte* in_place_input) {
  check(input.data == in_place_input || !overlap(input, output),
        "input and output overlap without being in place");
}

}  // namespace

ScheduledCommunicator::ScheduledCommunicator(std::shared_ptr<Engine> engine, Membership membership,
                                             Options options)
    : engine_(std::move(engine)), options_(std::move(options)) {
  const auto held = engine_->lock();
  group_ = std::make_unique<Group>(engine_, std::move(membership));
}

ScheduledCommunicator::~ScheduledCommunicator() {
  const auto held = engine_->lock();
  group_.reset();
}

Result<std::unique_ptr<Communicator>> ScheduledCommunicator::make_world(
    std::shared_ptr<Engine> engine, Options options) {
  Membership everyone{.group = kWorldGroup, .rank = engine->transport().rank(), .members = {}};
  for (int r = 0; r < engine->transport().size(); ++r) everyone.members.push_back(r);
  std::unique_ptr<ScheduledCommunicator> world(
      new ScheduledCommunicator(std::move(engine), std::move(everyone), std::move(options)));
  try {
    STRETTO_RETURN_IF_ERROR(world->share_windows());
  } catch (const Error& error) {  // The operations in it speak as the public face does.
    return error.status();
  }
  return std::unique_ptr<Communicator>(std::move(world));
}

// Lets the ranks of the group map each other's windows, if they can. Collective.
Status ScheduledCommunicator::share_windows() {
  if (size() == 1) return {};
  const auto& members = group_->membership().members;
  Windows windows;
  WindowNotice notice;
  {
    const auto held = engine_->lock();
    transport::Transport& transport = engine_->transport();
    const bool reaches_all = std::all_of(members.begin(), members.end(), [&](Rank member) {
      return transport.shares_memory(member);
    });
    Result<transport::Transport::Region> region =
        reaches_all ? transport.allocate(Window::bytes()) : transport::Transport::Region{};
    if (!region.ok()) return region.status();
    windows.own = std::move(*region);
    notice = {.offset_bytes = windows.own.address.offset_bytes,
              .region = windows.own.address.region,
              .reaches_all = reaches_all ? 1u : 0u};
  }
  std::vector<WindowNotice> notices(members.size());
  STRETTO_RETURN_IF_ERROR(
      all_gather(bytes_view(&notice, 1), bytes_view(notices.data(), notices.size())).wait_status());
  const bool all = std::all_of(notices.begin(), notices.end(),
                               [](const WindowNotice& n) { return n.reaches_all != 0; });
  if (!all) return {};
  // The regions themselves arrive on another way than the notices.
  const auto map_all = [&] {
    for (std::size_t i = windows.of.size(); i < members.size(); ++i) {
      const transport::RemoteAddress address{notices[i].region, notices[i].offset_bytes};
      std::byte* window = engine_->transport().resolve(members[i], address, Window::bytes());
      if (window == nullptr) return !group_->failure().ok();
      windows.of.push_back(reinterpret_cast<Window*>(window));
      windows.held.push_back(engine_->transport().hold(members[i], address));
    }
    return true;
  };
  if (!engine_->drive(map_all, deadline(std::nullopt))) {
    return status_of(StatusCode::timeout, "the shared memory of a rank of the group never arrived");
  }
  // A rank may leave the group at once; its window must not go before everybody has mapped it.
  STRETTO_RETURN_IF_ERROR(barrier({}).wait_status());
  const auto held = engine_->lock();
  group_->use_windows(std::move(windows));
  return {};
}

Deadline ScheduledCommunicator::deadline(const std::optional<Duration>& timeout) const {
  return Deadline::after(timeout.value_or(options_.timeout));
}

Work ScheduledCommunicator::submit(Group::Submission submission, const std::string& algorithm,
                                   const std::optional<Duration>& timeout) {
  submission.algorithm = algorithm.empty() ? std::string_view(options_.algorithm) : algorithm;
  // A default algorithm that does not exist for this collective is no error; a named one is.
  const bool named = !algorithm.empty();
  submission.deadline = deadline(timeout);
  const auto held = engine_->lock();
  Result<std::shared_ptr<PendingOperation>> operation = group_->submit(submission);
  if (!operation.ok() && !named && operation.status().code() == StatusCode::invalid_argument) {
    submission.algorithm = {};
    operation = group_->submit(submission);
  }
  if (!operation.ok()) operation.status().or_throw();
  return Work(std::move(*operation));
}

Work ScheduledCommunicator::all_reduce_views(ConstView input, View output,
                                             const AllReduceOptions& options) {
  check(input.dtype == output.dtype && input.count == output.count,
        fmt::format("all_reduce: the input is {}[{}], the output {}[{}]", name(input.dtype),
                    input.count, name(output.dtype), output.count));
  check_op(options.op, input.dtype);
  check_overlap(input, output, output.data);
  return submit({.operation = {.collective = Collective::all_reduce,
                               .op = options.op,
                               .dtype = input.dtype,
                               .count = input.count},
                 .input = input.span(),
                 .output = output.span()},
                options.algorithm, options.timeout);
}

Work ScheduledCommunicator::reduce_scatter_views(ConstView input, View output,
                                                 const ReduceScatterOptions& options) {
  const auto ranks = static_cast<std::size_t>(size());
  check(input.dtype == output.dtype && input.count == output.count * ranks,
        fmt::format("reduce_scatter on {} ranks: the input is {}[{}], the output {}[{}]", ranks,
                    name(input.dtype), input.count, name(output.dtype), output.count));
  check_op(options.op, input.dtype);
  const std::size_t offset = static_cast<std::size_t>(rank()) * output.bytes();
  check_overlap(input, output, output.data - offset);
  return submit({.operation = {.collective = Collective::reduce_scatter,
                               .op = options.op,
                               .dtype = input.dtype,
                               .count = input.count},
                 .input = input.span(),
                 .output = output.span()},
                options.algorithm, options.timeout);
}

Work ScheduledCommunicator::all_gather_views(ConstView input, View output,
                                             const AllGatherOptions& options) {
  const auto ranks = static_cast<std::size_t>(size());
  check(input.dtype == output.dtype && output.count == input.count * ranks,
        fmt::format("all_gather on {} ranks: the input is {}[{}], the output {}[{}]", ranks,
                    name(input.dtype), input.count, name(output.dtype), output.count));
  check_overlap(input, output, output.data + static_cast<std::size_t>(rank()) * input.bytes());
  return submit({.operation = {.collective = Collective::all_gather,
                               .dtype = input.dtype,
                               .count = output.count},
                 .input = input.span(),
                 .output = output.span()},
                options.algorithm, options.timeout);
}

Work ScheduledCommunicator::broadcast_view(View data, const BroadcastOptions& options) {
  check(options.root >= 0 && options.root < size(),
        fmt::format("broadcast: root {} is not one of {} ranks", options.root.value(), size()));
  return submit({.operation = {.collective = Collective::broadcast,
                               .dtype = data.dtype,
                               .root = options.root.value(),
                               .count = data.count},
                 .input = data.span(),
                 .output = data.span()},
                options.algorithm, options.timeout);
}

Work ScheduledCommunicator::barrier(const BarrierOptions& options) {
  return submit({.operation = {.collective = Collective::barrier}}, {}, options.timeout);
}

Work ScheduledCommunicator::submit_message(Group::Message message,
                                           const std::optional<Duration>& timeout) {
  check(message.peer >= 0 && message.peer < size() && message.peer != rank(),
        fmt::format("send/recv on rank {}: rank {} is not one of the other {} ranks",
                    rank().value(), message.peer.value(), size() - 1));
  check(message.tag >= 0, fmt::format("send/recv: tag {} is negative", message.tag));
  message.deadline = deadline(timeout);
  const auto held = engine_->lock();
  return Work(std::static_pointer_cast<Operation>(group_->submit(message)));
}

Work ScheduledCommunicator::send_view(ConstView data, const SendOptions& options) {
  return submit_message({.sends = true,
                         .peer = options.to,
                         .tag = options.tag,
                         .operation = {.collective = Collective::point_to_point,
                                       .dtype = data.dtype,
                                       .count = data.count},
                         .outgoing = data.span()},
                        options.timeout);
}

Work ScheduledCommunicator::recv_view(View data, const RecvOptions& options) {
  return submit_message({.sends = false,
                         .peer = options.from,
                         .tag = options.tag,
                         .operation = {.collective = Collective::point_to_point,
                                       .dtype = data.dtype,
                                       .count = data.count},
                         .incoming = data.span()},
                        options.timeout);
}

std::unique_ptr<Communicator> ScheduledCommunicator::new_group(std::vector<Rank> ranks) {
  check(!ranks.empty(), "new_group: the list of ranks is empty");
  Membership membership{.group = 0, .rank = -1, .members = {}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    check(ranks[i] >= 0 && ranks[i] < size(),
          fmt::format("new_group: rank {} is not one of {} ranks", ranks[i].value(), size()));
    check(std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) ==
              ranks.begin() + static_cast<std::ptrdiff_t>(i),
          fmt::format("new_group: rank {} is listed twice", ranks[i].value()));
    membership.members.push_back(group_->membership().job_rank(ranks[i]));
    if (ranks[i] == rank()) membership.rank = static_cast<std::int32_t>(i);
  }
  membership.group = group_number(group_->id(), ++groups_made_, ranks);
  // Equal numbers mean equal lists.
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(size()));
  all_gather(bytes_view(&membership.group, 1), bytes_view(numbers.data(), numbers.size())).wait();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == membership.group) continue;
    throw Mismatch(status_of(StatusCode::mismatch,
                             "new_group: rank {} listed other ranks than rank {} did", i,
                             rank().value()));
  }
  if (membership.rank < 0) return nullptr;
  std::unique_ptr<ScheduledCommunicator> group(
      new ScheduledCommunicator(engine_, std::move(membership), options_));
  group->share_windows().or_throw();
  return group;
}

Memory ScheduledCommunicator::allocate_bytes(std::size_t bytes) {
  const auto held = engine_->lock();
  Result<transport::Transport::Region> region = engine_->transport().allocate(bytes);
  region.status().or_throw();
  return Memory(std::move(region->owner), region->bytes);
}

void ScheduledCommunicator::abort(const std::string& reason) {
  const auto held = engine_->lock();
  group_->fail(Status(StatusCode::aborted,
                      fmt::format("rank {} aborted: {}", rank().value(), reason), rank()),
               true);
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

}  // namespace stretto::communicator
