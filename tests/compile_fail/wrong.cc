// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compiles as it is, but not with the names below defined. For each name, the compiler must then
// complain in the name's block, with texts that match all regular expressions beside the name
// (between " & "). See scripts/compile_fail_test.py.

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

// A dropped Work would wait inside the call's statement, and tell nobody of a failure.
#ifdef ignored_work  // (ignoring return|nodiscard|unused-result)
  comm.barrier();
#endif
// An operation has one owner, so a Work cannot be copied.
#ifdef copied_work  // (deleted|implicitly deleted)
  stretto::Work copied = second;
#endif
// Nor can a Work be copied by assignment.
#ifdef assigned_work  // (deleted|implicitly deleted)
  first = second;
#endif
// A communicator is one rank's place in a group, so it cannot be copied.
#ifdef copied_communicator  // (abstract|deleted)
  stretto::Communicator other = comm;
#endif
// A temporary that owns its elements would be destroyed before the operation ends.
#ifdef temporary_output  // borrowed_range
  comm.all_reduce(std::vector<float>(3)).wait();
#endif
// The same holds for an input, which a send reads after the call.
#ifdef temporary_input  // borrowed_range
  comm.send(std::vector<float>(3), {.to = 1}).wait();
#endif
// A constant buffer cannot be an output.
#ifdef const_output  // no matching (member )?function & is_const_v
  comm.all_reduce(constant).wait();
#endif
// Nor can a span of constant elements, even if it is a variable.
#ifdef const_span_output  // no matching (member )?function & is_const_v
  comm.recv(std::span(constant), {.from = 1}).wait();
#endif
// Nor can a batch receive into constant elements.
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

// Only elements of types with a dtype can be moved.
#ifdef type_without_dtype  // DTypeOf
  std::vector<long double> wide(3);
  comm.broadcast(wide).wait();
#endif
// There is no arithmetic on 8-bit floats: a number would be taken for the bits of one.
#ifdef float8_from_number  // Float8E4M3
  const stretto::Float8E4M3 wrong(1.0f);
#endif
// An integer with the bits of a Half is not silently converted to a Half.
#ifdef half_from_integer  // (could not convert|no viable conversion|conversion from)
  const stretto::Half integer = std::uint16_t{1};
#endif
// The compiler names an option of DistributedDataParallel that does not exist.
#ifdef misspelt_option  // DistributedDataParallelOptions.*find_unused
  const stretto::DistributedDataParallelOptions misspelt{.find_unused = true};
#endif
}
