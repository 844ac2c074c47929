// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/frame_reader.h"

#include <algorithm>
#include <cstring>

namespace stretto::transport {
namespace {

// Large enough that small messages share a read, small enough to stay in the first-level cache.
constexpr std::size_t kStagingBytes = 16 * 1024;
// A payload at least this long is read straight to where it belongs.
constexpr std::size_t kDirectBytes = 4 * 1024;

}  // namespace

FrameReader::FrameReader() : staging_(kStagingBytes) {}

Result<bool> FrameReader::read_some(Link& link, Sink& sink) {
  const bool direct = target_.size() >= kDirectBytes && staged_begin_ == staged_end_;
  STRETTO_ASSIGN_OR_RETURN(const auto read, direct ? link.read(target_) : link.read(staging_));
  if (read == 0) return false;
  if (direct) {
    target_ = target_.subspan(read);
    payload_left_bytes_ -= read;
    if (payload_left_bytes_ == 0) STRETTO_RETURN_IF_ERROR(end_frame(sink));
    return true;
  }
  staged_begin_ = 0;
  staged_end_ = read;
  while (staged_begin_ < staged_end_) STRETTO_RETURN_IF_ERROR(consume_staged(sink));
  return true;
}

// Takes at least one byte.
Status FrameReader::consume_staged(Sink& sink) {
  const ConstByteSpan bytes =
      std::span(staging_).subspan(staged_begin_, staged_end_ - staged_begin_);
  if (header_bytes_ < header_.size()) {
    const std::size_t step = std::min(bytes.size(), header_.size() - header_bytes_);
    std::memcpy(header_.data() + header_bytes_, bytes.data(), step);
    staged_begin_ += step;
    header_bytes_ += step;
    return header_bytes_ < header_.size() ? Status() : begin_frame(sink);
  }
  const std::size_t step =
      static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), payload_left_bytes_));
  if (!target_.empty()) {
    std::memcpy(target_.data(), bytes.data(), step);
    target_ = target_.subspan(step);
  }
  staged_begin_ += step;
  payload_left_bytes_ -= step;
  return payload_left_bytes_ == 0 ? end_frame(sink) : Status();
}

Status FrameReader::begin_frame(Sink& sink) {
  STRETTO_ASSIGN_OR_RETURN(frame_, decode(header_));
  payload_left_bytes_ = frame_.payload_bytes();
  STRETTO_ASSIGN_OR_RETURN(target_, sink.begin(frame_));
  return payload_left_bytes_ == 0 ? end_frame(sink) : Status();
}

Status FrameReader::end_frame(Sink& sink) {
  header_bytes_ = 0;
  target_ = {};
  return sink.end(frame_);
}

}  // namespace stretto::transport
