#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Installs a wheel of stretto into a fresh environment that sees this Python's torch, and uses it.

The environment has only the wheel, and a path to the existing torch: downloading torch again would
prove nothing. Fails unless torchrun starts two ranks, `python -m stretto` runs, and loading stretto
takes at most 100 ms beyond torch (in one of five attempts).

    python python/commands/try_wheel.py build/wheels/stretto-0.1.0-*.whl
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

LOADING_MS = 100
TWO = ["--standalone", "--nproc-per-node=2"]
PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "tests"


def main(wheel: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: object, **variables: str) -> str:
            done = subprocess.run(
                [str(word) for word in command], cwd=folder, capture_output=True, text=True,
                env={**environment, **variables},
            )
            if done.returncode != 0:
                sys.exit(f"{command}\n{done.stdout}{done.stderr}")
            return done.stdout

        # Without PYTHONPATH, which may contain a build of stretto, as in tests.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        run(sys.executable, "-m", "venv", "fresh")
        python = pathlib.Path(folder) / "fresh/bin/python"
        run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel.resolve())
        site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        pathlib.Path(site, "torch-of-another.pth").write_text(sysconfig.get_path("purelib"))
        said = run(python, "-m", "torch.distributed.run", *TWO, PROGRAMS / "torchrun_program.py")
        if "2 of 2 ranks" not in said:
            sys.exit(f"torchrun: {said}")
        version = run(python, "-c", "import stretto; print(stretto.__version__)").strip()
        if version not in wheel.name or "bench" not in run(python, "-m", "stretto", "--help"):
            sys.exit(f"{wheel.name} has version {version}, or its program does not run")
        kernels = pathlib.Path(site, "stretto/libstretto_cuda_kernels.so")
        if kernels.exists():  # The wheel was built with nvcc.
            run(python, "-c", f"import ctypes; ctypes.CDLL('{kernels}')")
        for _ in range(5):  # The machine may be busy.
            program = PROGRAMS / "loading_program.py"
            milliseconds = float(run(python, program, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
            if milliseconds <= LOADING_MS:
                break
        else:
            sys.exit(f"loading stretto takes {milliseconds:.0f} ms, more than {LOADING_MS}")
        print(f"stretto {version} works; loading it takes {milliseconds:.0f} ms beyond torch")


main(pathlib.Path(sys.argv[1]))
