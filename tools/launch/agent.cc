// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "stretto/base/environment.h"
#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/poll.h"
#include "tools/launch/line_reader.h"
#include "tools/launch/local_host.h"
#include "tools/launch/messages.h"
#include "tools/launch/output_relay.h"

namespace stretto::launch {
namespace {

// Time between two signs of life.
constexpr Duration kSignPause = std::chrono::seconds(5);

Status launcher_gone() {
  if (!is_readable(STDIN_FILENO)) return {};
  return status_of(StatusCode::system, "ended by the launcher before any rank had been started");
}

int say_failure(const Status& status) {
  write_fully(STDERR_FILENO, fmt::format("stretto run: {}\n", status.message()));
  return 1;
}

class Agent {
 public:
  int run();

 private:
  Result<Order> read_order();
  Status start();
  void serve();
  void follow_orders();
  void give_sign() const;
  bool forward_events();
  void tell(const RankEvent& event) const { write_fully(events_.get(), format_event(event)); }

  LineReader orders_;
  Order order_;
  OutputRelay relay_;
  // Lines written here go to standard error, each behind the marker, once the relay runs.
  FileDescriptor events_;
  OutputRelay events_relay_;
  std::unique_ptr<LocalHost> host_;
  Status lost_;  // Why nobody looks after the ranks any more, or what did not end.
};

int Agent::run() {
  Result<Order> order = read_order();
  if (!order.ok()) return say_failure(order.status());
  order_ = std::move(*order);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return say_failure(system_status("pipe2"));
  events_ = FileDescriptor(ends[1]);
  events_relay_.add_marking(FileDescriptor(ends[0]), STDERR_FILENO, order_.marker);
  const Status status = start();
  if (status.ok()) {
    serve();
  } else {
    tell({.kind = RankEvent::Kind::not_started, .text = std::string(status.message())});
  }
  const Status ended = host_ == nullptr ? Status() : host_->end();
  if (lost_.ok()) lost_ = ended;
  events_.reset();
  relay_.finish();
  events_relay_.finish();
  if (!lost_.ok()) return say_failure(lost_);
  return status.ok() ? 0 : 1;
}

Result<Order> Agent::read_order() {
  ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  while (true) {
    if (const auto line = orders_.next()) return parse_order(*line);
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    ::poll(&entry, 1, -1);
    if (!orders_.fill(STDIN_FILENO)) {
      return status_of(StatusCode::invalid_argument,
                       "--agent is how a launcher starts ranks on other hosts; its standard input "
                       "has ended before it said which");
    }
  }
}

Status Agent::start() {
  for (const std::string& entry : order_.environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
  configure_log(process_environment(), "stretto run");
  if (::chdir(order_.directory.c_str()) != 0) {
    return system_status("the directory " + order_.directory);
  }
  STRETTO_ASSIGN_OR_RETURN(host_, LocalHost::create(order_.options, relay_, launcher_gone));
  host_->promise_obituaries_of_all();
  STRETTO_RETURN_IF_ERROR(events_relay_.start());
  STRETTO_RETURN_IF_ERROR(relay_.start());
  events_relay_.carry_log();
  return host_->start();
}

void Agent::serve() {
  Deadline sign = Deadline::after(kSignPause);
  while (true) {
    if (sign.passed()) {
      give_sign();
      sign = Deadline::after(kSignPause);
    }
    std::array<pollfd, 2> entries{{{STDIN_FILENO, POLLIN, 0}, {host_->fd(), POLLIN, 0}}};
    const int wait_ms = poll_milliseconds(sign.remaining());
    if (::poll(entries.data(), entries.size(), wait_ms) < 0) continue;
    if (entries[0].revents != 0) {
      const bool connected = orders_.fill(STDIN_FILENO);
      follow_orders();
      if (!connected) return;
    }
    if (!forward_events()) return;
  }
}

// Sends an empty line, which the launcher ignores: an ssh server only notices a dead connection
// when it has something to send. Sends none while the last one is unread.
void Agent::give_sign() const {
  int waiting_bytes = 0;
  const bool is_read = ::ioctl(events_.get(), FIONREAD, &waiting_bytes) == 0 && waiting_bytes == 0;
  if (is_read) write_fully(events_.get(), "\n");
}

void Agent::follow_orders() {
  while (const auto line = orders_.next()) {
    const int signal = parse_number<int>(*line).value_or(0);
    if (signal > 0) {
      host_->send(signal);
      continue;
    }
    const Result<Obituary> obituary = parse_obituary(*line);
    if (obituary.ok()) host_->tell_obituary(obituary.value().rank, obituary.value().how);
    const Result<RestartOrder> restart = parse_restart(*line);
    if (restart.ok()) host_->restart(restart.value().local_rank, restart.value().number);
  }
}

// Returns false after the last event: the guardian has failed, or a rank could not be started.
bool Agent::forward_events() {
  while (true) {
    const Result<std::optional<RankEvent>> event = host_->next();
    if (!event.ok()) {
      lost_ = event.status();
      return false;
    }
    if (!event.value()) return true;
    tell(*event.value());
    if (event.value()->kind == RankEvent::Kind::not_started) return false;
  }
}

}  // namespace

int serve_launcher() {
  struct sigaction action {};
  // The connection may end at any time; then nobody needs the rest of the output.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);
  return Agent().run();
}

}  // namespace stretto::launch
