// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/load.h"

#include <filesystem>

#include <fmt/format.h>

#include "stretto/cuda_driver/symbol_table.h"

namespace stretto::nccl {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::vector<std::string> nccl_files(const Environment& environment) {
  if (const auto named = environment.get("STRETTO_NCCL_LIBRARY")) return {*named};
  const std::string file = "libnccl.so.2";
  std::vector<std::string> files = {file};
  const auto python = environment.get("VIRTUAL_ENV");
  if (!python) return files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(*python + "/lib", ignored)) {
    const auto path = entry.path() / "site-packages/nvidia/nccl/lib" / file;
    if (std::filesystem::exists(path, ignored)) files.push_back(path.string());
  }
  return files;
}

Result<std::shared_ptr<const Nccl>> load_nccl(const std::vector<std::string>& files) {
  Result<cuda::SymbolTable> symbols = cuda::SymbolTable::open(files);
  if (!symbols.ok()) {
    return status_of(StatusCode::invalid_argument,
                     "NCCL cannot be loaded ({}): Python's package nvidia-nccl-cu13 has it, and "
                     "STRETTO_NCCL_LIBRARY says where it is",
                     symbols.status().message());
  }
  auto nccl = std::make_shared<Nccl>();
  Interface& call = nccl->call;
  // Asked first: an older version lacks some of the other functions.
  STRETTO_RETURN_IF_ERROR(symbols->find_all({{"ncclGetVersion", &call.get_version}}));
  if (call.get_version(&nccl->version) != kSuccess) {
    return status_of(StatusCode::invalid_argument, "{} does not say which version of NCCL it is",
                     symbols->file());
  }
  // A later version is fine: NCCL keeps its interface.
  if (nccl->version < kOldestVersion) {
    return status_of(StatusCode::invalid_argument,
                     "NCCL {} is older than {}, the first whose communicators are safe to use from "
                     "several threads; STRETTO_NCCL_LIBRARY names the file of another one",
                     version_text(nccl->version), version_text(kOldestVersion));
  }
  STRETTO_RETURN_IF_ERROR(symbols->find_all({
      {"ncclGetErrorString", &call.get_error_string},
      {"ncclGetLastError", &call.get_last_error},
      {"ncclGetUniqueId", &call.get_unique_id},
      {"ncclCommInitRankConfig", &call.comm_init_rank_config},
      {"ncclCommGetAsyncError", &call.comm_get_async_error},
      {"ncclCommFinalize", &call.comm_finalize},
      {"ncclCommDestroy", &call.comm_destroy},
      {"ncclCommAbort", &call.comm_abort},
      {"ncclMemAlloc", &call.mem_alloc},
      {"ncclMemFree", &call.mem_free},
      {"ncclCommRegister", &call.comm_register},
      {"ncclCommDeregister", &call.comm_deregister},
      {"ncclRedOpCreatePreMulSum", &call.red_op_create_pre_mul_sum},
      {"ncclRedOpDestroy", &call.red_op_destroy},
      {"ncclGroupStart", &call.group_start},
      {"ncclGroupEnd", &call.group_end},
      {"ncclAllReduce", &call.all_reduce},
      {"ncclReduce", &call.reduce},
      {"ncclReduceScatter", &call.reduce_scatter},
      {"ncclBroadcast", &call.broadcast},
      {"ncclAllGather", &call.all_gather},
      {"ncclSend", &call.send},
      {"ncclRecv", &call.receive},
  }));
  nccl->name = "NCCL " + version_text(nccl->version);
  nccl->file = symbols->file();
  return std::shared_ptr<const Nccl>(std::move(nccl));
}

Status Nccl::status_of_call(const char* what, ResultCode result, Comm comm) const {
  if (result == kSuccess || result == kInProgress) return {};
  const char* const error = call.get_error_string(result);
  const char* const last = call.get_last_error(comm);
  const bool has_more = last != nullptr && *last != '\0';
  return status_of(StatusCode::system, "{}: {}{}{}", what, error == nullptr ? "an error" : error,
                   has_more ? "; " : "", has_more ? last : "");
}

ResultCode Nccl::state_of(Comm comm) const {
  ResultCode state = kSuccess;
  const ResultCode asked = call.comm_get_async_error(comm, &state);
  return asked == kSuccess ? state : asked;
}

}  // namespace stretto::nccl
