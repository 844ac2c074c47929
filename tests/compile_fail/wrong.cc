// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compiles as it is, and must not with the names below defined: then the compiler says in each
// block what stands behind the name, regular expressions between " & ". See
// scripts/compile_fail_test.py.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/torch/options.h"

void collectives(stretto::Communicator& comm) {
  std::vector<float> data(3);
  const std::vector<float> constant(3);
  stretto::Work first = comm.barrier();
  stretto::Work second = std::move(first);
  second = comm.all_reduce(data);
  second.wait();
  comm.send(constant, {.to = 1}).wait();
  comm.all_reduce(std::span(constant), std::span(data)).wait();
  bool array[3] = {};
  comm.all_reduce(array, {.op = stretto::ReduceOp::max}).wait();
  const stretto::Transfer transfer[] = {stretto::Transfer::recv(data, 1)};
  comm.batch_send_recv(transfer).wait();

// A Work that nobody keeps would wait where the call stands, and tell nobody of a failure.
#ifdef ignored_work  // (ignoring return|nodiscard|unused-result)
  comm.barrier();
#endif
// An operation has one owner,
#ifdef copied_work  // (deleted|implicitly deleted)
  stretto::Work copied = second;
#endif
// nor can it be given another by assignment.
#ifdef assigned_work  // (deleted|implicitly deleted)
  first = second;
#endif
// A communicator is one rank's place in a group: there are no two of it.
#ifdef copied_communicator  // (abstract|deleted)
  stretto::Communicator other = comm;
#endif
// A temporary that owns its elements would be gone before the operation ends.
#ifdef temporary_output  // borrowed_range
  comm.all_reduce(std::vector<float>(3)).wait();
#endif
// The same of an input, which a send reads after the call.
#ifdef temporary_input  // borrowed_range
  comm.send(std::vector<float>(3), {.to = 1}).wait();
#endif
// A constant buffer is no output,
#ifdef const_output  // no matching (member )?function & is_const_v
  comm.all_reduce(constant).wait();
#endif
// nor is a span of constant elements, even a variable,
#ifdef const_span_output  // no matching (member )?function & is_const_v
  comm.recv(std::span(constant), {.from = 1}).wait();
#endif
// nor what a batch receives into.
#ifdef transfer_into_constant  // no matching (member )?function & is_const_v
  (void)stretto::Transfer::recv(constant, 1);
#endif
// std::vector<bool> has no elements that lie in memory.
#ifdef vector_of_bool  // no matching (member )?function & contiguous_range
  std::vector<bool> bits(3);
  comm.all_reduce(bits, {.op = stretto::ReduceOp::max}).wait();
#endif
}

void types_and_options(stretto::Communicator& comm) {
  std::vector<double> numbers(3);
  comm.broadcast(numbers).wait();
  const auto one = stretto::Float8E4M3::from_bits(0x38);
  const stretto::Half half = stretto::Half::from_bits(std::uint16_t{one.bits});
  (void)half;
  const stretto::DistributedDataParallelOptions options{.find_unused_parameters = true};
  (void)options;

// Only types that have a dtype can be moved.
#ifdef type_without_dtype  // DTypeOf
  std::vector<long double> wide(3);
  comm.broadcast(wide).wait();
#endif
// Nothing computes with numbers of 8 bits: what looks like one would be taken for its bits.
#ifdef float8_from_number  // Float8E4M3
  const stretto::Float8E4M3 wrong(1.0f);
#endif
// The bits of a number are not converted to one in silence.
#ifdef half_from_integer  // (could not convert|no viable conversion|conversion from)
  const stretto::Half integer = std::uint16_t{1};
#endif
// An option of DistributedDataParallel that does not exist is named.
#ifdef misspelt_option  // DistributedDataParallelOptions.*find_unused
  const stretto::DistributedDataParallelOptions misspelt{.find_unused = true};
#endif
}
