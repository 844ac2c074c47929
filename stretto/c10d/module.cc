// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The Python module stretto._c. Its class Options is public; what else is public is said in
// python/stretto/__init__.py.

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>

#include <cmath>
#include <ctime>
#include <limits>
#include <tuple>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "stretto/base/content_hash.h"
#include "stretto/c10d/ddp_comm_hook.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/flight_recorder.h"
#include "stretto/c10d/process_group.h"
#include "stretto/c10d/stores.h"
#include "stretto/c10d/without_gil.h"
#include "stretto/codec/codec.h"
#include "stretto/job/elastic_job.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/replica_check.h"
#include "stretto/reducer/two_level_reduction.h"

namespace stretto::c10d_backend {

WithoutGil::WithoutGil()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

namespace {

namespace py = pybind11;
using namespace py::literals;  // NOLINT: names of arguments.
using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

std::optional<Duration> duration_option(const char* option, const std::optional<double>& seconds) {
  if (!seconds) return std::nullopt;
  constexpr double kMost = 1e9;  // Our clock can count it.
  TORCH_CHECK_VALUE(std::abs(*seconds) <= kMost, "option ", option,
                    " is a time in seconds (0: without end), not ", *seconds);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

constexpr const char* kOptions =
    R"(For init_process_group(..., pg_options=stretto.Options(...)). Times are in seconds. A
new_group() without pg_options has those of the default group.

network_timeout: for how long nothing may come back from the host of another rank before that
    rank counts as lost. None: STRETTO_NETWORK_TIMEOUT, or 10.
warn_after: an operation that has waited so long for others says so in the log; 0: never. None:
    STRETTO_WARN_AFTER, or 60.
disable_shared_memory: for tests and measurements: TCP between the ranks of one host too.
backend: for tensors on GPUs, on all ranks alike: "nccl", or "cuda" where all ranks are on one
    host and may share GPUs; else they are copied to the host and back (docs/gpu.md). None:
    STRETTO_BACKEND, or "stretto".)";

std::optional<double> seconds_of(const std::optional<Duration>& option) {
  return option ? std::optional(seconds(*option)) : std::nullopt;
}

c10::intrusive_ptr<OptionsStretto> make_options(const std::optional<double>& network_timeout,
                                                const std::optional<double>& warn_after,
                                                bool disable_shared_memory,
                                                const std::optional<std::string>& backend) {
  JoinOptions join;
  join.network_timeout = duration_option("network_timeout", network_timeout);
  join.warn_after = duration_option("warn_after", warn_after);
  join.disable_shared_memory = disable_shared_memory;
  join.backend = backend.value_or("");
  return c10::make_intrusive<OptionsStretto>(std::move(join));
}

BackendPtr create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                  double timeout_seconds, const std::string& group_name,
                  const std::vector<uint64_t>& global_ranks, OptionsStretto options,
                  bool enable_reconfigure) {
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  options.group_name = group_name;
  options.global_ranks_in_group = global_ranks;
  return ProcessGroupStretto::create(store, rank, size, options, enable_reconfigure);
}

c10::intrusive_ptr<ProcessGroupStretto> group_of(const BackendPtr& backend) {
  auto ours = c10::dynamic_intrusive_pointer_cast<ProcessGroupStretto>(backend);
  TORCH_CHECK_VALUE(ours != nullptr, "this process group's backend is ", backend->getBackendName(),
                    ", not stretto");
  return ours;
}

std::shared_ptr<Communicator> communicator_of(const BackendPtr& backend) {
  return group_of(backend)->communicator();
}

std::unique_ptr<ElasticJob> enter_job(int min_size, double join_timeout,
                                      const std::optional<double>& timeout,
                                      const OptionsStretto& of_groups) {
  // Released only here: registering the object that this returns needs the GIL.
  const py::gil_scoped_release released;
  ElasticOptions options{.join = of_groups.join, .min_size = min_size};
  options.join.join_timeout = *duration_option("join_timeout", join_timeout);
  options.join.timeout = duration_option("timeout", timeout).value_or(options.join.timeout);
  return for_torch([&] { return std::make_unique<ElasticJob>(options); });
}

using StorePtr = c10::intrusive_ptr<::c10d::Store>;

// The store, the rank and the size for init_process_group(); nothing if the job has finished.
std::optional<std::tuple<StorePtr, int, int>> join_generation(ElasticJob& job) {
  auto communicator = for_torch([&] { return job.join(); });
  forget_failures();
  if (communicator == nullptr) return std::nullopt;
  const int rank = communicator->rank().value();
  const int size = communicator->size();
  return std::tuple(
      StorePtr(c10::make_intrusive<GenerationStore>(job.store(), std::move(communicator))), rank,
      size);
}

// A program that goes on with the job has handled its earlier failures: they are forgotten.
bool has_newcomers(ElasticJob& job, const BackendPtr& backend) {
  bool are_there = false;
  group_of(backend)->run([&](Communicator& ranks) { are_there = job.has_newcomers(ranks); });
  forget_failures();
  return are_there;
}

void finish(ElasticJob& job) {
  for_torch([&] { job.finish(); });
  forget_failures();
}

// For a program that leaves a generation: throws the last failure again, unless the others may meet
// again after it. A program that catches DistBackendError cannot tell, and would retry after a
// failure that no new generation mends.
void check_last_failure(const ElasticJob&) {
  const Status failure = last_failure();
  if (!failure.ok() && !ElasticJob::is_loss(Error(failure))) throw_for_torch(failure);
}

std::string explain(const BackendPtr& backend, const std::string& collective,
                    const at::Tensor& tensor) {
  std::string known;
  for (int number = 0; number < kCollectiveCount; ++number) {
    const auto each = static_cast<Collective>(number);
    known.append(number == 0 ? "" : ", ").append(name(each));
    if (name(each) != collective) continue;
    MemberTensors tensors = group_of(backend)->tensors_of_operation();
    const auto& communicator = tensors.members->communicator;
    const ConstView view = tensors.describe(tensor);
    const bool is_on_cpu = tensor.device().is_cpu();
    if (!is_on_cpu && communicator->device()) {
      const char* const copies = ", and copied to memory that the ranks map, and back";
      return fmt::format("{}: the tensor is on {}{}",
                         communicator->maps_devices() ? "cuda" : "nccl", tensor.device().str(),
                         tensors.are_mapped() && !tensors.is_taken_as_it_is(tensor) ? copies : "");
    }
    const Explanation found = communicator->explain(each, view.dtype, view.count);
    return fmt::format("{}: {}{}", found.algorithm, found.reason,
                       is_on_cpu ? "" : ", copied to the host and back");
  }
  TORCH_CHECK_VALUE(false, "\"", collective, "\" is none of: ", known);
}

// Times from C++ the calls that python/commands/bench_backend.py makes from Python. Returns for
// each repetition the seconds, by `clock`, of an all_reduce of each tensor and the wait for all,
// divided by the number of tensors.
std::vector<double> time_all_reduces(const BackendPtr& backend, const Tensors& tensors, int repeat,
                                     int clock) {
  MemberTensors held = group_of(backend)->tensors_of_operation(OperationTensors::Use::reduced);
  const std::shared_ptr<Communicator>& communicator = held.members->communicator;
  const std::vector<View> views = held.outputs(tensors);
  const auto now = [clock] {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  std::vector<double> times;
  std::vector<Work> works;
  for_torch([&] {
    for (int time = 0; time < repeat; ++time) {
      const double started = now();
      for (const View& view : views) works.push_back(communicator->all_reduce(view));
      for (Work& work : works) work.wait();
      times.push_back((now() - started) / static_cast<double>(views.size()));
      works.clear();
    }
  });
  return times;
}

// The keyword arguments of a function of python/stretto/hooks.py. Those that nobody takes are
// unknown.
class Arguments {
 public:
  explicit Arguments(py::dict given) : given_(std::move(given)) {}
  template <class T>
  T take(const char* name, T otherwise) {
    if (!given_.contains(name)) return otherwise;
    const py::object value = given_.attr("pop")(name);
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {
      throw py::type_error(fmt::format("{}={} is of another type, or outside of what is possible",
                                       name, py::repr(value).cast<std::string>()));
    }
  }
  // The choice that has the place of the argument in `choices`.
  template <class Choice>
  Choice take(const char* name, std::initializer_list<const char*> choices) {
    const auto text = take<std::string>(name, *choices.begin());
    const auto found = std::find(choices.begin(), choices.end(), text);
    TORCH_CHECK_VALUE(found != choices.end(), name, "=\"", text, "\" is none of: ",
                      fmt::format("{}", fmt::join(choices.begin(), choices.end(), ", ")));
    return static_cast<Choice>(found - choices.begin());
  }
  bool is_empty() const { return given_.empty(); }
  void end() const {
    TORCH_CHECK_TYPE(is_empty(), "unknown option: ",
                     is_empty() ? "" : py::str(given_.begin()->first).cast<std::string>());
  }

 private:
  py::dict given_;
};

std::shared_ptr<const Compressor> codec_of(const std::string& kind, Arguments& given) {
  if (kind == "dense") return dense();
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  if (kind == "f16") return f16({.clip = given.take("clip", kNoLimit)});
  if (kind == "bf16") return bf16({.clip = given.take("clip", kNoLimit)});
  if (kind == "power_sgd") return power_sgd({.rank = given.take<std::size_t>("rank", 2)});
  if (kind == "int8") return int8({.stochastic = given.take("stochastic", false)});
  if (kind == "one_bit") return one_bit({.stochastic = given.take("stochastic", false)});
  const auto values = given.take<ValueFormat>("values", {"f32", "bf16", "int8"});
  if (kind == "threshold") {
    return threshold({.limit = given.take("limit", 0.0f), .values = values});
  }
  const auto density = given.take("density", 0.01);
  TORCH_CHECK_VALUE(kind == "top_k", "there is no codec '", kind, "'");
  return top_k({.density = density,
                .values = values,
                .warm_up_steps = given.take<std::uint64_t>("warm_up_steps", 0),
                .exact = given.take("exact", true)});
}

CompressionOptions compression_of(const std::string& kind, Arguments& given) {
  CompressionOptions options{.codec = codec_of(kind, given)};
  using Rule = std::tuple<std::string, std::string, py::dict>;  // A pattern, a kind, its options.
  for (const auto& [pattern, of_kind, of_options] : given.take("rules", std::vector<Rule>())) {
    Arguments own(py::dict(of_options.attr("copy")()));
    options.rules.push_back({pattern, codec_of(of_kind, own)});
    own.end();
  }
  options.min_elements = given.take("min_elements", options.min_elements);
  options.dense_steps = given.take("dense_steps", options.dense_steps);
  options.error_feedback = given.take("error_feedback", options.error_feedback);
  options.non_finite = given.take<NonFinite>("non_finite", {"send", "stop", "zero"});
  options.momentum = given.take("momentum", options.momentum);
  options.mask_momentum = given.take("mask_momentum", options.mask_momentum);
  options.clip_norm = given.take("clip_norm", options.clip_norm);
  options.exchange =
      given.take<CompressedExchange>("exchange", {"gather", "divide", "combine", "automatic"});
  if (given.take("automatic", false)) options.compression = Compression::automatic;
  options.seed = given.take("seed", options.seed);
  options.measure_norms = given.take("measure_norms", options.measure_norms);
  return options;
}

std::shared_ptr<DdpCommHook> make_ddp_comm_hook(const std::string& kind, const py::dict& given) {
  const auto made = [](auto make_hook, std::optional<CompressionOptions> on_device) {
    return std::make_shared<DdpCommHook>(
        [make_hook] { return std::make_shared<TwoLevelReduction>(make_hook()); },
        std::move(on_device));
  };
  Arguments arguments(py::dict(given.attr("copy")()));
  if (kind == "f16" && arguments.is_empty()) {
    return made([] { return std::make_shared<F16Reduction>(); }, {});
  }
  if (kind == "bf16" && arguments.is_empty()) {
    return made([] { return std::make_shared<Bf16Reduction>(); }, {});
  }
  return for_torch([&] {
    const CompressionOptions options = compression_of(kind, arguments);
    arguments.end();
    const CompressionOptions known{.codec = options.codec, .exchange = options.exchange};
    return made([options] { return std::make_shared<CompressedReduction>(options); },
                options == known ? std::optional(known) : std::nullopt);
  });
}

py::dict dict_of(const CompressionStatistics* step) {
  if (step == nullptr) return py::dict();
  py::list choices;
  for (const BucketCompression& choice : step->choices) {
    choices.append(py::dict("compressed"_a = choice.compressed,
                            "reason"_a = std::string(name(choice.reason)),
                            "codec_seconds"_a = choice.codec_seconds));
  }
  py::object measured = py::none();
  if (step->measured) {
    measured = py::dict("dense_seconds"_a = step->measured->dense_seconds,
                        "codec_seconds"_a = step->measured->codec_seconds,
                        "other_seconds"_a = step->measured->other_seconds,
                        "saved_seconds"_a = step->measured->saved_seconds);
  }
  return py::dict(
      "step"_a = step->step, "compressed"_a = step->compressed, "buckets"_a = step->buckets,
      "gradient_bytes"_a = step->gradient_bytes, "message_bytes"_a = step->message_bytes,
      "received_bytes"_a = step->received_bytes, "elements"_a = step->elements,
      "sent_values"_a = step->sent_values, "encode_seconds"_a = step->encode_seconds,
      "exchange_seconds"_a = step->exchange_seconds, "decode_seconds"_a = step->decode_seconds,
      "gradient_norm"_a = step->gradient_norm, "residual_norm"_a = step->residual_norm,
      "choices"_a = choices, "measured"_a = measured);
}

py::bytes bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<py::bytes> redistribute(const std::vector<std::string>& states, std::size_t ranks) {
  std::vector<std::vector<std::byte>> saved;
  for (const std::string& state : states) {
    const auto bytes = std::as_bytes(std::span(state));
    saved.emplace_back(bytes.begin(), bytes.end());
  }
  const auto made = for_torch([&] {
    const py::gil_scoped_release released;
    return CompressedReduction::redistribute(saved, ranks);
  });
  std::vector<py::bytes> result;
  for (const std::vector<std::byte>& state : made) result.push_back(bytes_of(state));
  return result;
}

void verify_replicas(const BackendPtr& backend, const std::vector<std::string>& names,
                     const Tensors& tensors) {
  std::vector<std::string> called;
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const at::Tensor bytes = tensors[i].detach().cpu().contiguous();
    const auto* const data = static_cast<const std::byte*>(bytes.const_data_ptr());
    called.push_back(fmt::format("parameter '{}'", names[i]));
    hashes.push_back(content_hash(std::span(data, bytes.nbytes())));
  }
  group_of(backend)->run([&](Communicator& ranks) {
    reducer::check_replicas_hash_alike(ranks, called, hashes, std::nullopt);
  });
}

// Serves the flight record under this name in torch.distributed.elastic.control_plane, if the
// program starts its server: other backends serve theirs there, too.
void register_flight_record() {
  ::c10d::control_plane::registerHandler(
      "dump_stretto_trace_pickle",
      [](const ::c10d::control_plane::Request&, ::c10d::control_plane::Response& response) {
        response.setContent(flight_entries().pickled(), "application/octet-stream");
        response.setStatus(200);
      });
}

using Released = py::call_guard<py::gil_scoped_release>;

void define_groups(py::module_& module) {
  const auto copy = [](const OptionsStretto& self) {
    return c10::make_intrusive<OptionsStretto>(self);
  };
  py::class_<OptionsStretto, ::c10d::Backend::Options, c10::intrusive_ptr<OptionsStretto>>(
      module, "Options", kOptions)
      .def(py::init(&make_options), py::arg("network_timeout") = py::none(),
           py::arg("warn_after") = py::none(), py::arg("disable_shared_memory") = false,
           py::arg("backend") = py::none())
      .def_property_readonly(
          "network_timeout",
          [](const OptionsStretto& self) { return seconds_of(self.join.network_timeout); })
      .def_property_readonly(
          "warn_after", [](const OptionsStretto& self) { return seconds_of(self.join.warn_after); })
      .def_property_readonly(
          "disable_shared_memory",
          [](const OptionsStretto& self) { return self.join.disable_shared_memory; })
      .def("__copy__", copy)
      .def("__deepcopy__",
           [copy](const OptionsStretto& self, const py::dict&) { return copy(self); })
      .def_property(
          "device", [](const OptionsStretto& self) { return self.join.device; },
          [](OptionsStretto& self, std::optional<int> device) { self.join.device = device; });
  // What PyTorch's Python code asks of a backend that can be split.
  py::class_<ProcessGroupStretto, ::c10d::Backend, c10::intrusive_ptr<ProcessGroupStretto>>(
      module, "ProcessGroup")
      .def_property_readonly("options", &ProcessGroupStretto::getBackendOptions)
      // Complex if `dtype` is. DistributedDataParallel asks in C++, and gets real numbers for
      // complex ones.
      .def(
          "allocate_tensor",
          [](ProcessGroupStretto& self, int64_t size, at::ScalarType dtype,
             const at::Device& device) {
            return self.allocateTensor(size, at::device(device).dtype(dtype)).view(dtype);
          },
          py::arg("size"), py::arg("dtype"), py::arg("device"), Released())
      // PyTorch calls it for NCCL, which needs all ranks in each split, also those that get no
      // group.
      .def("perform_nocolor_split", [](const ProcessGroupStretto&, const py::object&) {});
  module.def("create", &create, Released());
}

}  // namespace

