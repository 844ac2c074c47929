#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a model with 1 process and with several, checks that they agree, and draws it.

./dev demo builds what this needs and calls it. Writes report.svg and summary.json, and leaves each
run's record and output beside them.
"""

import argparse
import dataclasses
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import demo_report

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Losses of different numbers of processes differ by rounding, because gradients are summed in
# another order: by some 1e-6 for these models. A wrong gradient causes differences of 0.01 and more
# within a few steps.
LOSS_TOLERANCE = 1e-4
WARM_UP_STEPS = 5
RUN_TIMEOUT_SECONDS = 300


class DemoError(Exception):
    """A claim of the demo is false; the text says which."""


@dataclasses.dataclass
class Run:
    """One training run and what it recorded."""

    processes: int
    command: list
    start: dict = dataclasses.field(default_factory=dict)
    steps: list = dataclasses.field(default_factory=list)
    end: dict = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def column(self, key):
        return [step[key] for step in self.steps]

    def label(self):
        return "1 process" if self.processes == 1 else f"{self.processes} processes"


class Progress:
    """One line per run: redrawn on a terminal, written a few times elsewhere."""

    def __init__(self, label):
        self.label = label
        self.live = sys.stdout.isatty()
        self.quarters = 0

    def show(self, done, total, loss):
        if self.live:
            filled = 30 * done // max(total, 1)
            bar = "#" * filled + "." * (30 - filled)
            print(f"\r{self.label:>12}  [{bar}] step {done}/{total}  loss {loss:.4f} ",
                  end="", flush=True)
        elif total and 4 * done // total > self.quarters:
            self.quarters = 4 * done // total
            print(f"{self.label:>12}  step {done}/{total}  loss {loss:.4f}", flush=True)

    def finish(self, text):
        start = "\r" if self.live else ""
        print(f"{start}{self.label:>12}  {text:<70}", flush=True)


def find_program(build_dir, name):
    path = build_dir / "bin" / name
    if not path.is_file():
        raise DemoError(f"{build_dir} has no program {name}; ./dev demo builds it")
    return path


def shown_path(path):
    """Returns the path as short as a person would type it."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def trainer_command(options, processes, record):
    trainer = find_program(options.build_dir, "train_digits")
    command = [trainer, "--data", ROOT / "data" / "digits.csv", "--model", options.model,
               "--epochs", options.epochs, "--output", record]
    if processes > 1:
        tool = find_program(options.build_dir, "stretto")
        command = [tool, "run", "-n", processes, "--"] + command
    return [str(word) for word in command]


def read_record(run, lines):
    for line in lines:
        entry = json.loads(line)
        if entry.get("event") == "start":
            run.start = entry
        elif entry.get("event") == "end":
            run.end = entry
        else:
            # JSON has no NaN, so a loss that is NaN is written as null.
            entry["loss"] = float("nan") if entry["loss"] is None else entry["loss"]
            run.steps.append(entry)


def follow(process, run, record, progress):
    """Reads the record while the run writes it."""
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    position = 0
    while True:
        ended = process.poll() is not None
        if record.exists():
            with record.open(encoding="utf-8") as file:
                file.seek(position)
                text = file.read()
            complete = text[:text.rfind("\n") + 1]
            position += len(complete.encode())
            read_record(run, complete.splitlines())
        if run.steps:
            progress.show(len(run.steps), run.start.get("steps", 0), run.steps[-1]["loss"])
        if ended:
            return
        if time.monotonic() > deadline:
            raise DemoError(f"{run.label()}: not done after {RUN_TIMEOUT_SECONDS} s")
        time.sleep(0.1)


