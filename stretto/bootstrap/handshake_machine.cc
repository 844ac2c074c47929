// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/handshake_machine.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "stretto/base/check.h"
#include "stretto/base/little_endian.h"
#include "stretto/base/printable.h"

namespace stretto::bootstrap {
namespace {

constexpr std::string_view kMagic = "stretto\n";

// Where the fields of a hello begin. Everything up to kNonce is the introduction.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kRoleAt = 12;
constexpr std::size_t kPurposeAt = 13;
constexpr std::size_t kBuildLengthAt = 14;
constexpr std::size_t kRankAt = 16;
constexpr std::size_t kTargetAt = 20;
constexpr std::size_t kConfigurationAt = 24;
constexpr std::size_t kBuildAt = 32;
constexpr std::size_t kNonceAt = kIntroductionBytes;
constexpr std::size_t kTagAt = kNonceAt + kNonceBytes;
static_assert(kBuildAt + kBuildBytes == kIntroductionBytes);

// Takes the same time wherever the first difference is.
bool same_bytes(ConstByteSpan a, ConstByteSpan b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view name(Purpose purpose) {
  switch (purpose) {
    case Purpose::store:
      return "the store";
    case Purpose::mesh_tcp:
      return "a tcp link";
    case Purpose::mesh_unix:
      return "a shared-memory link";
    case Purpose::host_listener:
      return "the listener of its host";
  }
  return "an unknown purpose";
}

// A stranger's bytes as printable text: "47 45 54 20 (\"GET \")".
std::string in_a_line(ConstByteSpan bytes) {
  constexpr std::size_t kShown = 16;
  std::string hexadecimal;
  std::string text;
  for (std::byte byte : bytes.first(std::min(bytes.size(), kShown))) {
    const auto value = std::to_integer<unsigned>(byte);
    hexadecimal += fmt::format("{}{:02x}", hexadecimal.empty() ? "" : " ", value);
    text += value >= 0x20 && value < 0x7f ? static_cast<char>(value) : '.';
  }
  return fmt::format("{} (\"{}\")", hexadecimal, text);
}

std::optional<Rank> rank_of(const Identity& identity) {
  return identity.rank < 0 ? std::nullopt : std::optional<Rank>(identity.rank);
}

}  // namespace

std::array<std::byte, kTagBytes> authenticate(const JobKey& key, std::string_view label,
                                              std::initializer_list<ConstByteSpan> parts) {
  std::vector<unsigned char> message(label.begin(), label.end());
  message.push_back(0);
  for (ConstByteSpan part : parts) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
    message.insert(message.end(), bytes, bytes + part.size());
  }
  std::array<std::byte, kTagBytes> tag{};
  unsigned int length = 0;
  const unsigned char* done =
      ::HMAC(::EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
             message.data(), message.size(), reinterpret_cast<unsigned char*>(tag.data()), &length);
  STRETTO_CHECK(done != nullptr && length == kTagBytes, "HMAC-SHA256 gave {} bytes", length);
  return tag;
}

Result<HandshakeMachine> HandshakeMachine::start(HandshakeRole role, const JobKey& key,
                                                 Purpose purpose, const Identity& self,
                                                 const std::set<std::int32_t>* others) {
  if (self.build.size() > kBuildBytes || self.rank < -1 || self.target < -1) {
    return status_of(StatusCode::invalid_argument,
                     "a build has at most {} bytes, not {}; ranks are -1 or more, not {} and {}",
                     kBuildBytes, self.build.size(), self.rank, self.target);
  }
  HandshakeMachine machine(role, key, purpose, self, others);
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(machine.nonce_.data()), kNonceBytes) != 1) {
    return status_of(StatusCode::system, "the system's random source gave no bytes");
  }
  if (role == HandshakeRole::client) machine.send_hello(nullptr);
  return machine;
}

Status HandshakeMachine::receive(ConstByteSpan bytes) {
  STRETTO_CHECK(bytes.size() <= wanted_bytes(), "{} bytes where {} are wanted", bytes.size(),
                wanted_bytes());
  const std::size_t before = received_.size();
  received_.insert(received_.end(), bytes.begin(), bytes.end());
  const std::size_t now = received_.size();
  if (state_ == State::hello) {
    // Checks as early as possible, as a stranger may never send the rest.
    STRETTO_RETURN_IF_ERROR(fail(check_beginning()));
    if (before < kIntroductionBytes && now >= kIntroductionBytes) {
      STRETTO_RETURN_IF_ERROR(fail(check_introduction()));
    }
    if (state_ == State::hello) return now == frame_bytes_ ? fail(check_hello()) : Status();
  }
  if (state_ == State::other_version) {
    return now == frame_bytes_ ? fail(check_key_of_other_version()) : Status();
  }
  return now == frame_bytes_ && state_ == State::confirmation ? fail(check_confirmation())
                                                              : Status();
}

