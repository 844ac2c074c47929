// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "bench/drivers/driver.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <vector>

#include "tools/bench/huge_memory.h"
#include "tools/bench/measure.h"
#include "tools/bench/pattern.h"

namespace stretto::bench {
namespace {

// From this size on, a call takes a tenth of a second and varies little; there are repeats besides.
constexpr std::size_t kFewSamplesFromBytes = std::size_t{64} << 20;

std::runtime_error system_error(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

struct Request {
  std::string operation = {};
  std::string buffers = {};
  std::string algorithm = {};
  std::uint64_t bytes = 0;
  double seconds = 0;  // For the samples of the line.
  std::size_t at_once = 1;
  bool in_place = true;
};

struct Reply {
  const char* answer = "ok";
  Summary summary = {};
  std::string text = {};  // What is wrong.
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text.substr(0, 1000)) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
  }
  return result + '"';
}

// What a rank hears from its parent, and what it tells its parent.
class Pipes {
 public:
  Pipes(const std::string& folder, int rank)
      : rank_(rank),
        asks_(open_fifo(folder + "/ask." + std::to_string(rank), O_RDONLY)),
        answers_(open_fifo(folder + "/answers", O_WRONLY)) {}
  ~Pipes() {
    ::close(asks_);
    ::close(answers_);
  }
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  // Nothing if the parent has said "quit".
  std::optional<Request> next_request() {
    std::array<char, 512> line{};
    ssize_t count = 0;
    do {
      count = ::read(asks_, line.data(), line.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) throw system_error("ask");
    if (count == 0) throw std::runtime_error("the parent has gone");
    std::istringstream words(std::string(line.data(), static_cast<std::size_t>(count)));
    Request request;
    words >> request.operation;
    if (request.operation == "quit") return std::nullopt;
    words >> request.bytes >> request.seconds >> request.in_place >> request.buffers >>
        request.algorithm >> request.at_once;
    if (!words || request.at_once == 0) throw std::runtime_error("not a request: " + words.str());
    if (request.algorithm == "-") request.algorithm.clear();
    return request;
  }

  void say_ready(const std::string& version) {
    tell(", \"pid\": " + std::to_string(::getpid()) + ", \"version\": " + quoted(version));
  }

  void answer(const Reply& reply, bool oversubscribed) {
    const Summary& times = reply.summary;
    std::ostringstream text;
    text << std::setprecision(12) << ", \"answer\": \"" << reply.answer
         << "\", \"text\": " << quoted(reply.text) << ", \"p50_us\": " << times.p50_us
         << ", \"p99_us\": " << times.p99_us << ", \"max_us\": " << times.max_us
         << ", \"min_us\": " << times.min_us << ", \"samples\": " << times.samples
         << ", \"batched\": " << (times.batched ? "true" : "false") << ", \"flag_ns\": ["
         << times.latency_before_ns << ", " << times.latency_after_ns
         << "], \"regime\": " << quoted(regime(times, oversubscribed));
    tell(text.str());
  }

 private:
  static int open_fifo(const std::string& path, int mode) {
    const int descriptor = ::open(path.c_str(), mode | O_CLOEXEC);
    if (descriptor < 0) throw system_error(path);
    return descriptor;
  }

  // Writes less than PIPE_BUF bytes at once, so that other ranks' lines do not come between.
  void tell(const std::string& members) {
    const std::string line = "{\"rank\": " + std::to_string(rank_) + members + "}\n";
    if (::write(answers_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      throw system_error("answers");
    }
  }

  int rank_;
  int asks_ = -1;
  int answers_ = -1;
};

// Returns null if this library has no such buffers.
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
  job.at_once = request.at_once;
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

// Writes this rank's input. For a driver's broadcast only the root has one.
void fill_input(const Pattern& pattern, const Job& job, int rank, std::uint64_t iteration) {
  if (job.operation == "barrier" || (job.operation == "broadcast" && rank != 0)) return;
  const std::span input(job.input, job.operation == "all_gather" ? job.share : job.count);
  pattern.fill(view_of(input), 0, rank, iteration);
}

const std::map<std::string, Collective> kCollectives = {
    {"all_reduce", Collective::all_reduce}, {"reduce_scatter", Collective::reduce_scatter},
    {"all_gather", Collective::all_gather}, {"all_to_all", Collective::all_to_all},
    {"broadcast", Collective::broadcast},   {"reduce", Collective::reduce},
    {"barrier", Collective::barrier}};

bool output_is_right(const Pattern& pattern, const Job& job, int rank, std::uint64_t iteration) {
  const std::span output(job.output, job.operation == "reduce_scatter" ? job.share : job.count);
  if (job.operation == "copy") return pattern.is_input(view_of(output), 0, rank, iteration);
  const Collective operation = kCollectives.at(job.operation);
  return pattern.is_output(operation, view_of(output), job.share, rank, iteration);
}

Reply unsupported(const std::string& text) {
  return {.answer = "unsupported", .summary = {}, .text = text};
}

Reply handle(Library& library, BoardCoordinator& meeting, const Request& request) {
  const Buffers buffers = buffers_for(library, request);
  const Job& job = buffers.job;
  const bool is_missing = job.input == nullptr || job.output == nullptr;
  if (job.count > 0 && is_missing) return unsupported("no such buffers");
  if (job.at_once > 1 && !library.runs_several()) return unsupported("one operation at a time");
  const std::function<void()> call = library.make_call(job);
  const bool is_checked = job.operation == "copy" || kCollectives.contains(job.operation);
  if (!call || !is_checked) return unsupported("no such operation");
  pin_to_core(library.rank());
  MeasureOptions options;
  options.seconds = request.seconds;
  if (request.bytes >= kFewSamplesFromBytes) options.min_samples = 8;
  std::uint64_t iteration = 0;
  const Pattern pattern(DType::f32, ReduceOp::sum, library.size());
  const auto prepare = [&] { fill_input(pattern, job, library.rank(), ++iteration); };
  Reply reply;
  reply.summary = measure(meeting, options, prepare, call);
  if (!output_is_right(pattern, job, library.rank(), iteration)) {
    reply.answer = "wrong";
    reply.text = "the output is not what the operation makes of the inputs";
  }
  // No rank frees its buffers, or begins the next operation, while others still read from them.
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
  BoardCoordinator meeting(board);
  Pipes pipes(place.folder, library.rank());
  pipes.say_ready(library.version());
  while (const std::optional<Request> request = pipes.next_request()) {
    try {
      pipes.answer(handle(library, meeting, *request), board.oversubscribed());
    } catch (const std::exception& failure) {
      // The other ranks may still wait for this one: this makes their barriers throw.
      board.abandon();
      pipes.answer({.answer = "failed", .summary = {}, .text = failure.what()},
                   board.oversubscribed());
      throw;
    }
  }
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
