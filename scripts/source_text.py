# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What scripts/tidy.py knows about source text: C++ without comments, and where functions of other
languages are."""

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
    """Spaces instead of `text`, with its line breaks kept so that line numbers stay true."""
    return re.sub(r"[^\n]", " ", text)


def code_only(text: str) -> str:
    """C++ `text` without comments and without what is inside literals; same length, same lines."""

    def replace(match: re.Match) -> str:
        if match.lastgroup == "number":
            return match.group()  # The ' in 1'000 starts no character.
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
    """Functions as shell files of this project write them: `name() {` to `}` in column one."""
    name, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := _BASH_FUNCTION.match(line):
            name, start = match.group(1), number
        elif line == "}" and start:
            yield Function(name, start, number)
            start = 0
