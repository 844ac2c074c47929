// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace stretto::bootstrap {

// A TCPStore in a Python process, as torchrun's agent hosts one. For tests.
class TorchServer {
 public:
  // The Python that has torch, or "": STRETTO_TORCH_PYTHON, or the one that ./dev has set up.
  static std::string python(const std::string& source_folder) {
    if (const char* chosen = std::getenv("STRETTO_TORCH_PYTHON")) return chosen;
    const std::string usual = source_folder + "/build/venv/bin/python";
    return std::filesystem::exists(usual) ? usual : "";
  }

  explicit TorchServer(const std::string& source_folder) {
    const std::string program = python(source_folder);
    int ends[2];
    if (program.empty() || ::pipe(ends) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(program.c_str(), program.c_str(), "-c", kProgram, nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    FILE* lines = ::fdopen(ends[0], "r");
    if (std::fscanf(lines, "port %d", &port_) != 1) port_ = 0;
    (void)std::fclose(lines);
  }
  TorchServer(const TorchServer&) = delete;
  TorchServer& operator=(const TorchServer&) = delete;
  ~TorchServer() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  // 0 if it did not start: no torch there, say.
  int port() const { return port_; }

 private:
  static constexpr const char* kProgram =
      "import time\n"
      "from torch.distributed import TCPStore\n"
      "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
      "print('port', store.port, flush=True)\n"
      "time.sleep(120)\n";
  pid_t process_ = -1;
  int port_ = 0;
};

}  // namespace stretto::bootstrap