PYBIND11_MODULE(_c, module) {
  define_groups(module);
  py::class_<ElasticJob>(module, "ElasticJob")
      .def(py::init(&enter_job))
      .def("join", &join_generation, Released())
      .def("has_newcomers", &has_newcomers, Released())
      .def("check_last_failure", &check_last_failure)
      .def("finish", &finish, Released())
      .def("generation", &ElasticJob::generation);
  py::class_<DdpCommHook, std::shared_ptr<DdpCommHook>>(module, "DdpCommHook")
      .def(py::init(&make_ddp_comm_hook))
      .def(
          "attach",
          [](DdpCommHook& hook, const BackendPtr& backend, const std::vector<std::string>& names,
             const Tensors& parameters, bool may_be_unused) {
            hook.attach(group_of(backend), names, parameters, may_be_unused);
          },
          Released())
      .def(
          "agree",
          [](const DdpCommHook& hook, const BackendPtr& backend, const std::string& name) {
            hook.agree(group_of(backend), name);
          },
          Released())
      .def("reduce", &DdpCommHook::reduce, Released())
      .def("name", &DdpCommHook::name)
      .def("last_step", [](const DdpCommHook& hook) { return dict_of(hook.last_step()); })
      .def("save",
           [](const DdpCommHook& hook) {
             const auto state = [&hook] {
               const py::gil_scoped_release released;  // save() waits for devices.
               return hook.save();
             };
             return bytes_of(state());
           })
      .def("load", [](DdpCommHook& hook, const std::string& state) {
        hook.load(std::as_bytes(std::span(state)));
      });
  module.def("redistribute", &redistribute);
  module.def("shut_down_all", &ProcessGroupStretto::shut_down_all, Released());
  module.def("note", [](const BackendPtr& backend, const std::string& activity) {
    communicator_of(backend)->note(activity);
  });
  module.def("describe_links",
             [](const BackendPtr& backend) { return communicator_of(backend)->describe_links(); });
  module.def("explain", &explain);
  module.def("verify_replicas", &verify_replicas, Released());
  module.def("time_all_reduces", &time_all_reduces, Released());
  register_flight_record();
  module.def("flight_record", [] { return py::bytes(flight_entries().pickled()); });
}

}  // namespace stretto::c10d_backend
