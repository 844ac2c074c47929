// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Feeds this rank with what members of a group may say about their state and about who is lost. A
// report is read as it is printed. An agreement ends in a decision in which this rank takes part,
// or in none.
// Sources: state_report.cc agreement.cc

#include <cstdlib>

#include "stretto/group/agreement.h"
#include "stretto/group/state_report.h"

namespace {

using namespace stretto::group;

constexpr int kMembers = 4;

void check_report(std::string_view text) {
  const auto report = decode_state_report(text);
  if (!report) return;
  const auto again = decode_state_report(encode(*report));
  const bool is_same = again && again->has_entered == report->has_entered &&
                       again->text == report->text &&
                       again->waits_for.size() <= report->waits_for.size();
  if (!is_same) std::abort();
}

// Feeds the messages that Group::agreement_arrived lets through.
void check_agreement(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kBytes = 4 + kMembers;
  Agreement agreement(kMembers, 0);
  for (; size >= kBytes; data += kBytes, size -= kBytes) {
    const stretto::Rank from = 1 + data[0] % (kMembers - 1);
    Agreement::Message message{.number = data[1], .round = data[2]};
    message.proposal.ready = data[3] % 2 == 0;
    for (int i = 0; i < kMembers; ++i) {
      message.proposal.lost_by.push_back(data[4 + i] % (kMembers + 1) - 1);
    }
    if (data[0] >= 250) agreement.begin({}, true);
    if (data[0] >= 240 && data[0] < 250) agreement.lose(from);
    if (data[0] < 240) agreement.receive(from, message);
    for (const auto& sent : agreement.take_messages()) {
      if (sent.proposal.lost_by.size() != kMembers) std::abort();
    }
    const auto decision = agreement.take_decision();
    if (decision && !decision->takes_part(0)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_report({reinterpret_cast<const char*>(data), size});
  check_agreement(data, size);
  return 0;
}
