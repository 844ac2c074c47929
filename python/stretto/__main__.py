# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""python -m stretto: the `stretto` program (run, bench, plan, ...)."""

import os
import pathlib
import sys


def main() -> None:
    own = pathlib.Path(__file__).parent / "bin/stretto"
    program = os.environ.get("STRETTO_PROGRAM", str(own))
    if not os.access(program, os.X_OK):
        sys.exit(f"stretto: there is no program at {program}; STRETTO_PROGRAM can name it")
    os.execv(program, [program, *sys.argv[1:]])


main()
