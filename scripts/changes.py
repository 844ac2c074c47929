# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Lists recently changed files, by git: checks that run for a bounded time begin with these."""

import hashlib
import pathlib
import subprocess
import sys

# Changes of the last working day count as recent.
_RECENT_SECONDS = 12 * 3600


def git(root: pathlib.Path, *arguments: str) -> str:
    """Returns the output of git, empty if there is no repository. Exits if git is not installed."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True).stdout
    except FileNotFoundError:
        sys.exit("git is missing, which says what belongs to the repository: install it")


def drawn(root: pathlib.Path, paths: list[str]) -> list[str]:
    """Returns the paths in an order that depends on the hash of HEAD's tree."""
    tree = git(root, "rev-parse", "HEAD^{tree}")
    return sorted(paths, key=lambda path: hashlib.sha256((tree + path).encode()).hexdigest())


def lately(root: pathlib.Path) -> dict[str, int]:
    """Returns the files changed in the last hours before HEAD, each with the number of commits
    since then: 0 if it is new or differs from HEAD. A clone without history has only the latter
    files."""
    new = git(root, "ls-files", "--others", "--exclude-standard")
    changed = git(root, "diff", "--name-only", "HEAD")
    ages = {path: 0 for path in (new + changed).splitlines()}
    if git(root, "rev-list", "--count", "HEAD").strip() == "1":
        return ages
    since = int(git(root, "log", "-1", "--format=%ct") or 0) - _RECENT_SECONDS
    history = git(root, "log", "-m", "--first-parent", f"--since={since}", "--name-only",
                  "--format=tformat:commit")
    for age, commit in enumerate(history.split("commit\n")):
        for path in filter(None, commit.splitlines()):
            ages.setdefault(path, age)
    return ages
