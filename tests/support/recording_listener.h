// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/transport/transport.h"

namespace stretto::transport {

// Records what it is told, and answers as the test has set.
class RecordingListener : public TransportListener {
 public:
  struct Aborted {
    std::uint64_t group;
    Rank from;
    Status reason;
    GroupStage stage;
  };
  struct Inquiry {
    std::uint64_t group;
    std::uint32_t sequence;
    OperationDescriptor operation;
    bool operator==(const Inquiry&) const = default;
  };

  virtual ~RecordingListener() = default;
  void peer_lost(Rank peer, const Status& status) override { lost.emplace_back(peer, status); }
  void peer_left(Rank peer, const Status& status) override { left.emplace_back(peer, status); }
  std::optional<std::string> find_obituary(Rank peer) override {
    obituaries_asked.push_back(peer);
    return obituary;
  }
  void unexpected_message(Rank from, const MessageKey& key, const OperationDescriptor&) override {
    unexpected.emplace_back(from, key);
  }
  void group_aborted(std::uint64_t group, Rank from, const Status& reason,
                     GroupStage stage) override {
    aborted.push_back({group, from, reason, stage});
  }
  void group_left(std::uint64_t group, Rank, Farewell) override { groups_left.push_back(group); }
  Status agreement_arrived(Rank, const MessageKey& key, ConstByteSpan payload) override {
    agreements.emplace_back(key, std::vector(payload.begin(), payload.end()));
    return agreement_status;
  }
  std::string describe_state(Rank, std::uint64_t group, std::uint32_t sequence,
                             const OperationDescriptor& operation) override {
    asked.push_back({group, sequence, operation});
    return state;
  }
  void state_reported(Rank peer, std::uint64_t, std::uint32_t, const std::string& text) override {
    reports.emplace_back(peer, text);
  }

  std::vector<std::pair<Rank, Status>> lost;
  std::vector<std::pair<Rank, Status>> left;
  std::optional<std::string> obituary;  // The answer for every peer.
  std::vector<Rank> obituaries_asked;
  std::vector<std::pair<Rank, MessageKey>> unexpected;
  std::vector<Aborted> aborted;
  std::vector<std::uint64_t> groups_left;
  std::vector<std::pair<MessageKey, std::vector<std::byte>>> agreements;
  Status agreement_status;  // The answer to each agreement.
  std::string state;        // The answer to each inquiry.
  std::vector<Inquiry> asked;
  std::vector<std::pair<Rank, std::string>> reports;
};

}  // namespace stretto::transport
