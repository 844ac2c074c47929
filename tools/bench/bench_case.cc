// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/bench_case.h"

#include <algorithm>

namespace stretto::bench {

std::string buffers_name(Buffers buffers) {
  switch (buffers) {
    case Buffers::registered:
      return "registered";
    case Buffers::private_memory:
      return "private";
    case Buffers::huge:
      break;
  }
  return "huge";
}

BenchCase::BenchCase(Communicator& comm, const BenchOptions& options, Collective operation,
                     Buffers buffers, std::size_t bytes)
    : comm_(comm),
      options_(options),
      operation_(operation),
      buffers_(buffers),
      shape_(shape_of(operation, comm.size(), bytes, size_bytes(options.dtype))),
      in_place_(usually_in_place(operation)),
      pattern_(options.dtype, options.op, comm.size()) {
  const bool free_choice = operation == Collective::all_reduce || operation == Collective::reduce;
  if (free_choice) in_place_ = options.in_place.value_or(true);
  const auto view = [&](std::size_t count) {
    const std::size_t size = count * size_bytes(options.dtype);
    if (buffers == Buffers::registered) {
      registered_.push_back(comm.allocate_bytes(size));
      return View(registered_.back().bytes().data(), count, options.dtype);
    }
    if (buffers == Buffers::huge) {
      huge_.push_back(allocate_huge(size));
      return View(huge_.back().get(), count, options.dtype);
    }
    private_.emplace_back(size);
    return View(private_.back().data(), count, options.dtype);
  };
  if (operation == Collective::barrier) return;
  input_ = view(shape_.input);
  output_ = in_place_ ? input_ : view(shape_.output);
}

std::string BenchCase::algorithm() const {
  if (operation_ == Collective::point_to_point) return {};
  if (!options_.algorithm.empty()) return options_.algorithm;
  const std::size_t count = std::max(shape_.input, shape_.output);
  const Explanation explanation = comm_.explain(operation_, options_.dtype, count);
  if (buffers_ == Buffers::registered) return explanation.algorithm_registered;
  return buffers_ == Buffers::huge ? explanation.algorithm_huge_pages : explanation.algorithm;
}

void BenchCase::prepare() {
  ++iteration_;
  const bool rooted = operation_ == Collective::broadcast || operation_ == Collective::scatter ||
                      operation_ == Collective::point_to_point;
  if (operation_ == Collective::barrier || (rooted && !is_root())) return;
  pattern_.fill(input_, 0, comm_.rank().value(), iteration_);
}

void BenchCase::call() {
  const std::string& algorithm = options_.algorithm;
  switch (operation_) {
    case Collective::all_reduce: {
      const AllReduceOptions options{.op = options_.op, .algorithm = algorithm};
      if (in_place_) return comm_.all_reduce(output_, options).wait();
      return comm_.all_reduce(input_, output_, options).wait();
    }
    case Collective::reduce: {
      const ReduceOptions options{.op = options_.op, .algorithm = algorithm};
      if (in_place_) return comm_.reduce(output_, options).wait();
      return comm_.reduce(input_, output_, options).wait();
    }
    case Collective::reduce_scatter:
      return comm_.reduce_scatter(input_, output_, {.op = options_.op, .algorithm = algorithm})
          .wait();
    case Collective::all_gather:
      return comm_.all_gather(input_, output_, {.algorithm = algorithm}).wait();
    case Collective::gather:
      return comm_.gather(input_, output_, {.algorithm = algorithm}).wait();
    case Collective::scatter:
      return comm_.scatter(input_, output_, {.algorithm = algorithm}).wait();
    case Collective::all_to_all:
      return comm_.all_to_all(input_, output_, {.algorithm = algorithm}).wait();
    case Collective::broadcast:
      return comm_.broadcast(output_, {.algorithm = algorithm}).wait();
    case Collective::barrier:
      return comm_.barrier({.algorithm = algorithm}).wait();
    case Collective::point_to_point:
      return send_and_return();
  }
}

// Sends a message from rank 0 to rank 1 and back; the other ranks have nothing to do.
void BenchCase::send_and_return() {
  if (comm_.rank() == 0) {
    comm_.send(output_, {.to = 1}).wait();
    comm_.recv(output_, {.from = 1}).wait();
  } else if (comm_.rank() == 1) {
    comm_.recv(output_, {.from = 0}).wait();
    comm_.send(output_, {.to = 0}).wait();
  }
}

bool BenchCase::can_check() const {
  return operation_ != Collective::barrier &&
         (!reduces(operation_) || pattern_.reduction_is_exact());
}

bool BenchCase::is_right() const {
  return pattern_.is_output(operation_, output_, shape_.share, comm_.rank().value(), iteration_);
}

void BenchCase::damage() const { output_.data[output_.bytes() - 1] ^= std::byte{1}; }

}  // namespace stretto::bench
