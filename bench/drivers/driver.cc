// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "bench/drivers/driver.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "bench/drivers/pattern.h"
#include "tools/bench/huge_memory.h"
#include "tools/bench/measure.h"
#include "tools/bench/serve.h"

namespace stretto::bench {
namespace {

// A call takes a tenth of a second and varies little; there are repeats besides.
constexpr std::size_t kFewSamplesFromBytes = std::size_t{64} << 20;

std::runtime_error system_error(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

// Where a rank sleeps between requests: it says that it is idle by a byte to "idle", then waits for
// a byte in "bell.RANK". The end of the bell is the parent's end.
class Bell {
 public:
  Bell(const std::string& folder, int rank)
      : bell_(open_fifo(folder + "/bell." + std::to_string(rank), O_RDONLY)),
        idle_(open_fifo(folder + "/idle", O_WRONLY)) {}
  ~Bell() {
    ::close(bell_);
    ::close(idle_);
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void wait() {
    char byte = 0;
    if (::write(idle_, &byte, 1) != 1) throw system_error("idle");
    const ssize_t count = ::read(bell_, &byte, 1);
    if (count == 0) throw std::runtime_error("the parent has gone");
    if (count < 0 && errno != EINTR) throw system_error("bell");
  }

 private:
  static int open_fifo(const std::string& path, int mode) {
    const int descriptor = ::open(path.c_str(), mode | O_CLOEXEC);
    if (descriptor < 0) throw system_error(path);
    return descriptor;
  }

  int bell_ = -1;
  int idle_ = -1;
};

void say_ready(const Library& library, const std::string& folder) {
  write_whole(folder + "/ready." + std::to_string(library.rank()),
              std::to_string(::getpid()) + ' ' + library.version() + '\n');
}

// Null if this library has no such buffers.
std::shared_ptr<float> allocate(Library& library, const std::string& buffers, std::size_t count) {
  if (buffers == "registered") return library.allocate_registered(count);
  if (buffers == "huge") {
    const std::shared_ptr<std::byte> memory = allocate_huge(count * sizeof(float));
    return {memory, reinterpret_cast<float*>(memory.get())};
  }
  if (buffers != "private") return nullptr;
  const auto elements = std::make_shared<std::vector<float>>(count);
  return {elements, elements->data()};
}

// The buffers of one request; `job` points into them.
struct Buffers {
  std::shared_ptr<float> input = {};
  std::shared_ptr<float> output = {};
  Job job = {};
};

Buffers buffers_for(Library& library, const Request& request) {
  Buffers buffers;
  Job& job = buffers.job;
  job.operation = request.operation;
  job.algorithm = request.algorithm;
  if (job.operation == "barrier") return buffers;
  job.count = request.bytes / sizeof(float);
  job.share = job.count / static_cast<std::size_t>(library.size());
  const std::size_t input = job.operation == "all_gather" ? job.share : job.count;
  const std::size_t output = job.operation == "reduce_scatter" ? job.share : job.count;
  buffers.input = allocate(library, request.buffers, input);
  buffers.output = request.in_place ? buffers.input : allocate(library, request.buffers, output);
  job.input = buffers.input.get();
  job.output = buffers.output.get();
  return buffers;
}

Reply unsupported(const std::string& text) {
  return {.answer = Answer::unsupported, .summary = {}, .algorithm = {}, .text = text};
}

Reply handle(Library& library, BoardMeeting& meeting, const Request& request) {
  if (request.dtype != "f32" || request.op != "sum") return unsupported("only sums of f32");
  const Buffers buffers = buffers_for(library, request);
  const Job& job = buffers.job;
  const bool is_missing = job.input == nullptr || job.output == nullptr;
  if (job.count > 0 && is_missing) return unsupported("no such buffers");
  const std::function<void()> call = library.make_call(job);
  if (!call) return unsupported("no such operation");
  if (request.pin) pin_to_core(library.rank());
  MeasureOptions options;
  options.seconds = request.seconds;
  if (request.bytes >= kFewSamplesFromBytes) options.min_samples = 8;
  std::uint64_t iteration = 0;
  const auto prepare = [&] { fill_input(job, library.rank(), library.size(), ++iteration); };
  Reply reply;
  reply.summary = measure(meeting, options, prepare, call);
  const bool right =
      !request.check || output_is_right(job, library.rank(), library.size(), iteration, reply.text);
  if (!right) reply.answer = Answer::wrong;
  // Nobody frees its buffers, or begins the next operation, while others still read from them.
  meeting.barrier();
  return reply;
}

}  // namespace

MeetingPlace meeting_place_of(int argc, char** argv) {
  MeetingPlace place;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--board") place.board = argv[i + 1];
    if (name == "--meet") place.folder = argv[i + 1];
  }
  if (place.board.empty() || place.folder.empty()) {
    throw std::runtime_error("usage: " + std::string(argv[0]) + " --board PATH --meet FOLDER");
  }
  return place;
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".unfinished";
  std::ofstream(unfinished) << text;
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) throw system_error(path);
}

int number_behind(int argc, char** argv, const std::string& name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == name) return std::atoi(argv[i + 1]);
  }
  throw std::runtime_error(name + " is missing");
}

void drive(Library& library, const MeetingPlace& place) {
  Board board(place.board, library.rank());
  BoardMeeting meeting(board);
  say_ready(library, place.folder);
  Bell bell(place.folder, library.rank());
  serve(
      board, [&](const Request& request) { return handle(library, meeting, request); },
      [&] { bell.wait(); });
}

int drive_or_explain(const std::function<std::unique_ptr<Library>()>& make, int argc, char** argv) {
  try {
    const MeetingPlace place = meeting_place_of(argc, argv);
    const std::unique_ptr<Library> library = make();
    drive(*library, place);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", argv[0], failure.what());
    return 1;
  }
}

}  // namespace stretto::bench
