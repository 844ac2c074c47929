// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/rendezvous.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"
#include "stretto/bootstrap/file_store.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/bootstrap/torch_store.h"

namespace stretto::job {
namespace {

// Makes a folder that only this user can enter, or checks that an existing one is such a folder:
// others may be able to write to its parent.
Status make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_status("making the folder " + path);
  }
  struct stat state {};
  if (::lstat(path.c_str(), &state) != 0) return system_status("looking at the folder " + path);
  if (S_ISDIR(state.st_mode) && state.st_uid == ::geteuid() &&
      (state.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
    return {};
  }
  return status_of(StatusCode::refused,
                   "{} is not a folder of this user alone; remove it, or choose another place with "
                   "TMPDIR or STRETTO_RENDEZVOUS",
                   path);
}

}  // namespace

Result<std::unique_ptr<Rendezvous>> Rendezvous::open(const Job& job, Deadline deadline) {
  std::unique_ptr<Rendezvous> made(new Rendezvous(job));
  STRETTO_RETURN_IF_ERROR(made->open_store(deadline));
  const bool in_rounds = job.rendezvous_kind == RendezvousKind::torch_store;
  Status status = in_rounds ? made->enter_round(deadline) : made->arrive(deadline);
  if (status.ok()) status = made->agree_on_key();
  if (status.ok()) return made;
  return made->notes_ == nullptr ? status : made->notes_->abandon(status);
}

Rendezvous::~Rendezvous() {
  const bool gives_up = server_ != nullptr || owns_file_;
  if (gives_up && notes_ != nullptr) notes_->wait_for_late_ranks();
  notes_.reset();
  store_.reset();
  if (server_ != nullptr) wait_for_clients_to_leave();
  (void)end_place().ok();
}

Status Rendezvous::open_store(Deadline deadline) {
  switch (job_.rendezvous_kind) {
    case RendezvousKind::none:
      return status_of(StatusCode::internal, "a job of one rank meets nobody");
    case RendezvousKind::launcher_store:
      return connect("the launcher", deadline);
    case RendezvousKind::rank_0_store: {
      const Status served = job_.rank == 0 ? serve(deadline) : Status();
      if (served.ok()) return connect("rank 0", deadline);
      // Perhaps another process has come as rank 0 and serves there: then arrive() says so.
      const WaitLimit soon = WaitLimit(deadline).within(std::chrono::seconds(1));
      return connect("rank 0", soon.deadline()).ok() ? Status() : served;
    }
    case RendezvousKind::file: {
      const std::string& path = job_.rendezvous_path;
      if (job_.makes_folder) {
        STRETTO_RETURN_IF_ERROR(make_private_folder(path.substr(0, path.rfind('/'))));
      }
      STRETTO_ASSIGN_OR_RETURN(store_, bootstrap::open_file_store(path, deadline));
      return {};
    }
    case RendezvousKind::given_store:
      store_ = std::make_shared<bootstrap::PrefixStore>(job_.store_prefix, job_.store);
      return {};
    case RendezvousKind::torch_store: {
      std::shared_ptr<bootstrap::Store> whole = job_.store;
      if (whole == nullptr) {
        const bootstrap::TorchStoreOptions place{.host = job_.rendezvous.host,
                                                 .port = job_.rendezvous.port};
        STRETTO_ASSIGN_OR_RETURN(whole, bootstrap::connect_torch_store(place, deadline));
      }
      store_ = std::make_shared<bootstrap::PrefixStore>(
          fmt::format("{}{}/", job_.store_prefix, job_.size), std::move(whole));
      return {};
    }
  }
  return status_of(StatusCode::internal, "no such kind of meeting place");
}

Status Rendezvous::connect(const std::string& owner, Deadline deadline) {
  STRETTO_ASSIGN_OR_RETURN(store_, bootstrap::connect_tcp_store({.host = job_.rendezvous.host,
                                                                 .port = job_.rendezvous.port,
                                                                 .key = job_key_,
                                                                 .self = {.rank = job_.rank},
                                                                 .owner = owner},
                                                                deadline));
  return {};
}

