#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs on a GPU what tests and doubles cannot show, within minutes, and says what came of it.

Builds what that needs (nothing is fetched), or takes a folder of programs that are built. Ends with
0 if parts have passed and none has failed, 1 if not, 2 if it was called wrongly, 77 if there is no
GPU.

    python3 scripts/gpu_check.py                         build in build/gpu, and run
    python3 scripts/gpu_check.py --bin build/check/bin   run what is there
"""

import argparse
import ctypes
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
NO_GPU = 77
LAST_LINES = 12
ON_ONE_GPU = {"STRETTO_DEVICE": "0"}  # Otherwise the ranks are distributed over the machine's GPUs.
GREATEST_BUFFER_BYTES = 12 << 30
MOST_ADDED_US = 50  # The most that stretto may add to an all_reduce of NCCL.


@dataclasses.dataclass
class Part:
    """A command and its time limit. It is left out if a program in `needs` is missing."""
    name: str
    command: list
    seconds: float
    environment: dict = dataclasses.field(default_factory=dict)
    needs: list = dataclasses.field(default_factory=list)
    judge: object = lambda facts: ""  # Returns what is wrong with the measured facts, or "".


@dataclasses.dataclass
class Outcome:
    name: str
    result: str  # "passed", "failed", "timed out", "left out"
    seconds: float = 0.0
    detail: str = ""
    facts: list = dataclasses.field(default_factory=list)  # The lines of JSON that it has printed.


def find_gpus(driver="libcuda.so.1"):
    """Returns the names of the GPUs, or why there are none."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError as error:
        return [], f"no driver ({error})"
    count = ctypes.c_int()
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if error:
        return [], f"the driver answers with error {error}"
    names = []
    for number in range(count.value):
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGetName(name, len(name), number)
        names.append(name.value.decode())
    return names, "the driver knows no device"


def memory_of_first_gpu(driver="libcuda.so.1"):
    """Returns the bytes of the first GPU, after find_gpus() has found one."""
    total = ctypes.c_size_t()
    error = ctypes.CDLL(driver).cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    if error:
        raise OSError(f"cuDeviceTotalMem: the driver answers with error {error}")
    return total.value


def buffer_bytes(gpu_bytes, ranks):
    """Returns the buffer size for each of `ranks` ranks that share such a GPU, leaving room for
    other memory."""
    return min(GREATEST_BUFFER_BYTES, gpu_bytes * 6 // 10 // ranks)


def run(part, seconds):
    """Runs a part, and after `seconds` kills all processes that it has started."""
    missing = [program for program in part.needs if shutil.which(program) is None]
    if missing:
        return Outcome(part.name, "left out", detail=f"there is no {missing[0]}")
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in part.command], cwd=SOURCE, env={**os.environ, **part.environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True)
    timed_out = False
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    outcome = Outcome(part.name, "passed", time.monotonic() - begin, facts=facts_of(output))
    if timed_out:
        outcome.result = "timed out"
    elif process.returncode != 0 or says_skipped(output):
        outcome.result = "failed"
    elif fault := part.judge(outcome.facts):
        outcome.result, output = "failed", fault
    if outcome.result != "passed":
        outcome.detail = "\n".join(output.strip().splitlines()[-LAST_LINES:])
    return outcome


def facts_of(output):
    facts = []
    for line in output.splitlines():
        # Each line of a rank begins with the rank's number.
        match = re.search(r"\{\".*\}$", line)
        try:
            facts += [json.loads(match.group())] if match else []
        except json.JSONDecodeError:
            pass
    return facts


def says_skipped(output):
    """Whether a test was skipped: on a machine with a GPU none should be."""
    return re.search(r"^\[  SKIPPED \]| \.\.\. skipped ", output, re.MULTILINE) is not None


def unpack(packages, build):
    """Unpacks Debian packages that the machine lacks, and adds them to the search paths of
    programs."""
    root = (build / "packages").resolve()
    root.mkdir(parents=True, exist_ok=True)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    usr = root / "usr"
    for variable, value in (("CMAKE_PREFIX_PATH", usr),
                            ("LD_LIBRARY_PATH", usr / "lib" / f"{os.uname().machine}-linux-gnu")):
        os.environ[variable] = f"{value}:{os.environ.get(variable, '')}".rstrip(":")


def torch_folder():
    found = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)"],
        capture_output=True, text=True, check=False)
    return found.stdout.strip()


def has_headers_of_python():
    return pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()


def building(name, folder, jobs, *targets):
    return Part(name, ["cmake", "--build", folder, "--parallel", jobs, "--target", *targets], 150,
                needs=["cmake", "ninja"])


