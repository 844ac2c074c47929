# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""python -m stretto: the `stretto` program (run, bench, plan, ...)."""

import os
import pathlib
import sys


def main() -> None:
    own = pathlib.Path(__file__).parent / "bin/stretto"
    program = os.environ.get("STRETTO_PROGRAM", str(own))
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"stretto: {program}: {error.strerror}; STRETTO_PROGRAM can name the program")


main()
