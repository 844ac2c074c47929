// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "stretto/base/poll.h"
#include "stretto/base/would_block.h"

namespace stretto::bootstrap {
namespace {

// Bytes in the longest record.
constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// How much is read from the socket at once, and the most that one read() or write() moves, as other
// peers need their turn.
constexpr std::size_t kCallBytes = 4 * kRecordBytes;
// The use of the secret: the library compares it on both sides.
constexpr unsigned char kUse[] = "stretto";

// Releases OpenSSL's objects.
struct Release {
  void operator()(SSL* object) const { ::SSL_free(object); }
  void operator()(SSL_SESSION* object) const { ::SSL_SESSION_free(object); }
  void operator()(BIO* object) const { ::BIO_free(object); }
  void operator()(EVP_PKEY_CTX* object) const { ::EVP_PKEY_CTX_free(object); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;

// OpenSSL's text for the first failure since the last call.
std::string take_reason() {
  const unsigned long code = ::ERR_get_error();
  ::ERR_clear_error();
  const char* const reason = code != 0 ? ::ERR_reason_error_string(code) : nullptr;
  return reason != nullptr ? reason : "no reason given";
}

Status library_status(std::string_view what) {
  return status_of(StatusCode::system, "{}: OpenSSL: {}", what, take_reason());
}

// HKDF-SHA256 of the job's key.
Result<std::vector<unsigned char>> derive_secret(const JobKey& key, const std::string& pair) {
  const std::string info = "stretto tls link: " + pair;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(info.data());
  std::vector<unsigned char> secret(32);
  std::size_t length = secret.size();
  const Owned<EVP_PKEY_CTX> owned(::EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  EVP_PKEY_CTX* const context = owned.get();
  if (context == nullptr || ::EVP_PKEY_derive_init(context) <= 0 ||
      ::EVP_PKEY_CTX_set_hkdf_md(context, ::EVP_sha256()) <= 0 ||
      ::EVP_PKEY_CTX_set1_hkdf_key(context, key.bytes().data(),
                                   static_cast<int>(key.bytes().size())) <= 0 ||
      ::EVP_PKEY_CTX_add1_hkdf_info(context, bytes, static_cast<int>(info.size())) <= 0 ||
      ::EVP_PKEY_derive(context, secret.data(), &length) <= 0 || length != secret.size()) {
    return library_status("deriving the secret of a link");
  }
  return secret;
}

// The socket below TLS. OpenSSL's own socket BIO would raise SIGPIPE, and treats an interrupted
// call like one that would block, although no event follows.
struct Wire {
  int socket = -1;
  int error_number = 0;  // errno of the last call, if it failed.
  bool ended = false;
  // True while a key update is written: bytes that the socket does not take are kept and sent
  // before all others. The library would not read until the update is written, while the peer may
  // wait for this side to read.
  bool keeps = false;
  std::vector<char> kept = {};
};

Wire& wire_of(BIO* bio) { return *static_cast<Wire*>(::BIO_get_data(bio)); }

// Returns the result for the library.
int settle(BIO* bio, ssize_t moved, int retry_flag) {
  ::BIO_clear_retry_flags(bio);
  wire_of(bio).error_number = 0;
  if (moved >= 0) return static_cast<int>(moved);
  if (would_block(errno)) {
    ::BIO_set_flags(bio, retry_flag | BIO_FLAGS_SHOULD_RETRY);
  } else {
    wire_of(bio).error_number = errno;
  }
  return -1;
}

ssize_t send_now(int socket, const char* bytes, std::size_t count) {
  ssize_t sent = 0;
  do {
    sent = ::send(socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

int write_wire(BIO* bio, const char* bytes, int count) {
  Wire& wire = wire_of(bio);
  while (!wire.kept.empty() && !wire.keeps) {
    const ssize_t sent = send_now(wire.socket, wire.kept.data(), wire.kept.size());
    if (sent < 0) return settle(bio, sent, BIO_FLAGS_WRITE);
    wire.kept.erase(wire.kept.begin(), wire.kept.begin() + sent);
  }
  const auto wanted = static_cast<std::size_t>(count);
  ssize_t sent = 0;
  if (wire.kept.empty()) sent = send_now(wire.socket, bytes, wanted);
  if (wire.keeps && sent < count && (sent >= 0 || would_block(errno))) {
    wire.kept.insert(wire.kept.end(), bytes + std::max<ssize_t>(sent, 0), bytes + count);
    sent = count;
  }
  return settle(bio, sent, BIO_FLAGS_WRITE);
}

int read_wire(BIO* bio, char* bytes, int count) {
  ssize_t given = 0;
  do {
    given = ::recv(wire_of(bio).socket, bytes, static_cast<std::size_t>(count), MSG_DONTWAIT);
  } while (given < 0 && errno == EINTR);
  if (given == 0) wire_of(bio).ended = true;
  return settle(bio, given, BIO_FLAGS_READ);
}

long control_wire(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return wire_of(bio).ended ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* wire_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made =
        ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stretto wire");
    if (made == nullptr) return made;
    ::BIO_meth_set_write(made, write_wire);
    ::BIO_meth_set_read(made, read_wire);
    ::BIO_meth_set_ctrl(made, control_wire);
    return made;
  }();
  return method;
}

}  // namespace

struct TlsStream::Session {
  Wire wire;
  std::string pair;  // The name of the secret: the two ranks and their roles.
  std::vector<unsigned char> secret;
  bool is_server = false;
  Owned<SSL> ssl;

  Status open();
  static SSL_CTX* context();
  // The secret in the library's form. Null if that fails.
  SSL_SESSION* make_secret_session() const;
  static Session& of(SSL* ssl) { return *static_cast<Session*>(SSL_get_app_data(ssl)); }
  static int offer_secret(SSL* ssl, const EVP_MD* digest, const unsigned char** name,
                          std::size_t* name_bytes, SSL_SESSION** session);
  static int find_secret(SSL* ssl, const unsigned char* name, std::size_t name_bytes,
                         SSL_SESSION** session);
};

// Shared by all connections of this process, and never freed. Null: it could not be made.
SSL_CTX* TlsStream::Session::context() {
  static SSL_CTX* const shared = []() -> SSL_CTX* {
    SSL_CTX* const made = ::SSL_CTX_new(::TLS_method());
    if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(made, TLS1_3_VERSION) != 1 ||
        ::SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256") != 1 ||
        ::SSL_CTX_set_num_tickets(made, 0) != 1) {
      ::SSL_CTX_free(made);
      return nullptr;
    }
    // Each side demands a certificate, but has none to show and trusts none. So they can agree on
    // nothing but the secret. Without SSL_OP_ALLOW_NO_DHE_KEX it is combined with fresh keys
    // (psk_dhe_ke).
    ::SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    (void)::SSL_CTX_set_session_id_context(made, kUse, sizeof(kUse));
    ::SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    (void)::SSL_CTX_clear_options(made, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    (void)SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_read_ahead(made, 1);
    ::SSL_CTX_set_default_read_buffer_len(made, kCallBytes);
    ::SSL_CTX_set_psk_use_session_callback(made, offer_secret);
    ::SSL_CTX_set_psk_find_session_callback(made, find_secret);
    return made;
  }();
  return shared;
}

Status TlsStream::Session::open() {
  ::ERR_clear_error();
  Owned<BIO> bio(wire_method() != nullptr ? ::BIO_new(wire_method()) : nullptr);
  if (context() != nullptr) ssl.reset(::SSL_new(context()));
  if (bio == nullptr || ssl == nullptr) return library_status("setting up TLS");
  ::BIO_set_data(bio.get(), &wire);
  ::BIO_set_init(bio.get(), 1);
  SSL_set_app_data(ssl.get(), this);
  ::SSL_set_bio(ssl.get(), bio.get(), bio.get());
  (void)bio.release();
  if (is_server) {
    ::SSL_set_accept_state(ssl.get());
  } else {
    ::SSL_set_connect_state(ssl.get());
  }
  return {};
}

SSL_SESSION* TlsStream::Session::make_secret_session() const {
  const unsigned char number_of_cipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256.
  const SSL_CIPHER* const cipher = ::SSL_CIPHER_find(ssl.get(), number_of_cipher);
  Owned<SSL_SESSION> made(::SSL_SESSION_new());
  if (made == nullptr || cipher == nullptr ||
      ::SSL_SESSION_set1_id_context(made.get(), kUse, sizeof(kUse)) != 1 ||
      ::SSL_SESSION_set1_master_key(made.get(), secret.data(), secret.size()) != 1 ||
      ::SSL_SESSION_set_cipher(made.get(), cipher) != 1 ||
      ::SSL_SESSION_set_protocol_version(made.get(), TLS1_3_VERSION) != 1) {
    return nullptr;
  }
  return made.release();
}

// `digest`: the only one that the server accepts, if it has named one. Our secret is for SHA-256.
int TlsStream::Session::offer_secret(SSL* ssl, const EVP_MD* digest, const unsigned char** name,
                                     std::size_t* name_bytes, SSL_SESSION** session) {
  const Session& self = of(ssl);
  *session = nullptr;
  if (digest != nullptr && EVP_MD_type(digest) != EVP_MD_type(::EVP_sha256())) return 1;
  *name = reinterpret_cast<const unsigned char*>(self.pair.data());
  *name_bytes = self.pair.size();
  *session = self.make_secret_session();
  return *session != nullptr ? 1 : 0;
}

int TlsStream::Session::find_secret(SSL* ssl, const unsigned char* name, std::size_t name_bytes,
                                    SSL_SESSION** session) {
  const Session& self = of(ssl);
  *session = nullptr;
  const std::string_view wanted(reinterpret_cast<const char*>(name), name_bytes);
  if (wanted != self.pair) return 1;
  *session = self.make_secret_session();
  return *session != nullptr ? 1 : 0;
}

TlsStream::TlsStream(FileDescriptor socket, const Options& options)
    : ByteStream(std::move(socket)), options_(options), session_(std::make_unique<Session>()) {}

TlsStream::~TlsStream() = default;

Result<std::unique_ptr<TlsStream>> TlsStream::create(FileDescriptor socket,
                                                     const Options& options) {
  std::unique_ptr<TlsStream> stream(new TlsStream(std::move(socket), options));
  Session& session = *stream->session_;
  session.wire.socket = stream->socket();
  session.is_server = options.self < options.peer;
  session.pair = fmt::format("rank {} to rank {}", std::max(options.self, options.peer).value(),
                             std::min(options.self, options.peer).value());
  STRETTO_ASSIGN_OR_RETURN(session.secret, derive_secret(options.key, session.pair));
  STRETTO_RETURN_IF_ERROR(session.open());
  return stream;
}

Result<short> TlsStream::advance() {
  SSL* const ssl = session_->ssl.get();
  ::ERR_clear_error();
  const int returned = ::SSL_do_handshake(ssl);
  // A reused session is the secret. Without certificates there is no other way.
  if (returned == 1 && ::SSL_session_reused(ssl) == 1) return short{0};
  switch (returned == 1 ? SSL_ERROR_NONE : ::SSL_get_error(ssl, returned)) {
    case SSL_ERROR_WANT_READ:
      return short{POLLIN};
    case SSL_ERROR_WANT_WRITE:
      return short{POLLOUT};
    default:
      break;
  }
  const Rank peer = options_.peer;
  const int error_number = session_->wire.error_number;
  // A reset means that the peer left without reading what was sent to it.
  if (session_->wire.ended || error_number == ECONNRESET || error_number == EPIPE) {
    return Status(StatusCode::peer_lost, "it closed the connection while TLS was set up", peer);
  }
  if (error_number != 0) {
    const Status cause = system_status("setting up TLS", error_number);
    return Status(cause.code(), std::string(cause.message()), peer);
  }
  return Status(StatusCode::refused,
                fmt::format("TLS was not set up: {}. Either STRETTO_JOB_KEY is not the same there, "
                            "or something on the way alters what the ranks send",
                            take_reason()),
                peer);
}

// Why a call has failed.
transport::tcp::ByteStream::Moved TlsStream::outcome(int returned) {
  const int error = ::SSL_get_error(session_->ssl.get(), returned);
  // TLS's own messages, such as the peer's new keys, may need the other direction.
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    return {.error_number = EAGAIN};
  }
  const Wire& wire = session_->wire;
  if (wire.error_number != 0) return {.error_number = wire.error_number};
  if (wire.ended || error == SSL_ERROR_ZERO_RETURN) return {};
  violation_ = status_of(StatusCode::protocol,
                         "TLS ended the connection: {}: something on the way has altered what was "
                         "sent",
                         take_reason());
  return {.violation = violation_};
}

// Copies the bytes of `pieces` after the first `skip`, as many as fit into a record. So many small
// pieces make one record, and the encrypted bytes do not depend on the caller's buffers.
std::size_t TlsStream::stage(std::span<const ConstByteSpan> pieces, std::size_t skip) {
  std::size_t staged = 0;
  for (const ConstByteSpan piece : pieces) {
    const std::size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    const std::size_t bytes = std::min(piece.size() - skipped, kRecordBytes - staged);
    if (bytes > 0) std::memcpy(staging_.data() + staged, piece.data() + skipped, bytes);
    staged += bytes;
    if (staged == kRecordBytes) break;
  }
  return staged;
}

void TlsStream::renew_keys() {
  SSL* const ssl = session_->ssl.get();
  ::ERR_clear_error();
  session_->wire.keeps = true;
  if (::SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) (void)::SSL_do_handshake(ssl);
  session_->wire.keeps = false;
}

transport::tcp::ByteStream::Moved TlsStream::write(std::span<const ConstByteSpan> pieces) {
  SSL* const ssl = session_->ssl.get();
  Moved moved;
  while (violation_.ok() && moved.bytes < kCallBytes) {
    if (staged_bytes_ == 0) {
      staging_.resize(kRecordBytes);
      staged_bytes_ = stage(pieces, moved.bytes);
      if (staged_bytes_ == 0) return moved;
      if (++records_ % options_.records_per_key == 0) {
        renew_keys();
      }
    }
    ::ERR_clear_error();
    std::size_t written = 0;
    const int returned = ::SSL_write_ex(ssl, staging_.data(), staged_bytes_, &written);
    if (returned != 1) {
      const std::size_t taken = moved.bytes;
      moved = outcome(returned);
      moved.bytes = taken;
      // If the stream has ended, the peer does not read any more.
      if (moved.error_number == 0 && moved.violation.ok()) moved.error_number = EPIPE;
      return moved;
    }
    moved.bytes += std::exchange(staged_bytes_, 0);
  }
  moved.violation = violation_;
  return moved;
}

transport::tcp::ByteStream::Moved TlsStream::read(ByteSpan into) {
  Moved moved;
  into = into.first(std::min(into.size(), kCallBytes));
  while (violation_.ok() && moved.bytes < into.size()) {
    ::ERR_clear_error();
    std::size_t given = 0;
    const ByteSpan rest = into.subspan(moved.bytes);
    const int returned = ::SSL_read_ex(session_->ssl.get(), rest.data(), rest.size(), &given);
    if (returned == 1) {
      moved.bytes += given;
      continue;
    }
    // Bytes that came before are reported first. The next call reports the failure again.
    const Moved why = outcome(returned);
    return moved.bytes > 0 ? moved : why;
  }
  if (moved.bytes == 0) moved.violation = violation_;
  return moved;
}

Status finish_handshakes(std::span<TlsStream* const> streams, const WaitLimit& limit) {
  std::vector<TlsStream*> open(streams.begin(), streams.end());
  while (true) {
    std::vector<pollfd> waiting;
    std::vector<TlsStream*> pending;
    for (TlsStream* const stream : open) {
      const Result<short> wanted = stream->advance();
      if (!wanted.ok()) {
        return wanted.status().with_context(fmt::format("joining rank {}", stream->peer().value()));
      }
      if (wanted.value() == 0) continue;
      waiting.push_back({.fd = stream->socket(), .events = wanted.value(), .revents = 0});
      pending.push_back(stream);
    }
    if (pending.empty()) return {};
    if (limit.passed()) {
      return {StatusCode::timeout,
              fmt::format("joining rank {}: TLS was not set up in time",
                          pending.front()->peer().value()),
              pending.front()->peer()};
    }
    STRETTO_RETURN_IF_ERROR(limit.look());
    const auto nap = std::min<Duration>(limit.nap(), std::chrono::seconds(1));
    (void)::poll(waiting.data(), waiting.size(), poll_milliseconds(nap));
    open = std::move(pending);
  }
}

}  // namespace stretto::bootstrap