def configuring(folder, torch):
    with_torch = ["-DSTRETTO_TORCH=ON", f"-DTorch_DIR={torch}/Torch"] if torch else []
    return Part("configuring", ["cmake", "-S", SOURCE, "-B", folder, "-G", "Ninja",
                                "-DSTRETTO_UNITY=ON", "-DSTRETTO_CUDA=ON",
                                *(with_torch or ["-DSTRETTO_TORCH=OFF"])],
                60, needs=["cmake", "ninja", "nvcc"])


def kernel_parts(folder):
    kernels, nccl = str(folder / "stretto_cuda_device_test"), str(folder / "nccl_test")
    parts = [Part("kernels and streams", [kernels], 60, needs=[kernels]),
             Part("NCCL is found", [nccl, "--gtest_filter=NcclLoading.RealNccl*"], 30,
                  needs=[nccl])]
    for tool in ("memcheck", "racecheck"):
        # The tool makes kernels ten times slower, so only tests that do not measure run with it.
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", kernels,
                   "--gtest_filter=OnDevice.*Bits*:OnDevice.MemoryIs*"]
        parts.append(Part(f"compute-sanitizer {tool}", command, 60,
                          needs=["compute-sanitizer", kernels]))
    return parts


def nccl_alone_part(folder, ranks):
    command = [sys.executable, SOURCE / "bench" / "gpus.py", "--bin", folder, "--ranks", ranks,
               "--bytes", "8,64K,1M", "--in-flight", "4", "--json", "/dev/stdout"]
    name = "all_reduce against NCCL alone" + (f", {ranks} ranks" if ranks > 1 else "")
    return Part(name, command, 90, needs=[str(folder / "gpu_driver")],
                judge=slowness_beside_nccl)


def slowness_beside_nccl(facts):
    """Says which short all_reduces take longer than NCCL's by more than stretto may add; the limit
    finds only gross slowness.

    A wrong sum ends the program, so it needs no check here.
    """
    times = {}
    for fact in facts:
        if fact["in_flight"] == 1 and fact["bytes"] <= 64 << 10:
            times.setdefault((fact["ranks"], fact["bytes"]), {})[fact["system"]] = (
                statistics.median(fact["us"]))
    for (ranks, size), of in times.items():
        if not {"NCCL alone", "stretto nccl"} <= of.keys():
            return f"NCCL was not measured with {ranks} ranks"
        added = of["stretto nccl"] - of["NCCL alone"]
        if added > MOST_ADDED_US:
            return f"{ranks} ranks, {size} bytes: stretto adds {added:.0f} us to NCCL's all_reduce"
    return "" if times else "nothing was measured"


def training_parts(folder, gpu_bytes):
    launcher, program = str(folder / "stretto"), str(folder / "gpu_rank_program")

    def ranks(name, count, *arguments, **environment):
        return Part(name, [launcher, "run", "-n", count, "--", program, "cuda", *arguments], 45,
                    ON_ONE_GPU | environment, needs=[launcher, program])

    # NCCL accepts only one rank per GPU.
    return [*codec_parts(folder),
            ranks("NCCL and training, 1 rank", 1, STRETTO_BACKEND="nccl"),
            *(ranks(f"collectives, {count} ranks on one GPU", count, "1024",
                    buffer_bytes(gpu_bytes, count), STRETTO_BACKEND="cuda") for count in (2, 4)),
            sanitized_collectives(launcher, program),
            ranks("training, 2 ranks on one GPU", 2),
            ranks("training, 4 ranks on one GPU", 4),
            ranks("training by PyTorch's operators", 2, STRETTO_CUDA_KERNELS="/nowhere"),
            ranks("losses of three models, 2 ranks", 2, "losses"),
            ranks("losses, by our kernels", 2, "losses", STRETTO_BACKEND="cuda"),
            # Compares with the same step without communication, and with PyTorch's DDP over Gloo.
            steps("steps of three models, 2 ranks", folder),
            steps("steps, by our kernels", folder, "--systems", "stretto", "--backend", "cuda"),
            backend_part(folder.parent)]


def codec_parts(folder):
    tests = str(folder / "device_torch_test")
    racecheck = ["compute-sanitizer", "--tool", "racecheck", "--error-exitcode", "1", tests,
                 "--gtest_filter=Of/ExtractionsOnAGpu.*"]
    return [Part("kernels of codecs", [tests, "--gtest_filter=*OnAGpu.*"], 60, needs=[tests]),
            Part("compute-sanitizer racecheck, codecs", racecheck, 60,
                 needs=["compute-sanitizer", tests])]


