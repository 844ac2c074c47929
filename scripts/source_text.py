# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Parses source text for scripts/tidy.py: C++ without comments, and the functions of other
languages."""

import ast
import re
from typing import Iterator, NamedTuple

_TOKEN = re.compile(
    r"""(?P<comment>//(?:[^\\\n]|\\.|\\\n)*|/\*.*?\*/)
      | (?P<raw>\b(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
      | (?P<number>\b\d(?:['.]?\w)*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<character>'(?:[^'\\\n]|\\.)+')""",
    re.DOTALL | re.VERBOSE,
)
_BASH_FUNCTION = re.compile(r"^(?:function )?(\w+) ?\(\) ?\{$")


class Function(NamedTuple):
    name: str
    first_line: int
    last_line: int

    @property
    def lines(self) -> int:
        return self.last_line - self.first_line + 1


def _blank(text: str) -> str:
    """Returns spaces instead of `text`, but keeps line breaks so that line numbers stay correct."""
    return re.sub(r"[^\n]", " ", text)


def code_only(text: str) -> str:
    """Returns C++ `text` with comments and the contents of literals blanked; same length, same
    lines."""

    def replace(match: re.Match) -> str:
        if match.lastgroup == "number":
            return match.group()  # The ' in 1'000 does not begin a character literal.
        if match.group("comment"):
            return _blank(match.group())
        quote = match.group()[-1]
        return quote + _blank(match.group()[1:-1]) + quote

    return _TOKEN.sub(replace, text)


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(node.name, node.lineno, node.end_lineno)


def bash_functions(text: str) -> Iterator[Function]:
    """Yields functions in the form that this project's shell files use: `name() {` to `}` in column
    one."""
    name, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := _BASH_FUNCTION.match(line):
            name, start = match.group(1), number
        elif line == "}" and start:
            yield Function(name, start, number)
            start = 0
