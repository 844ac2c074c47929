// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/cuda_driver/driver.h"

// The part of NCCL's C interface that we use, in declarations of our own. So building needs no
// headers of NCCL, and one stretto runs with any version that it finds. Numbers and layouts are
// those of NCCL 2.27 and later.
namespace stretto::nccl {

using Comm = struct OpaqueComm*;
using cuda::address_of;
using cuda::Driver;
using cuda::DriverInterface;
using cuda::StreamHandle;

// In the format of ncclGetVersion(): 22703 is 2.27.3. Older versions keep the state of a launch
// without blocking in memory of the thread that has called ncclGroupEnd(). Here one thread launches
// for several communicators, and another may continue the launch.
inline constexpr int kOldestVersion = 22700;

// ncclResult_t.
using ResultCode = int;
inline constexpr ResultCode kSuccess = 0;
inline constexpr ResultCode kInProgress = 7;

struct UniqueId {
  char bytes[128];
};

// ncclDataType_t.
enum class Type : int { i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16 };

// ncclRedOp_t; higher numbers are those of operations that have been created.
using RedOp = int;
inline constexpr RedOp kSum = 0;
inline constexpr RedOp kProduct = 1;
inline constexpr RedOp kMax = 2;
inline constexpr RedOp kMin = 3;
inline constexpr RedOp kAverage = 4;

inline constexpr int kScalarHostImmediate = 1;

// ncclConfig_t of NCCL 2.27, for a communicator that does not block. Later versions read
// `size_bytes` bytes, and take defaults for the rest.
struct Config {
  static constexpr int kUndefined = -2147483647 - 1;

  std::size_t size_bytes = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int ctas_min = kUndefined;
  int ctas_max = kUndefined;
  const char* network_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;  // NCCL's tools show it. It must outlive the communicator.
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
};
static_assert(offsetof(Config, comm_name) == 48 && sizeof(Config) == 72,
              "as ncclConfig_t lies in memory");

// Each function is NCCL's of this name: get_version is ncclGetVersion, and so on.
struct Interface {
  ResultCode (*get_version)(int* version);
  const char* (*get_error_string)(ResultCode result);
  const char* (*get_last_error)(Comm comm);
  ResultCode (*get_unique_id)(UniqueId* id);
  ResultCode (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, void* config);
  ResultCode (*comm_get_async_error)(Comm comm, ResultCode* state);
  ResultCode (*comm_finalize)(Comm comm);
  ResultCode (*comm_destroy)(Comm comm);
  ResultCode (*comm_abort)(Comm comm);
  ResultCode (*mem_alloc)(void** data, std::size_t bytes);
  ResultCode (*mem_free)(void* data);
  ResultCode (*comm_register)(Comm comm, void* data, std::size_t bytes, void** handle);
  ResultCode (*comm_deregister)(Comm comm, void* handle);
  ResultCode (*red_op_create_pre_mul_sum)(RedOp* op, void* scalar, Type type, int residence,
                                          Comm comm);
  ResultCode (*red_op_destroy)(RedOp op, Comm comm);
  ResultCode (*group_start)();
  ResultCode (*group_end)();
  ResultCode (*all_reduce)(const void* from, void* to, std::size_t count, Type type, RedOp op,
                           Comm comm, StreamHandle stream);
  ResultCode (*reduce)(const void* from, void* to, std::size_t count, Type type, RedOp op, int root,
                       Comm comm, StreamHandle stream);
  ResultCode (*reduce_scatter)(const void* from, void* to, std::size_t count, Type type, RedOp op,
                               Comm comm, StreamHandle stream);
  ResultCode (*broadcast)(const void* from, void* to, std::size_t count, Type type, int root,
                          Comm comm, StreamHandle stream);
  ResultCode (*all_gather)(const void* from, void* to, std::size_t count, Type type, Comm comm,
                           StreamHandle stream);
  ResultCode (*send)(const void* from, std::size_t count, Type type, int peer, Comm comm,
                     StreamHandle stream);
  ResultCode (*receive)(void* to, std::size_t count, Type type, int peer, Comm comm,
                        StreamHandle stream);
};

}  // namespace stretto::nccl