Status HandshakeMachine::ended_early() const {
  if (state_ == State::other_version) return version_mismatch();
  if (role_ == HandshakeRole::server) {
    return received_.empty() && state_ == State::hello
               ? status_of(StatusCode::refused, "not a stretto peer: it closed without a word")
               : status_of(StatusCode::peer_lost,
                           "the peer closed the connection during the handshake");
  }
  if (state_ == State::hello && introduced_) {
    return {StatusCode::refused,
            fmt::format("{} refuses the job key of {}: STRETTO_JOB_KEY is not the same there",
                        peer_name(), own_name()),
            rank_of(self_)};
  }
  return status_of(StatusCode::peer_lost,
                   "the connection was closed without a word during the handshake");
}

Status HandshakeMachine::timed_out() const {
  if (state_ == State::other_version) return version_mismatch();
  return status_of(StatusCode::timeout, "the peer sent {} of {} bytes of the handshake in time",
                   received_.size(), frame_bytes_);
}

void HandshakeMachine::expect(State state, std::size_t bytes) {
  state_ = state;
  frame_bytes_ = bytes;
  received_.clear();
}

// Forgets that the peer showed the key: a hello without the following proof may have been overheard
// and repeated.
Status HandshakeMachine::fail(Status status) {
  if (status.ok()) return status;
  if (state_ != State::other_version) holds_key_ = false;
  expect(State::failed, 0);
  return status;
}

Status HandshakeMachine::check_beginning() {
  const std::size_t length = std::min(received_.size(), kMagic.size());
  if (std::memcmp(received_.data(), kMagic.data(), length) == 0) return {};
  return status_of(StatusCode::refused, "not a stretto peer: the first bytes were {}",
                   in_a_line(received_));
}

Status HandshakeMachine::check_introduction() {
  const std::byte* const hello = received_.data();
  const auto role = std::to_integer<std::uint8_t>(hello[kRoleAt]);
  const auto build_length = load_little_endian<std::uint16_t>(hello + kBuildLengthAt);
  const auto rank = load_little_endian<std::int32_t>(hello + kRankAt);
  if (role != static_cast<std::uint8_t>(other_role()) || build_length > kBuildBytes || rank < -1) {
    return status_of(StatusCode::refused,
                     "not a stretto {}: a hello with role {}, rank {} and {} bytes of build name",
                     role_ == HandshakeRole::client ? "server" : "client", role, rank,
                     build_length);
  }
  introduced_ = true;
  peer_ = {.rank = rank,
           .protocol_version = load_little_endian<std::uint32_t>(hello + kVersionAt),
           .build = printable({reinterpret_cast<const char*>(hello) + kBuildAt, build_length}),
           .configuration = load_little_endian<std::uint64_t>(hello + kConfigurationAt),
           .target = load_little_endian<std::int32_t>(hello + kTargetAt)};
  if (peer_.protocol_version == self_.protocol_version) return {};
  if (role_ == HandshakeRole::client) return version_mismatch();
  send_introduction();
  state_ = State::other_version;
  return {};
}

// The hello of another version may have another format. If it has ours and was made with the key,
// then it is a process of this job that has the wrong version, and no stranger.
Status HandshakeMachine::check_key_of_other_version() {
  std::copy(received_.begin(), received_.end(), peer_hello_.begin());
  holds_key_ = same_bytes(hello_tag(other_role(), peer_hello_, nullptr),
                          ConstByteSpan(peer_hello_).subspan(kTagAt));
  return version_mismatch();
}

Status HandshakeMachine::version_mismatch() const {
  return {
      StatusCode::refused,
      fmt::format("{} speaks protocol {} (build {}), {} protocol {} (build {}); refusing to join",
                  peer_name(), peer_.protocol_version, peer_.build, own_name(),
                  self_.protocol_version, self_.build),
      rank_of(peer_)};
}

// A client whose hello is refused learns no more than this of the server.
void HandshakeMachine::send_introduction() {
  Hello introduction = make_introduction();
  // The configuration stays hidden from a peer that has not proven the key.
  store_little_endian<std::uint64_t>(introduction.data() + kConfigurationAt, 0);
  send(ConstByteSpan(introduction).first(kIntroductionBytes));
}

Status HandshakeMachine::check_hello() {
  std::copy(received_.begin(), received_.end(), peer_hello_.begin());
  const Hello* answered = role_ == HandshakeRole::client ? &own_hello_ : nullptr;
  const Tag expected = hello_tag(other_role(), peer_hello_, answered);
  if (!same_bytes(expected, ConstByteSpan(peer_hello_).subspan(kTagAt))) {
    if (role_ == HandshakeRole::server) send_introduction();
    return status_of(StatusCode::refused,
                     "a peer that calls itself {} does not hold this job's key: STRETTO_JOB_KEY is "
                     "not the same there",
                     peer_name());
  }
  holds_key_ = true;
  // The server answers before it compares, so that the client can say what differs as well.
  if (role_ == HandshakeRole::server) {
    self_.target = listens_for(peer_.target) ? peer_.target : self_.rank;
    send_hello(&peer_hello_);
  }
  STRETTO_RETURN_IF_ERROR(check_agreement());
  if (role_ == HandshakeRole::client) send(confirmation_tag(HandshakeRole::client));
  expect(State::confirmation, kTagBytes);
  return {};
}

