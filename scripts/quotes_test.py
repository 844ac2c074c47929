# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks that every example in a document quotes a file of examples/, which runs here, and checks
other commands in documents and their statements on sources."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "bench"))
import ddp  # noqa: E402

BUILD = pathlib.Path(os.environ["STRETTO_BUILD_DIR"])
QUOTED = re.compile(r"<!-- quoted from (examples/\S+\.(?:cc|py))")


def blocks(document):
    """Yields pairs of a C++ block and the line before it, and of Python blocks those that are
    quoted."""
    parts = re.split(r"^```(cpp|c\+\+|cc|python)\n", document, flags=re.MULTILINE)
    for before, language, after in zip(parts[::2], parts[1::2], parts[2::2]):
        line = before.rstrip().rsplit("\n", 1)[-1]
        if language != "python" or QUOTED.match(line):
            yield line, after.split("```", 1)[0]


class QuotesTest(unittest.TestCase):
    def test_documents_quote_the_examples_as_they_are(self):
        documents = [*SOURCE.glob("*.md"), *SOURCE.glob("docs/**/*.md")]
        found = 0
        for path in documents:
            for before, block in blocks(path.read_text()):
                with self.subTest(document=path.name, block=block.split("\n", 1)[0]):
                    quoted = QUOTED.match(before)
                    self.assertTrue(quoted, "the line before it must say where it is from, in a "
                                            "comment: <!-- quoted from examples/... -->")
                    self.assertIn(block, (SOURCE / quoted[1]).read_text())
                    found += 1
        self.assertGreater(found, 0)


class PlugInsTest(unittest.TestCase):
    def expect_a_plug_in(self, engine, where, include, library):
        """Runs the page's command, with the paths of the library's files inserted."""
        if not (include / where).exists():
            self.skipTest(f"{include / where} is not there")
        page = (SOURCE / "docs/engines.md").read_text()
        command, = re.findall(rf"^g\+\+ .* -o libstretto_{engine}\.so$", page, re.MULTILINE)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plug-in.so"
            for word, here in ((f"{engine.upper()}/include", include),
                               (f"{engine.upper()}/lib", library),
                               (f"libstretto_{engine}.so", path)):
                command = command.replace(word, str(here))
            subprocess.run(command, cwd=SOURCE, shell=True, check=True)
            # In a process of its own, because the plug-in may not be unloaded; RTLD_NOW resolves
            # all symbols.
            subprocess.run([sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])",
                            path], check=True)

    def test_mpi(self):
        folder = pathlib.Path("/usr/lib/x86_64-linux-gnu/openmpi")
        self.expect_a_plug_in("mpi", "mpi.h", folder / "include", folder / "lib")

    def test_ucx(self):
        self.expect_a_plug_in("ucx", "ucp/api/ucp.h", pathlib.Path("/usr/include"),
                              pathlib.Path("/usr/lib"))


class WalksTest(unittest.TestCase):
    def test_walks_of_the_architecture_name_what_is_there_and_count_it(self):
        text = (SOURCE / "ARCHITECTURE.md").read_text()
        walks = re.split(r"\n(?=\*\*)", text.split("## Three walks")[1].split("\n## ")[0])[1:]
        self.assertEqual(len(walks), 3)
        for walk in walks:
            files, functions = set(), 0
            for names, told in re.findall(r"^\| (`.*?) \| (.*) \|$", walk, re.MULTILINE):
                here = set(re.findall(r"`([^`]+)`", names))
                paths = [SOURCE / folder / f"{name.removesuffix('.h')}{suffix}" for name in here
                         for folder in ("stretto", "include/stretto") for suffix in (".h", ".cc")]
                sources = "".join(path.read_text() for path in paths if path.is_file())
                for function in re.findall(r"`([^`]+)`", told):
                    with self.subTest(files=here, function=function):
                        self.assertRegex(sources, rf"\b{function.split('::')[-1]}\(")
                    functions += 1
                files |= here
            self.assertIn(f"{len(files)} files, {functions} functions", walk)


def two_ranks_of(*command):
    """Returns the output of an example's ranks in order, without the launcher's prefixes."""
    done = subprocess.run([BUILD / "bin/stretto", "run", "-n", "2", "--no-prefix", "--", *command],
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


class ExamplesTest(unittest.TestCase):
    def test_all_reduce(self):
        self.assertEqual(two_ranks_of(BUILD / "bin/01_all_reduce"),
                         [f"rank {rank} of 2: the mean rank is 0.5" for rank in (0, 1)])

    def test_compressed_all_reduce(self):
        said = two_ranks_of(BUILD / "bin/11_compressed_all_reduce")
        plain = {"the greatest of four": "-0.5", "all_reduce": "0.25", "fused_all_reduce": "0.25",
                 "all_reduce_half": "0.375", "fused_all_reduce_half": "0.375"}
        sparse = {"threshold": "-0.125", "threshold, corrected": "0.375",
                  "top K": "-0.5", "top K, corrected": "0.75"}
        for form, found in sparse.items():
            plain[f"sparsification, {form}"] = plain[f"fused sparsification, {form}"] = found
        for rank in (0, 1):
            calls = plain | {"partial_update": f"1.5 and {3 * rank}"}
            self.assertEqual([line for line in said if line.startswith(f"rank {rank}:")],
                             sorted(f"rank {rank}: {call}: {found}"
                                    for call, found in calls.items()))

    def test_own_rendezvous(self):
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):  # The second needs the file of the first to be gone.
                ranks = [subprocess.Popen([BUILD / "bin/03_own_rendezvous", str(rank), "2",
                                           pathlib.Path(folder) / "meeting"],
                                          stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
                self.assertEqual([rank.communicate(timeout=60)[0] for rank in ranks],
                                 [f"rank {rank} of 2: each of 2 sums is 2\n" for rank in (0, 1)])

    @unittest.skipIf(os.environ["STRETTO_HAVE_TORCH"] != "ON", "built without libtorch")
    def test_many_processes_in_python(self):
        python = ddp.python_with_torch(BUILD)
        if python is None:
            self.skipTest("no Python has the libtorch of this build")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        ranks = [subprocess.Popen(
            [python, SOURCE / "examples/10_many_processes.py", SOURCE / "data/digits.csv"],
            stdout=subprocess.PIPE, text=True,
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": str(port)}) for rank in (0, 1)]
        said = [rank.communicate(timeout=200)[0].splitlines() for rank in ranks]
        found = [re.fullmatch(r"epoch (\d): accuracy ([0-9.]+)", line).groups() for line in said[0]]
        self.assertEqual([epoch for epoch, _ in found], ["0", "1", "2"])
        self.assertGreater(float(found[-1][1]), 0.7)
        self.assertEqual(said[1], [])

    @unittest.skipIf(os.environ["STRETTO_HAVE_TORCH"] != "ON", "built without libtorch")
    def test_train_digits(self):
        lines = two_ranks_of(BUILD / "bin/02_train_digits", SOURCE / "data/digits.csv")
        losses = {}
        for line in lines:
            step, loss = re.fullmatch(r"step (\d+): loss ([0-9.]+)", line).groups()
            losses.setdefault(int(step), []).append(float(loss))
        self.assertEqual({step: len(of_ranks) for step, of_ranks in losses.items()},
                         {step: 2 for step in range(0, 100, 20)})
        self.assertGreater(min(losses[0]), 2.0)
        self.assertLess(max(losses[80]), 0.5)
