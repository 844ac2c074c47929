# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What scripts/tidy.py knows about source text: code without comments, and where functions are."""

import ast
import bisect
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
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\\\n]|\\.|\\\n)*", re.MULTILINE | re.DOTALL)
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


def without_directives(code: str) -> str:
    """`code` without preprocessor lines: the braces of a macro need not match."""
    return _DIRECTIVE.sub(lambda match: _blank(match.group()), code)


def _without_template_heads(head: str) -> str:
    """Drops `template <class T, int N = (2 > 1)>`: its `class` opens no class."""
    while match := re.search(r"\btemplate\s*<", head):
        depth, end = 1, match.end()
        while end < len(head) and depth > 0:
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[: match.start()] + head[end:]
    return head


def _opens_scope(head: str) -> bool:
    """Whether the brace after `head` opens a namespace or a class, in which functions may lie."""
    words = _without_template_heads(head).split("(")[0]
    return bool(re.match(r"\s*(?:\w+\s+)*?(?:namespace|class|struct|union|enum|extern)\b", words))


def _opens_function(head: str) -> bool:
    qualifiers = r"(?:(?:const|noexcept|override|final|mutable|try|&&?)\s*|->[^;{}]*)*"
    return re.search(r"\)\s*" + qualifiers + r"(?:requires[^;{}]*)?$", head) is not None


def _function_name(head: str) -> str:
    """`Ring::run` of `Status Ring::run(int rank) const`; macros keep their arguments' place."""
    plain = re.sub(r"\s+", " ", _without_template_heads(head)).strip()
    match = re.search(r"((?:\w+::)*(?:operator ?[^\s(]+|~?\w+)) ?\(([^)]*)\)?", plain)
    if not match:
        return plain[:40]
    is_test = match.group(1).startswith("TEST")
    return f"{match.group(1)}({match.group(2)})" if is_test else match.group(1)


def cpp_functions(text: str) -> Iterator[Function]:
    """The functions of C++ `text`. Lambdas and local classes count as part of what they are in."""
    code = without_directives(code_only(text))
    line_starts = [0] + [match.end() for match in re.finditer("\n", code)]
    line_of = lambda position: bisect.bisect_right(line_starts, position)
    kinds = []  # What each open brace is: "scope", "function" or "other" (an initialiser).
    head_start = 0
    for match in re.finditer(r"[{};]|\b(?:public|private|protected)\s*:", code):
        position, token = match.start(), match.group()[0]
        if any(kind == "function" for kind in kinds) and token not in "{}":
            continue
        if token == "{":
            head = code[head_start:position]
            inside = bool(kinds) and kinds[-1] != "scope"
            kind = "other"
            if not inside and _opens_scope(head):
                kind, head_start = "scope", match.end()
            elif not inside and _opens_function(head):
                kind, function_head, function_start = "function", head, head_start
            kinds.append(kind)
        elif token == "}":
            kind = kinds.pop() if kinds else "other"
            if kind == "function":
                start = function_start + len(function_head) - len(function_head.lstrip())
                yield Function(_function_name(function_head), line_of(start), line_of(position))
            if kind != "other":
                head_start = match.end()
        elif not kinds or kinds[-1] == "scope":
            head_start = match.end()


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
