#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Installs a wheel of stretto into a fresh environment beside this Python's torch, and uses it.

The environment has nothing but the wheel, and torch by a path to where it is: to download it again
would prove nothing. Fails unless torchrun starts two ranks, `python -m stretto` runs, and loading
stretto takes at most 100 ms beyond torch (the least of five).

    python python/commands/try_wheel.py build/wheels/stretto-0.1.0-*.whl
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import sysconfig
import tempfile

LOADING_MS = 100
LOADING = """
import time, torch, torch.distributed
begun = time.perf_counter()
import stretto
stretto._module()
print((time.perf_counter() - begun) * 1e3)
"""
TWO = ["--standalone", "--nproc-per-node=2"]
RANKS = pathlib.Path(__file__).resolve().parents[1] / "tests/torchrun_program.py"


def main(wheel: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: object) -> str:
            done = subprocess.run(
                [str(word) for word in command], cwd=folder, capture_output=True, text=True
            )
            if done.returncode != 0:
                sys.exit(f"{command}\n{done.stdout}{done.stderr}")
            return done.stdout

        run(sys.executable, "-m", "venv", "fresh")
        python = pathlib.Path(folder) / "fresh/bin/python"
        run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel.resolve())
        site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        pathlib.Path(site, "torch-of-another.pth").write_text(sysconfig.get_path("purelib"))
        said = run(python, "-m", "torch.distributed.run", *TWO, RANKS)
        if "2 of 2 ranks" not in said:
            sys.exit(f"torchrun: {said}")
        version = run(python, "-c", "import stretto; print(stretto.__version__)").strip()
        if version not in wheel.name or "bench" not in run(python, "-m", "stretto", "--help"):
            sys.exit(f"{wheel.name} has version {version}, or its program does not run")
        milliseconds = min(float(run(python, "-c", LOADING)) for _ in range(5))
        print(f"stretto {version} works; loading it takes {milliseconds:.0f} ms beyond torch")
        if milliseconds > LOADING_MS:
            sys.exit(f"that is more than {LOADING_MS} ms")


main(pathlib.Path(sys.argv[1]))