Status Rendezvous::serve(Deadline deadline) {
  STRETTO_ASSIGN_OR_RETURN(
      const auto host,
      bootstrap::address_to_bind(job_.rendezvous.host, job_.rendezvous.port, deadline));
  if (host != job_.rendezvous.host) {
    log(LogLevel::info, "{} is a loopback address here: the store listens on all addresses",
        job_.rendezvous.host);
  }
  auto server = bootstrap::StoreServer::start(
      {.host = host, .port = job_.rendezvous.port, .key = job_key_, .self = {.rank = 0}});
  if (!server.ok()) {
    return server.status().with_context(
        fmt::format("rank 0 is to host the store of this job at {}",
                    bootstrap::format_host_port(job_.rendezvous.host, job_.rendezvous.port)));
  }
  server_ = std::move(*server);
  return {};
}

// Note [rounds]
//
// A store of PyTorch's outlives the processes that meet in it: torchrun starts processes again with
// the same store, and a program makes group after group of the same name in it. The store does not
// tell which ranks are dead, and ranks cannot count the meetings by themselves: each agent of
// torchrun counts its own restarts, and a rank that died before it came has counted nothing. So
// rank 0 begins a new round each time it comes: it publishes the round's number, and ends the round
// before unless all ranks have joined there. The others follow the newest number. A rank whose
// place in that round is taken, by its predecessor or by itself, waits for the next round.
//
// No rank relies on what others have written in a round until rank 0 has seen all places taken. A
// newcomer can enter a round of dead ranks only if its place there was free, so that round never
// completes. A rank does not enter a round that has failed: the failure may be of dead ranks, and a
// program may do other things for minutes before its rank 0 comes, so the rank waits for the next
// round as long as the join may take. If a living rank has failed, its launcher ends the ranks that
// wait.

// The keys: "rounds", the number of rounds so far; "round/0", the number of the newest;
// "arrived/R", so that a rank that waits for a round can say which ranks have never come; and
// "N/...", the notes of round N.
Status Rendezvous::enter_round(Deadline deadline) {
  const std::shared_ptr<bootstrap::Store> whole = store_;
  bootstrap::JoinNotes rounds(
      whole,
      bootstrap::JoinNotes::Options{.rank = job_.rank, .size = job_.size, .deadline = deadline});
  STRETTO_RETURN_IF_ERROR(rounds.tell("arrived", ""));
  if (job_.rank == 0) STRETTO_RETURN_IF_ERROR(begin_round(rounds, deadline));
  STRETTO_ASSIGN_OR_RETURN(std::string number, rounds.get("round", 0));
  while (true) {
    notes_.reset();  // What ended the round before has not ended this one.
    store_ = std::make_shared<bootstrap::PrefixStore>(number + "/", whole);
    STRETTO_ASSIGN_OR_RETURN(const auto ended,
                             store_->look_up(bootstrap::kJoinFailureKey, deadline));
    Status status = ended ? bootstrap::decode_join_failure(*ended) : arrive(deadline);
    if (status.ok()) status = notes_->wait_for_arrivals();
    if (status.ok() || job_.rank == 0) return status;
    const std::string why = ended ? "the last round has failed, and rank 0 has not begun another"
                            : notes_->has_place() ? ""
                                                  : "rank 0 has not come again";
    const TimePoint begin = Clock::now();
    auto next = rounds.get_changed("round/0", number, fmt::format("{}: {}", why, status.message()),
                                   why.empty() ? Deadline(begin) : deadline);
    if (next.ok()) {
      number = *std::move(next);
      continue;
    }
    if (why.empty()) return status;
    const double waited = seconds(Clock::now() - begin);
    Status told = status.with_context(fmt::format("{} for {:.0f} s", why, waited));
    if (next.status().code() == StatusCode::timeout) return told;
    return next.status().with_context(told.message());  // For example, the store has ended.
  }
}

// Called by rank 0, whose note is "round/0". It also ends the round before, in which others may be
// waiting.
Status Rendezvous::begin_round(bootstrap::JoinNotes& rounds, Deadline deadline) {
  STRETTO_ASSIGN_OR_RETURN(const auto before, rounds.store().look_up("round/0", deadline));
  STRETTO_ASSIGN_OR_RETURN(const std::int64_t number, rounds.store().add("rounds", 1, deadline));
  STRETTO_RETURN_IF_ERROR(rounds.tell("round", std::to_string(number)));
  if (!before) return {};
  bootstrap::PrefixStore last(*before + "/", store_);
  return bootstrap::report_end(last, 0, "another process has come as this rank");
}