bool HandshakeMachine::listens_for(std::int32_t rank) const {
  return rank == -1 || rank == self_.rank || (others_ != nullptr && others_->contains(rank));
}

Status HandshakeMachine::check_agreement() const {
  const auto purpose = static_cast<Purpose>(peer_hello_[kPurposeAt]);
  if (purpose != purpose_) {
    return {StatusCode::refused,
            fmt::format("{} wants this connection for {}, {} for {}", peer_name(), name(purpose),
                        own_name(), name(purpose_)),
            rank_of(peer_)};
  }
  if (peer_.target != self_.target) {
    const bool asks = role_ == HandshakeRole::client;
    return {StatusCode::refused,
            fmt::format("{} is to reach rank {}, but {} listens there; refusing to join",
                        asks ? own_name() : peer_name(), asks ? self_.target : peer_.target,
                        asks ? peer_name() : own_name()),
            rank_of(peer_)};
  }
  if (peer_.configuration != self_.configuration) {
    return {StatusCode::refused,
            fmt::format("{} joined with other settings than {}: STRETTO_ALGORITHM, "
                        "STRETTO_TRANSPORT and STRETTO_BACKEND must be the same on all ranks; "
                        "refusing to join",
                        peer_name(), own_name()),
            rank_of(peer_)};
  }
  return {};
}

Status HandshakeMachine::check_confirmation() {
  if (!same_bytes(confirmation_tag(other_role()), received_)) {
    return status_of(StatusCode::refused,
                     "a peer that calls itself {} repeated somebody's hello but does not hold this "
                     "job's key",
                     peer_name());
  }
  if (role_ == HandshakeRole::server) send(confirmation_tag(HandshakeRole::server));
  expect(State::done, 0);
  return {};
}

HandshakeMachine::Hello HandshakeMachine::make_introduction() const {
  Hello hello{};
  std::memcpy(hello.data(), kMagic.data(), kMagic.size());
  store_little_endian(hello.data() + kVersionAt, self_.protocol_version);
  hello[kRoleAt] = static_cast<std::byte>(role_);
  hello[kPurposeAt] = static_cast<std::byte>(purpose_);
  store_little_endian(hello.data() + kBuildLengthAt,
                      static_cast<std::uint16_t>(self_.build.size()));
  store_little_endian(hello.data() + kRankAt, self_.rank);
  store_little_endian(hello.data() + kTargetAt, self_.target);
  store_little_endian(hello.data() + kConfigurationAt, self_.configuration);
  std::memcpy(hello.data() + kBuildAt, self_.build.data(), self_.build.size());
  return hello;
}

void HandshakeMachine::send_hello(const Hello* peer_hello) {
  own_hello_ = make_introduction();
  std::copy(nonce_.begin(), nonce_.end(), own_hello_.begin() + kNonceAt);
  const Tag tag = hello_tag(role_, own_hello_, peer_hello);
  std::copy(tag.begin(), tag.end(), own_hello_.begin() + kTagAt);
  send(own_hello_);
}

void HandshakeMachine::send(ConstByteSpan bytes) {
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

HandshakeMachine::Tag HandshakeMachine::hello_tag(HandshakeRole sender, const Hello& hello,
                                                  const Hello* answered) const {
  const ConstByteSpan content = ConstByteSpan(hello).first(kTagAt);
  if (sender == HandshakeRole::client) {
    return authenticate(key_, "stretto handshake: client hello", {content});
  }
  STRETTO_CHECK(answered != nullptr, "a server's hello answers a client's");
  return authenticate(key_, "stretto handshake: server hello", {*answered, content});
}

HandshakeMachine::Tag HandshakeMachine::confirmation_tag(HandshakeRole sender) const {
  const bool client = role_ == HandshakeRole::client;
  const Hello& first = client ? own_hello_ : peer_hello_;
  const Hello& second = client ? peer_hello_ : own_hello_;
  return authenticate(key_,
                      sender == HandshakeRole::client ? "stretto handshake: client proof"
                                                      : "stretto handshake: server acceptance",
                      {first, second});
}

std::string HandshakeMachine::peer_name() const {
  if (peer_.rank >= 0) return fmt::format("rank {}", peer_.rank);
  return role_ == HandshakeRole::client ? "the launcher" : "a process without a rank";
}

std::string HandshakeMachine::own_name() const {
  if (self_.rank >= 0) return fmt::format("this rank {}", self_.rank);
  return role_ == HandshakeRole::server ? "this launcher" : "this process";
}

HandshakeRole HandshakeMachine::other_role() const {
  return role_ == HandshakeRole::client ? HandshakeRole::server : HandshakeRole::client;
}

}  // namespace stretto::bootstrap
