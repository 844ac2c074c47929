# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Every virtual function of c10d::Backend, as the installed PyTorch's header lists them, is
overridden with the same signature, or stands in a table here with what becomes of a call."""

from __future__ import annotations

import pathlib
import re
import unittest
from typing import Callable

import ranks
import torch
import torch.distributed as dist

SOURCE = pathlib.Path(__file__).resolve().parents[2]
THEIRS = "include/torch/csrc/distributed/c10d/Backend.hpp"
OURS = "stretto/c10d/process_group.h"


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def estimate_time() -> None:
    with dist.distributed_c10d._time_estimator():
        pass


# Of those that are PyTorch's own: the call by which a user comes to it, and the sentence that he
# gets; None where PyTorch's is right and he gets none.
LEFT_TO_PYTORCH: dict[str, tuple[Callable[[], object], str | None]] = {
    "supportsTimeEstimation": (estimate_time, "collective time estimator is not supported"),
    # It keeps a name, which the flight recorder shows.
    "setGroupUid": (lambda: dist.group.WORLD._set_group_name("a name"), None),
    # Connections are made when the group is.
    "eagerConnectSingleDevice": (
        lambda: backend().eager_connect_single_device(torch.device("cpu")),
        None,
    ),
}
# Of ours that only refuse.
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "suspend": (lambda: backend().suspend(), "call destroy_process_group.. and init_process"),
    "resume": (lambda: backend().resume(), "call destroy_process_group.. and init_process"),
}

ALIASES = {
    "TensorLists": "std::vector<std::vector<at::Tensor>>",
    "Tensors": "std::vector<at::Tensor>",
    "WorkPtr": "c10::intrusive_ptr<Work>",
}


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


def parts_of(arguments: str) -> list[str]:
    """Split at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def type_of(parameter: str) -> str:
    """Without its default and its name, and with the names of types that PyTorch has for them."""
    parameter = re.sub(r"=.*", "", parameter, flags=re.S).strip()
    named = re.fullmatch(r"(.*[\s&*>])(\w+)", parameter, flags=re.S)
    if named and named[1].strip() not in ("const", "unsigned"):
        parameter = named[1]
    for alias, meant in ALIASES.items():
        parameter = re.sub(rf"\b{alias}\b", meant, parameter)
    parameter = re.sub(r"(?:::)?\bc10d::", "", parameter)
    return re.sub(r"\s*([<>&*,])\s*", r"\1", " ".join(parameter.split()))


def functions_of(text: str, only_virtual: bool) -> dict[str, tuple[list[str], str]]:
    """By name: the types of the parameters, and `const` if it is."""
    text = without_comments(text)
    found = {}
    start = r"\bvirtual\s[^;{}()]*?" if only_virtual else r"[\w>&]\s+"
    for match in re.finditer(start + r"\b(\w+)\s*\(", text):
        depth, end = 1, match.end()
        while depth > 0:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        parameters = [type_of(part) for part in parts_of(text[match.end() : end - 1])]
        is_const = re.match(r"\s*const\b", text[end:]) is not None
        found[match[1]] = (parameters, "const" if is_const else "")
    return found


def theirs() -> dict[str, tuple[list[str], str]]:
    header = pathlib.Path(torch.__file__).parent / THEIRS
    return functions_of(header.read_text(), only_virtual=True)


def ours() -> dict[str, tuple[list[str], str]]:
    return functions_of((SOURCE / OURS).read_text(), only_virtual=False)


class BackendFunctionsTest(unittest.TestCase):
    def test_the_header_is_understood(self) -> None:
        listed = theirs()
        self.assertGreater(len(listed), 40, sorted(listed))
        tensors = "std::vector<at::Tensor>&"
        self.assertEqual(listed["allreduce"], ([tensors, "const AllreduceOptions&"], ""))
        self.assertEqual(listed["getBackendName"], ([], "const"))
        self.assertEqual(listed["recv"], ([tensors, "int", "int"], ""))
        self.assertEqual(listed["allocateTensor"], (["long", "at::TensorOptions"], ""))

    def test_each_is_ours_or_listed(self) -> None:
        own = ours()
        for name, signature in theirs().items():
            with self.subTest(function=name):
                if name in LEFT_TO_PYTORCH:
                    self.assertNotIn(name, own, "it is ours, and listed as PyTorch's")
                    continue
                self.assertIn(
                    name,
                    own,
                    f"PyTorch {torch.__version__} has Backend::{name}, which is neither in {OURS} "
                    "nor in a table of this test",
                )
                self.assertEqual(own[name], signature, f"Backend::{name} is not overridden")

    def test_what_becomes_of_the_others(self) -> None:
        listed = {**LEFT_TO_PYTORCH, **REFUSED}
        self.assertEqual(set(listed) - set(theirs()), set())

        def body(rank: int, size: int) -> dict[str, str | None]:
            told: dict[str, str | None] = {}
            for name, (call, _) in listed.items():
                try:
                    call()
                    told[name] = None
                except (RuntimeError, NotImplementedError) as error:
                    told[name] = str(error)
            return told

        for name, text in ranks.with_group(body, 1)[0].items():
            sentence = listed[name][1]
            with self.subTest(function=name):
                if sentence is None:
                    self.assertIsNone(text)
                else:
                    self.assertRegex(text or "", sentence)


if __name__ == "__main__":
    unittest.main()
