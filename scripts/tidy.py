#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks the rules of this repository that no compiler knows; ./dev tidy calls it.

Layers, sizes of files and functions, words, calls that the library must not make, and headers that
compile alone. Prints `path:line: what is wrong; what to do`, and exits 1 if there is anything.
"""

import argparse
import pathlib
import re
import sys
from typing import Callable, Iterator, NamedTuple

import changes
import header_check
import source_text

MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500
MAX_HEADER_LINES = 300
MAX_BLOB_BYTES = 512 * 1024

HEADER_SUFFIXES = {".h", ".cuh"}  # .cuh files are for nvcc, the only compiler that accepts them.
CPP_SUFFIXES = HEADER_SUFFIXES | {".cc", ".cu"}
CODE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
CODE_NAMES = {"dev", "run", "CMakeLists.txt", "layers.txt", "packages.txt"}

# Written in halves so that this file does not contain what it forbids.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")

# Which folders may include third-party headers. An entry for a folder includes its subfolders.
EXTERNAL_INCLUDES = [
    (r"(torch|ATen|c10)/", ["stretto/torch_device", "stretto/torch", "stretto/torch.h",
                            "stretto/c10d", "examples", "tests", "bench/drivers"]),
    (r"hwy/", ["stretto/kernel"]),
    (r"openssl/", ["stretto/bootstrap"]),
    (r"spdlog/", ["stretto/base"]),
    (r"CLI/", ["tools", "tests", "examples"]),
    (r"nlohmann/", ["stretto/communicator", "tools", "tests", "examples"]),
    (r"mpi\.h", ["stretto/transport/mpi", "tests/differential", "bench/drivers"]),
    (r"(ucp|uct|ucs)/", ["stretto/transport/ucx"]),
    (r"cuda", ["stretto/cuda"]),
    (r"gtest/|rapidcheck", ["tests"]),
]


class Forbidden(NamedTuple):
    pattern: re.Pattern
    instead: str
    allowed_in: tuple[str, ...] = ()


# A call at the start of a statement; methods and declarations of the same name do not match.
_CALL = r"(?:^|[;{}?]|(?<!:):|\belse\b|\))\s*(?:std::|::)?"
FORBIDDEN_IN_LIBRARY = [
    Forbidden(
        re.compile(r"(?<!\w)(?:std)?::(?:_?exit|quick_exit|abort|terminate)\b"
                   r"|" + _CALL + r"(?:_?exit|quick_exit|abort|terminate)\s*\(\s*(?:\)|[\dE])"),
        "a library does not end its process: return a Status"),
    Forbidden(
        re.compile(r"(?<![\w.])(?:std::|::)?(?:f|v|vf)?printf\s*\(|(?<!\w)(?:std::)?puts\s*\("
                   r"|std::(?:cout|cerr|clog)\b|fmt::print\b"),
        "use log() of stretto/base/log.h"),
    Forbidden(
        re.compile(r"(?<!\w)(?:secure_)?(?:getenv|setenv|unsetenv|putenv)\s*\("),
        "take an Environment (stretto/base/environment.h)", ("stretto/base",)),
    Forbidden(
        re.compile(r"std::j?thread\b(?!::)|(?<!\w)pthread_create\b|std::async\b"),
        "threads belong to group/, bootstrap/, job/, transport/, nccl/ and c10d/",
        ("stretto/group", "stretto/job", "stretto/bootstrap", "stretto/transport", "stretto/nccl",
         "stretto/c10d",
         "stretto/base/thread.h", "stretto/base/thread.cc")),
    Forbidden(
        re.compile(r"std::j?thread\s*[({]"),
        "a thread may not be to be had: use start_thread() of stretto/base/thread.h",
        # The plug-in has no symbol of stretto's.
        ("stretto/base/thread.cc", "stretto/transport/mpi/collectives.cc")),
    Forbidden(
        re.compile(r"(?<![\w.>])(?:std::|::)?s?rand\s*\(|std::(?:mt19937|default_random_engine)"),
        "use Random of stretto/base/random.h"),
    Forbidden(
        re.compile(r"(?<!\w)(?:std::)?(?:sprintf|strcpy|strcat|strtok|gets)\s*\("),
        "use fmt::format, or a span with its bound"),
    Forbidden(
        re.compile(r"(?<!\w)assert\s*\("),
        "use STRETTO_CHECK (stretto/base/check.h): it stays in release builds"),
    Forbidden(
        re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\bHAVE_"),
        "an optional library lives in its own folder, which CMake leaves out"),
    Forbidden(
        re.compile(r"\busing\s+namespace\s+std\b"), "name what you use"),
]


class Source:
    """One file of the repository, read once."""

    def __init__(self, root: pathlib.Path, path: str):
        self.path = path
        # The path by which others include it. Public headers are in include/, others beside the
        # sources.
        self.is_public = path.startswith("include/")
        self.place = path.removeprefix("include/")
        self.suffix = pathlib.PurePosixPath(path).suffix
        self.name = pathlib.PurePosixPath(path).name
        self.bytes = (root / path).read_bytes()
        self.is_cpp = self.suffix in CPP_SUFFIXES
        self.is_bash = self.bytes.startswith(b"#!/usr/bin/env bash") or self.suffix == ".sh"
        self.is_header = self.suffix in HEADER_SUFFIXES
        self.is_code = self.suffix in CODE_SUFFIXES or self.name in CODE_NAMES or self.is_bash
        self.text = self.bytes.decode("utf-8", "replace") if self.is_code or self.is_prose else ""
        self.lines = self.text.splitlines()

    @property
    def is_prose(self) -> bool:
        return self.suffix == ".md"

    @property
    def is_test(self) -> bool:
        return re.search(r"_(test|bench|fuzz)\.cc$", self.path) is not None

    @property
    def layer(self) -> str:
        """Returns the layer of a file of the library; empty for stretto/*.h, tools, tests,
        examples."""
        parts = self.place.split("/")
        return parts[1] if parts[0] == "stretto" and len(parts) > 2 else ""

    def lies_in(self, folders) -> bool:
        return any(self.place == folder or self.place.startswith(folder + "/")
                   for folder in folders)


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def read_layers(text: str) -> dict[str, list[str]]:
    """Parses stretto/layers.txt to {layer: the layers that it may include}, in the order of the
    file."""
    rows = [line.split() for line in text.splitlines() if re.match(r"[a-z]", line)]
    return {row[0]: row[1:] for row in rows}


def check_layers_file(layers: dict[str, list[str]]) -> Iterator[Finding]:
    """Checks that arrows point only upwards in the file, so that they cannot form a cycle."""
    seen = set()
    for layer, used in layers.items():
        for other in used:
            if other not in seen:
                text = f"{layer} uses {other}, which is not above it"
                yield Finding("stretto/layers.txt", 1, text)
        seen.add(layer)


def check_layers_table(layers: dict[str, list[str]], document: str) -> Iterator[Finding]:
    """Checks that ARCHITECTURE.md lists the layers as stretto/layers.txt does, in the same
    order."""
    rows = re.findall(r"^\| ([a-z]\w*) \| ([a-z0-9_ ]*)\| [^|]+ \|$", document, re.MULTILINE)
    shown = [(layer, used.split()) for layer, used in rows if layer in layers]
    for layer, used in layers.items():
        if (layer, used) not in shown:
            yield Finding("ARCHITECTURE.md", 1, f"has no row: | {layer} | {' '.join(used)} | ...")
    if [layer for layer, _ in shown] != list(layers):
        yield Finding("ARCHITECTURE.md", 1, "its layers are not in the order of stretto/layers.txt")


def check_blob(source: Source) -> Iterator[Finding]:
    if len(source.bytes) > MAX_BLOB_BYTES:
        yield Finding(source.path, 1, f"{len(source.bytes)} bytes; at most {MAX_BLOB_BYTES}")


def check_lines(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if line != line.rstrip():
            yield Finding(source.path, number, "space at the end of the line")
        if source.is_code and len(line) > MAX_COLUMNS:
            yield Finding(source.path, number, f"{len(line)} columns; at most {MAX_COLUMNS}")
        if match := UNFINISHED.search(line):
            yield Finding(source.path, number, f"{match.group()}: finish it, or write an issue")
    if source.text and not source.text.endswith("\n"):
        yield Finding(source.path, len(source.lines), "no line break at the end of the file")


def check_head(source: Source) -> Iterator[Finding]:
    if not source.is_code:
        return
    head = "\n".join(source.lines[:4])
    if not re.search(r"^(//|#) Copyright the stretto authors\.\n\1 SPDX-License-Identifier: "
                     r"Apache-2\.0$", head, re.MULTILINE):
        yield Finding(source.path, 1, "needs the two lines of copyright and SPDX licence")
    # A *-inl.h is included once for every SIMD target, on purpose.
    is_plain_header = source.is_header and not source.name.endswith("-inl.h")
    if is_plain_header and "#pragma once" not in source.lines:
        yield Finding(source.path, 1, "needs #pragma once")


def check_sizes(source: Source) -> Iterator[Finding]:
    if not (source.is_cpp or source.is_bash or source.suffix == ".py"):
        return
    limit = MAX_HEADER_LINES if source.is_header else MAX_FILE_LINES
    if len(source.lines) > limit:
        yield Finding(source.path, limit, f"{len(source.lines)} lines; at most {limit}: split it")
    functions = []  # clang-tidy checks the functions of C++.
    if source.is_bash:
        functions = source_text.bash_functions(source.text)
    elif source.suffix == ".py":
        functions = source_text.python_functions(source.text)
    for function in functions:
        if function.lines > MAX_FUNCTION_LINES:
            yield Finding(source.path, function.first_line,
                          f"{function.name} has {function.lines} lines; "
                          f"at most {MAX_FUNCTION_LINES}: name its parts")


def check_calls(source: Source) -> Iterator[Finding]:
    if not source.is_cpp or source.is_test or not source.place.startswith("stretto/"):
        return
    for number, line in enumerate(source_text.code_only(source.text).splitlines(), 1):
        for rule in FORBIDDEN_IN_LIBRARY:
            match = rule.pattern.search(line)
            if match and not source.lies_in(rule.allowed_in):
                word = match.group().strip(" (;{}?:)")
                yield Finding(source.path, number, f"{word}: {rule.instead}")


def includes(source: Source) -> Iterator[tuple[int, str, bool]]:
    """Yields line, path, and whether the path is quoted: "own.h" rather than <external.h>."""
    for number, line in enumerate(source.lines, 1):
        if match := re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line):
            yield number, match.group(2), match.group(1) == '"'


def layer_problem(source: Source, path: str, layers: dict[str, list[str]]) -> str:
    """Returns why `source` may not include our own file `path`; empty if it may."""
    top, *rest = path.split("/")
    if not source.place.startswith("stretto/"):
        return ""
    if top in ("tests", "examples", "tools", "bench"):
        return "" if source.is_test and top == "tests" else f"the library does not know {top}/"
    if not source.layer:
        uses_torch = rest[0] in ("torch", "torch.h") and source.place != "stretto/torch.h"
        return "only stretto/torch.h may need libtorch" if uses_torch else ""
    if len(rest) == 1:
        return "name the layer's header: umbrella headers are for users of the library"
    # Tests may start ranks as threads, as users do.
    may_use = {source.layer, *layers.get(source.layer, []), *(["job"] if source.is_test else [])}
    if rest[0] not in may_use:
        return f"stretto/layers.txt does not let {source.layer} include {rest[0]}"
    return ""


def check_includes(source: Source, layers: dict[str, list[str]]) -> Iterator[Finding]:
    if not source.is_cpp:
        return
    if source.layer and source.layer not in layers:
        yield Finding(source.path, 1, f"{source.layer} is no layer of stretto/layers.txt")
    for number, path, quoted in includes(source):
        own = path.split("/")[0] in ("stretto", "tools", "tests", "examples", "bench")
        external = any(re.match(pattern, path) for pattern, _ in EXTERNAL_INCLUDES)
        if quoted and not own and not external:
            yield Finding(source.path, number, f'"{path}": write the path from the repository root')
        problem = layer_problem(source, path, layers) if own else ""
        if problem:
            yield Finding(source.path, number, f"{path}: {problem}")
        for pattern, folders in EXTERNAL_INCLUDES:
            allowed = source.lies_in(folders) or (source.is_test and "tests" in folders)
            if not own and re.match(pattern, path) and not allowed:
                yield Finding(source.path, number, f"<{path}> belongs in {', '.join(folders)}")


def check_public_headers(sources: list[Source]) -> Iterator[Finding]:
    """Checks that installed headers and examples include only installed headers of ours."""
    public = {source.place for source in sources if source.is_public}
    for source in sources:
        if source.path in public:
            yield Finding(source.path, 1, "stands in include/ as well")
        is_example = source.is_cpp and source.path.startswith("examples/")
        for number, path, _ in includes(source) if source.is_public or is_example else ():
            if re.match(r"(stretto|tests|tools|bench)/", path) and path not in public:
                what = "an example" if is_example else "a public header"
                yield Finding(source.path, number,
                              f"{path}: {what} includes only public ones (include/)")


def check_include_cycles(sources: list[Source]) -> Iterator[Finding]:
    headers = {source.place: source for source in sources if source.is_header}
    used = {path: [name for _, name, _ in includes(source) if name in headers and name != path]
            for path, source in headers.items() if not path.endswith("-inl.h")}
    done, open_paths = set(), []

    def visit(path: str) -> Iterator[Finding]:
        if path in open_paths:
            cycle = open_paths[open_paths.index(path):] + [path]
            yield Finding(path, 1, "headers include each other: " + " -> ".join(cycle))
        elif path not in done:
            open_paths.append(path)
            for other in used.get(path, []):
                yield from visit(other)
            open_paths.pop()
            done.add(path)

    for path in sorted(used):
        yield from visit(path)


# Headers in the common header of cmake/compile_options.cmake, except those that any header of ours
# includes, with the words that need each. Some builds do not use the common header, so a source
# must not rely on it. Up to version 10, {fmt} has fmt::join in fmt/format.h, too.
COMMON_HEADERS = {
    "algorithm": r"std::(ranges::)?(sort|find|find_if|any_of|all_of|none_of|min|max|clamp|copy)\(",
    "atomic": r"std::atomic",
    "fmt/format.h": r"fmt::(formatter|memory_buffer|format_to)\b",
    "fmt/ranges.h": r"fmt::join\b",
    "functional": r"std::function<",
    "map": r"std::map<",
    "memory": r"std::(unique_ptr|shared_ptr|make_unique|make_shared)\b",
    "mutex": r"std::(mutex|lock_guard|unique_lock)\b",
    "span": r"std::span",
    "thread": r"std::(this_thread|thread)\b",
}


def check_common_headers(sources: list[Source]) -> Iterator[Finding]:
    """Checks that a source, or a header that it includes, includes the headers that it uses."""
    known = {source.place: source for source in sources if source.is_cpp}
    reached: dict[str, set[str]] = {}

    def reach(path: str) -> set[str]:
        if path not in reached:
            reached[path] = {path}  # This ends cycles, which other checks report.
            if path in known:
                for _, included, _ in includes(known[path]):
                    reached[path] |= reach(included)
        return reached[path]

    for place, source in known.items():
        if not source.path.endswith(".cc") or any("torch" in path for path in reach(place)):
            continue  # A source that includes libtorch gets all of these headers.
        missing = {header: words for header, words in COMMON_HEADERS.items()
                   if header not in reach(place)}
        for number, line in enumerate(source_text.code_only(source.text).splitlines(), 1):
            for header, words in missing.items():
                if re.search(words, line):
                    yield Finding(source.path, number, f"needs #include <{header}>")


RULES: list[Callable[[Source], Iterator[Finding]]] = [
    check_blob, check_lines, check_head, check_sizes, check_calls,
]


def check_sources(sources: list[Source], layers: dict[str, list[str]]) -> list[Finding]:
    """Returns the findings of all rules that need no compiler."""
    findings = list(check_layers_file(layers))
    for source in sources:
        for rule in RULES:
            findings += rule(source)
        findings += check_includes(source, layers)
    for check in (check_public_headers, check_include_cycles, check_common_headers):
        findings += check(sources)
    return findings


def tracked_files(root: pathlib.Path) -> list[str]:
    """Returns files that git tracks or would add; without a repository, all files outside
    build/."""
    listed = changes.git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed:
        paths = set(listed.split("\0")) - {""}
    else:
        paths = {str(path.relative_to(root)) for path in root.rglob("*")}
        paths = {path for path in paths if not re.search(r"(^|/)(build|__pycache__|\.git)/", path)}
    return sorted(path for path in paths if (root / path).is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files to check (default: all)")
    parser.add_argument("--torch-dir", default="", help="folder of TorchConfig.cmake; without it, "
                        "headers that need libtorch are not compiled")
    parser.add_argument("--no-headers", action="store_true", help="compile no headers")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin to compile no "
                        "header after so many; those come first that have changed last")
    arguments = parser.parse_args()

    root = pathlib.Path(__file__).resolve().parent.parent
    wanted = {str(pathlib.Path(path).resolve().relative_to(root)) for path in arguments.paths}
    sources = [Source(root, path) for path in tracked_files(root)]
    layers = read_layers((root / "stretto/layers.txt").read_text())
    findings = check_sources(sources, layers)
    findings += check_layers_table(layers, (root / "ARCHITECTURE.md").read_text())
    if not arguments.no_headers:
        headers = [source.path for source in sources
                   if source.suffix == ".h" and (not wanted or source.path in wanted)]
        problems = header_check.check(root, headers, arguments.torch_dir, arguments.seconds)
        findings += [Finding(path, 1, text) for path, text in problems]
    findings = [finding for finding in findings if not wanted or finding.path in wanted]
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings in {len(wanted) or len(sources)} files")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
