// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The plug-in: ../packets/engine.h on UCX's tag matching. Uses nothing else of stretto.

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/hexadecimal.h"
#include "stretto/base/rank_vector.h"
#include "stretto/transport/packets/engine.h"
#include "stretto/transport/ucx/settings.h"

namespace stretto::transport::packets {
namespace {

using Clock = std::chrono::steady_clock;

// How long the end of an engine waits until the network has what was sent, and then until the
// connections are closed.
constexpr std::chrono::milliseconds kFlushTime(50);
constexpr std::chrono::milliseconds kCloseTime(200);

// Whether nobody has set a setting, so that UCX chooses it.
bool leaves_to_ucx(const ucp_config_t* config, const std::string& name) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return false;
  ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  const bool leaves = is_auto({text, bytes}, name);
  std::free(text);
  return leaves;
}

class UcxEngine final : public Engine {
 public:
  explicit UcxEngine(const EngineOptions& options) : options_(options), peers_(options.size) {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    ucp_get_version(&major, &minor, &release);
    library_ = "UCX " + std::to_string(major) + "." + std::to_string(minor) + "." +
               std::to_string(release);
    check(open(major == 1 && minor <= 13));
  }

  // First hands to the network what has been sent. If that takes too long, everything is kept for
  // as long as the process lives, so that the network or the peer may still take it. Otherwise UCX
  // would drop it, or end the process because its worker still has something to do.
  ~UcxEngine() override {
    const Clock::time_point end = Clock::now() + kFlushTime;
    const ucp_request_param_t flush{};
    ucp_request_param_t close{};
    close.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    close.flags = UCP_EP_CLOSE_FLAG_FORCE;
    bool is_done = true;
    for (Peer& peer : peers_) {
      if (peer.endpoint != nullptr && peer.failure.empty()) {
        is_done = finish(ucp_ep_flush_nbx(peer.endpoint, &flush), end) && is_done;
      }
    }
    if (!is_done) return;
    for (Peer& peer : peers_) {
      if (peer.endpoint == nullptr) continue;
      is_done = finish(ucp_ep_close_nbx(peer.endpoint, &close), end + kCloseTime) && is_done;
    }
    if (!is_done) return;
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucp_cleanup(context_);
  }

  const char* library() const override { return library_.c_str(); }
  const char* failure() const override { return failure_.c_str(); }
  const char* failure(int peer) const override { return peers_[peer].failure.c_str(); }
  const char* address() const override { return address_.c_str(); }

  void connect(const char* const* addresses) override {
    for (int r = 0; r < options_.size; ++r) {
      peers_[r].address = from_hex(addresses[r]).value_or(std::vector<std::uint8_t>());
    }
  }

  // A synchronous send: it ends when the peer has matched it. Else the goodbye of a rank, which
  // goes another way, could overtake what it has sent before.
  int send(int peer, const std::byte* bytes, std::size_t count) override {
    const int number = free_operation(peer);
    if (!open_endpoint(peer)) return number;
    const ucp_request_param_t how{};
    keep(number, ucp_tag_send_sync_nbx(peers_[peer].endpoint, bytes, count,
                                       static_cast<ucp_tag_t>(options_.rank), &how));
    return number;
  }

  bool progress() override { return ucp_worker_progress(worker_) > 0; }

  bool probe(int& peer, std::size_t& count) override {
    ucp_tag_recv_info_t info{};
    found_ = ucp_tag_probe_nb(worker_, 0, 0, /*remove=*/1, &info);
    if (found_ == nullptr) return false;
    const bool is_rank = info.sender_tag < static_cast<ucp_tag_t>(options_.size);
    peer = found_peer_ = is_rank ? static_cast<int>(info.sender_tag) : -1;
    count = found_count_ = info.length;
    return true;
  }

  int receive(std::byte* into) override {
    const int number = free_operation(found_peer_, /*receives=*/true);
    const ucp_request_param_t how{};
    keep(number, ucp_tag_msg_recv_nbx(worker_, into, found_count_, found_, &how));
    return number;
  }

  bool has_ended(int number) override {
    Operation& operation = operations_[static_cast<std::size_t>(number)];
    if (operation.request != nullptr) {
      const ucs_status_t status = ucp_request_check_status(operation.request);
      if (status == UCS_INPROGRESS) return false;
      ucp_request_free(operation.request);
      operation.request = nullptr;
      fail(operation, status);
    }
    if (operation.is_lost) return false;
    free_.push_back(number);
    return true;
  }

 private:
  struct Peer {
    std::vector<std::uint8_t> address;
    ucp_ep_h endpoint = nullptr;  // Made when something is sent for the first time.
    std::string failure;
  };
  struct Operation {
    void* request = nullptr;  // Null: it has ended.
    int peer = 0;
    bool receives = false;
    bool is_lost = false;  // A packet that never comes.
  };