def steps(name, folder, *options):
    command = [sys.executable, SOURCE / "bench" / "ddp.py", "--device", "cuda", "--modes",
               "none,ddp", "--rounds", "3", "--seconds", "0.3", "--build", folder.parent,
               "--json", "/dev/stdout", *options]
    return Part(name, command, 90, {"STRETTO_TORCH_PYTHON": sys.executable},
                needs=[str(folder / "ddp_driver")])


def sanitized_collectives(launcher, program):
    command = [launcher, "run", "-n", "2", "--", "compute-sanitizer", "--tool", "memcheck",
               "--report-api-errors", "no", "--error-exitcode", "1", program, "cuda", "64"]
    return Part("compute-sanitizer memcheck, 2 ranks", command, 90,
                ON_ONE_GPU | {"STRETTO_BACKEND": "cuda"},
                needs=["compute-sanitizer", launcher, program])


def backend_part(build):
    """The part for PyTorch's backend, if it is built for this Python."""
    module = build / "python" / "stretto" / ("_c" + sysconfig.get_config_var("EXT_SUFFIX"))
    return Part("PyTorch's backend, 1 and 2 ranks",
                [sys.executable, "-m", "unittest", "-v", "device_test.GpuTest"], 90,
                {"PYTHONPATH": f"{build / 'python'}:{SOURCE / 'python' / 'tests'}",
                 "STRETTO_BUILD_DIR": str(build)}, needs=[str(module)])


def run_all(parts, seconds):
    """Runs parts while there is time; the remaining ones count as failed."""
    deadline = time.monotonic() + seconds
    outcomes = []
    for part in parts:
        left = deadline - time.monotonic()
        if left < 1:
            outcomes.append(Outcome(part.name, "failed", detail="there was no time left for it"))
        else:
            outcomes.append(run(part, min(part.seconds, left)))
        print(f"  {part.name:32}{outcomes[-1].result:12}{outcomes[-1].seconds:6.1f} s",
              flush=True)
    return outcomes


def show(outcomes):
    print(f"\n{'part':34}{'result':12}{'time':>8}")
    for outcome in outcomes:
        print(f"{outcome.name:34}{outcome.result:12}{outcome.seconds:6.1f} s")
        for line in outcome.detail.splitlines():
            print(f"    {line}")
        for fact in outcome.facts:
            print("    " + ", ".join(f"{key} {value}" for key, value in fact.items()))


def main(arguments, driver="libcuda.so.1"):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build" / "gpu",
                        help="the folder to build in")
    parser.add_argument("--bin", type=pathlib.Path, help="programs that are built: builds nothing")
    parser.add_argument("--packages", type=pathlib.Path,
                        help="a folder of Debian packages (*.deb) that the machine lacks")
    parser.add_argument("--seconds", type=float, default=480, help="for everything")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=pathlib.Path, help="the file to write results to")
    options = parser.parse_args(arguments)
    gpus, reason = find_gpus(driver)
    if not gpus:
        print(f"no GPU: {reason}; nothing was run.")
        return NO_GPU
    begin = time.monotonic()
    print(f"on {', '.join(gpus)}:")
    if options.packages:
        unpack(options.packages, options.build)
    folder = (options.bin or options.build / "bin").resolve()
    before_kernels, before_training = [], []
    if not options.bin:
        torch = torch_folder()
        before_kernels = [configuring(options.build, torch),
                          building("building", options.build, options.jobs,
                                   "stretto_cuda_device_test", "nccl_test", "stretto_tool",
                                   "gpu_driver")]
        if torch:
            backend = ["stretto_python"] if has_headers_of_python() else []
            before_training = [building("building with torch", options.build, options.jobs,
                                        "gpu_rank_program", "device_torch_test",
                                        "ddp_driver", *backend)]
    alone = [nccl_alone_part(folder, ranks) for ranks in sorted({1, len(gpus)})]
    parts = (before_kernels + kernel_parts(folder) + alone + before_training
             + training_parts(folder, memory_of_first_gpu(driver)))
    outcomes = run_all(parts, options.seconds)
    show(outcomes)
    if options.json:
        options.json.write_text(json.dumps(
            {"gpus": gpus, "seconds": round(time.monotonic() - begin, 1),
             "parts": [dataclasses.asdict(outcome) for outcome in outcomes]}, indent=1) + "\n")
    results = {outcome.result for outcome in outcomes}
    return int("passed" not in results or bool(results & {"failed", "timed out"}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