def train(options, processes):
    record = options.output / f"record_{processes}.jsonl"
    record.unlink(missing_ok=True)
    run = Run(processes, trainer_command(options, processes, record))
    progress = Progress(run.label())
    log_path = options.output / f"output_{processes}.txt"
    begin = time.monotonic()
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(run.command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            follow(process, run, record, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    run.seconds = time.monotonic() - begin
    if process.returncode != 0 or not run.end:
        tail = "\n".join(log_path.read_text(encoding="utf-8").splitlines()[-20:])
        raise DemoError(f"{run.label()}: exit status {process.returncode}\n"
                        f"  {shlex.join(run.command)}\n{tail}")
    speed = statistics.median(run.column("samples_per_second")[WARM_UP_STEPS:])
    progress.finish(f"{len(run.steps)} steps in {run.seconds:.1f} s, {speed:.0f} images/s, "
                    f"loss {run.steps[-1]['loss']:.4f}")
    return run


def summarize(run, reference):
    """Returns the numbers of a run that the report shows. Times are per step, without the
    warm-up."""
    exposed = run.column("exposed_seconds")[WARM_UP_STEPS:]
    communication = run.column("communication_seconds")[WARM_UP_STEPS:]
    step = run.column("step_seconds")[WARM_UP_STEPS:]
    return {
        "processes": run.processes,
        "steps": len(run.steps),
        "links": run.start["links"],
        "progress_thread": run.start["progress_thread"],
        "first_loss": run.steps[0]["loss"],
        "final_loss": run.steps[-1]["loss"],
        "test_accuracy": run.end["test_accuracy"],
        "samples_per_second": statistics.median(run.column("samples_per_second")[WARM_UP_STEPS:]),
        "step_seconds": statistics.fmean(step),
        "communication_seconds": statistics.fmean(communication),
        "exposed_seconds": statistics.fmean(exposed),
        "max_loss_difference": max(abs(ours - theirs) for ours, theirs in
                                   zip(run.column("loss"), reference.column("loss"))),
        "steps_with_equal_parameters": sum(run.column("ranks_agree")),
        "wall_seconds": run.seconds,
        "command": shlex.join(shown_path(word) if word.startswith("/") else word
                              for word in run.command),
    }


def check(summaries):
    """Returns the demo's claims as sentences. Raises DemoError if one of them is false."""
    claims = []
    for item in summaries[1:]:
        count, equal, steps = item["processes"], item["steps_with_equal_parameters"], item["steps"]
        if equal != steps:
            raise DemoError(f"{count} processes: parameters differed between ranks after "
                            f"{steps - equal} of {steps} steps")
        if not item["max_loss_difference"] <= LOSS_TOLERANCE:
            raise DemoError(f"{count} processes: the loss differs from that of 1 process by "
                            f"{item['max_loss_difference']:.2g}; rounding explains "
                            f"{LOSS_TOLERANCE}")
        claims.append(f"{count} processes: parameters bit-identical on all ranks after each of "
                      f"{steps} steps; the loss is that of 1 process within "
                      f"{item['max_loss_difference']:.1e}")
    if summaries[0]["final_loss"] > 0.5 * summaries[0]["first_loss"]:
        raise DemoError("the model has learned nothing: the loss has not even halved")
    claims.append(f"the model learns: loss {summaries[0]['first_loss']:.2f} to "
                  f"{summaries[0]['final_loss']:.3f}, {summaries[0]['test_accuracy']:.1%} of the "
                  "unseen digits are read correctly")
    return claims


def communication_text(item):
    """Describes how long communication took and how much time it added: neither is a part of the
    other."""
    return (f"{item['processes']} processes: a step took {item['step_seconds'] * 1e3:.1f} ms; from "
            "the first bucket to the last, communication took "
            f"{item['communication_seconds'] * 1e3:.1f} ms; it cost the step "
            f"{item['exposed_seconds'] * 1e3:.1f} ms (waiting, copies, buffers)")


def next_steps(options):
    stretto = shown_path(find_program(options.build_dir, "stretto"))
    trainer = shown_path(find_program(options.build_dir, "train_digits"))
    return [
        ("the same in twenty lines (examples/02_train_digits.cc)",
         f"./dev build 02_train_digits && {stretto} run -n 2 -- build/release/bin/02_train_digits"),
        ("another model, more communication", "./dev demo --model mlp"),
        ("see what was chosen, and why",
         f"STRETTO_LOG=info {stretto} run -n 2 -- {trainer} --epochs 1 --output /dev/null"),
        ("the tests; with --all the slow ones, too", "./dev test"),
    ]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release",
                        help="where the programs are (default: build/release)")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build" / "demo",
                        help="folder for the report (default: build/demo)")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4],
                        help="numbers of processes to compare with one (default: 2 4)")
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    if any(count < 2 for count in options.processes):
        parser.error("--processes: each number is at least 2; one process is always there")
    options.build_dir = options.build_dir.resolve()
    options.output = options.output.resolve()
    return options


def main():
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    print("Training on 1536 handwritten digits; every step takes the same 128 of them, whatever "
          "the number of processes.")
    runs = [train(options, processes) for processes in [1] + options.processes]
    summaries = [summarize(run, runs[0]) for run in runs]
    claims = check(summaries)
    path = demo_report.write(options.output, runs, summaries, claims)
    print()
    for claim in claims:
        print(f"checked: {claim}")
    for item in summaries[1:]:
        print(communication_text(item))
    print(f"\npicture: {shown_path(path)}\nnumbers: {shown_path(path.with_name('summary.json'))}")
    print("\nTry next:")
    for what, command in next_steps(options):
        print(f"  {command}\n      {what}")


if __name__ == "__main__":
    try:
        main()
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("\ndemo: interrupted")