  // Waits for what a call of UCX has begun. Returns whether it has ended in time.
  bool finish(void* request, Clock::time_point end) {
    if (!UCS_PTR_IS_PTR(request)) return true;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      if (Clock::now() > end) return false;
      ucp_worker_progress(worker_);
    }
    ucp_request_free(request);
    return true;
  }

  ucs_status_t open(bool names_lack_prefixes) {
    ucp_config_t* config = nullptr;
    ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
    if (status != UCS_OK) return status;
    // Packets go eagerly, not by rendezvous: for that, both sides would have to call UCX, but
    // either may be computing.
    if (leaves_to_ucx(config, "UCX_RNDV_THRESH")) {
      status = ucp_config_modify(config, "RNDV_THRESH", "inf");
    }
    // If the network is silent, a blocking connect takes two minutes to fail, within a call of
    // ours. UCX 1.13 knows the setting without the transport's name, later ones with it.
    if (status == UCS_OK) {
      const char* const name = names_lack_prefixes ? "CONN_NB" : "TCP_CONN_NB";
      status = ucp_config_modify(config, name, "y");
    }
    ucp_params_t of_context{};
    of_context.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    of_context.features = UCP_FEATURE_TAG;
    of_context.estimated_num_eps = peers_.size();
    if (status == UCS_OK) status = ucp_init(&of_context, config, &context_);
    ucp_config_release(config);
    if (status != UCS_OK) return status;
    ucp_worker_params_t of_worker{};
    of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    status = ucp_worker_create(context_, &of_worker, &worker_);
    if (status != UCS_OK) return status;
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    status = ucp_worker_get_address(worker_, &address, &bytes);
    if (status != UCS_OK) return status;
    address_ = to_hex({reinterpret_cast<const std::uint8_t*>(address), bytes});
    ucp_worker_release_address(worker_, address);
    return UCS_OK;
  }

  bool open_endpoint(int peer) {
    Peer& to = peers_[peer];
    if (to.endpoint != nullptr || !to.failure.empty()) return to.failure.empty();
    // UCX does not check whether it is given an address.
    if (to.address.empty()) {
      note(to, UCS_ERR_INVALID_ADDR);
      return false;
    }
    ucp_ep_params_t of_endpoint{};
    of_endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                             UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    of_endpoint.address = reinterpret_cast<const ucp_address_t*>(to.address.data());
    // So that what is sent to a rank that has died ends, with an error.
    of_endpoint.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    of_endpoint.err_handler.cb = [](void* of_peer, ucp_ep_h, ucs_status_t status) {
      note(*static_cast<Peer*>(of_peer), status);
    };
    of_endpoint.err_handler.arg = &to;
    note(to, ucp_ep_create(worker_, &of_endpoint, &to.endpoint));
    return to.failure.empty();
  }

  int free_operation(int peer, bool receives = false) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(operations_.size()));
      operations_.emplace_back();
    }
    const int number = free_.back();
    free_.pop_back();
    operations_[static_cast<std::size_t>(number)] = {.peer = peer, .receives = receives};
    return number;
  }
  // Keeps the request that a call of UCX has returned, unless it has ended already.
  void keep(int number, void* request) {
    Operation& operation = operations_[static_cast<std::size_t>(number)];
    if (UCS_PTR_IS_PTR(request)) operation.request = request;
    if (UCS_PTR_IS_ERR(request)) fail(operation, UCS_PTR_STATUS(request));
  }

  static void note(Peer& peer, ucs_status_t status) {
    if (status != UCS_OK && peer.failure.empty()) peer.failure = ucs_status_string(status);
  }
  void fail(Operation& operation, ucs_status_t status) {
    if (status == UCS_OK) return;
    note(peers_[operation.peer], status);
    operation.is_lost = operation.receives;
  }
  void check(ucs_status_t status) {
    if (status != UCS_OK && failure_.empty()) failure_ = ucs_status_string(status);
  }

  EngineOptions options_;
  RankVector<Peer> peers_;
  std::string library_;
  std::string address_;
  std::string failure_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<Operation> operations_;
  std::vector<int> free_;
  ucp_tag_message_h found_ = nullptr;
  int found_peer_ = 0;
  std::size_t found_count_ = 0;
};

}  // namespace
}  // namespace stretto::transport::packets

extern "C" __attribute__((visibility("default"))) stretto::transport::packets::Engine*
stretto_engine_2(const stretto::transport::packets::EngineOptions& options, char* text,
                 std::size_t text_bytes) {
  using namespace stretto::transport::packets;
  auto engine = std::make_unique<UcxEngine>(options);
  if (*engine->failure() == '\0') return engine.release();
  std::snprintf(text, text_bytes, "%s cannot be used: %s", engine->library(), engine->failure());
  return nullptr;
}
