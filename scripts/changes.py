# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What has changed lately, by git: what looks at sources for a bounded time begins with that."""

import hashlib
import pathlib
import subprocess
import sys

# What a working day has changed counts as recent.
_RECENT_SECONDS = 12 * 3600


def git(root: pathlib.Path, *arguments: str) -> str:
    """What it prints; nothing where there is no repository. Ends this program without git."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True).stdout
    except FileNotFoundError:
        sys.exit("git is missing, which says what belongs to the repository: install it")


def drawn(root: pathlib.Path, paths: list[str]) -> list[str]:
    """The paths in an order that every tree draws anew."""
    tree = git(root, "rev-parse", "HEAD^{tree}")
    return sorted(paths, key=lambda path: hashlib.sha256((tree + path).encode()).hexdigest())


def lately(root: pathlib.Path) -> dict[str, int]:
    """Which files have changed in the last hours before HEAD: each with the number of commits since
    then, 0 if it is new or differs from HEAD. A clone without history has only the latter."""
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