Status Rendezvous::arrive(Deadline deadline) {
  notes_ = std::make_unique<bootstrap::JoinNotes>(
      store_,
      bootstrap::JoinNotes::Options{.rank = job_.rank, .size = job_.size, .deadline = deadline});
  const Status arrived = notes_->arrive();
  if (arrived.ok()) {
    owns_file_ = job_.rendezvous_kind == RendezvousKind::file && job_.rank == 0;
    return agree_on_size();
  }
  if (arrived.code() != StatusCode::refused) return arrived;
  // If the other process of this rank is gone, its end has ended the join, and that is the failure
  // to report. But what a file tells may be of an earlier job.
  const Status ended =
      job_.rendezvous_kind == RendezvousKind::file ? Status() : notes_->failure_in_store();
  if (!ended.ok()) return ended;
  constexpr std::string_view kOfFile =
      "an earlier job may have left it: remove it, and give every job a file of its own";
  constexpr std::string_view kOfRankZero =
      "give every job a port of its own, and every process a rank of its own";
  constexpr std::string_view kOfLauncher =
      "give every process a rank of its own, and join a job once";
  return status_of(StatusCode::refused, "{}; {}", arrived.message(),
                   job_.rendezvous_kind == RendezvousKind::file ? kOfFile
                   : passing()                                  ? kOfRankZero
                                                                : kOfLauncher);
}

Status Rendezvous::agree_on_size() {
  const std::string size = std::to_string(job_.size);
  STRETTO_ASSIGN_OR_RETURN(const auto agreed,
                           store_->compare_set("size", "", size, notes_->limit().deadline()));
  if (agreed == size) return {};
  // A job of the agreed size has no such rank: this process is a stranger there.
  const bool stranger = parse_number<int>(agreed).value_or(0) <= job_.rank;
  if (stranger) STRETTO_RETURN_IF_ERROR(notes_->withdraw());
  return status_of(StatusCode::mismatch,
                   "rank {} says that the job has {} ranks, but who came to {} before says {}",
                   job_.rank, size, store_->describe(), printable(agreed.substr(0, 80)));
}

// Each job and group has a key of its own, even if several share a launcher's key or one that a
// user has set for all. So no connection of one is taken for another's, for example at a port that
// is used again. The key is made of the launcher's key and the nonce that rank 0 leaves in the
// store. Without a launcher's key it is made of the nonce alone, and keeps out strangers who cannot
// read the store.
Status Rendezvous::agree_on_key() {
  bootstrap::JobKey nonce;
  if (job_.rank == 0) {
    STRETTO_ASSIGN_OR_RETURN(nonce, bootstrap::JobKey::generate());
    STRETTO_RETURN_IF_ERROR(notes_->tell("key-nonce", nonce.hexadecimal()));
  } else {
    STRETTO_ASSIGN_OR_RETURN(const std::string text, notes_->get("key-nonce", 0));
    const Result<bootstrap::JobKey> parsed = bootstrap::JobKey::parse(text);
    if (!parsed.ok()) return parsed.status().with_context("the nonce in " + store_->describe());
    nonce = parsed.value();
  }
  key_ = job_key_.for_group(nonce);
  return {};
}

Status Rendezvous::finish() {
  STRETTO_RETURN_IF_ERROR(notes_->finish());
  if (job_.rank == 0) {
    STRETTO_RETURN_IF_ERROR(notes_->end_join());
    return passing() ? end_place() : Status();
  }
  return passing() ? notes_->wait_for_end() : notes_->wait_for_join();
}

// The others read the last notes of rank 0 from its own store.
void Rendezvous::wait_for_clients_to_leave() {
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  while (server_->client_count() > 0 && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status Rendezvous::end_place() {
  server_.reset();
  if (!std::exchange(owns_file_, false)) return {};
  if (::unlink(job_.rendezvous_path.c_str()) == 0) return {};
  return system_status("removing the file " + job_.rendezvous_path);
}

}  // namespace stretto::job
