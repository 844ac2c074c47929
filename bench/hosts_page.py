# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The parts of docs/measurements/hosts.md that ./dev bench hosts --page measures."""

import textwrap

import peers

BEGIN = "<!-- {}: made by ./dev bench hosts --page -->"
END = "<!-- end of {} -->"

# A cable with delay, loss or limited connections is a process, which carries a few hundred Mbit/s.
FEW = "--bytes 8,64K,1M --no-algorithms"
PARTS = {
    "gigabit": ["--shapes 2x2,4x1,3+1,rr2x2 --bytes 8,4K,64K,1M",
                "--shapes 2x2,4x1,3+1,rr2x2 --bytes 16M --no-algorithms"],
    "100M": ["--rate 100M --bytes 8,4K,64K,1M",
             "--rate 100M --bytes 16M --repeats 3 --no-algorithms"],
    "10G": ["--rate 10G"],
    "operations": ["--operations all --shapes 2x2,3+1,rr2x2 --bytes 64K,1M --no-algorithms"],
    "canonical": ["--operations all_reduce,reduce_scatter,reduce --shapes 2x3 --bytes 1M "
                  "--no-algorithms"],
    "delay": [words for ms in (1, 5, 20) for words in
              (f"--delay {ms} --rate 100M --repeats 1 --bytes 8,64K,1M",
               f"--delay {ms} --rate 100M --repeats 5 --bytes 8,64K --no-algorithms "
               "--systems stretto,openmpi",
               f"--delay {ms} --rate 100M --repeats 1 --bytes 16M --no-algorithms "
               "--systems stretto,openmpi")],
    "loss": [f"--loss {permille} --delay 1 --rate 100M {words}" for permille in (1, 10)
             for words in (FEW,
                           "--repeats 31 --bytes 64K --no-algorithms --systems stretto,openmpi",
                           "--repeats 1 --bytes 16M --no-algorithms")],
    "connections": [f"--streams {streams} --connection-rate 25M --delay 1 --rate 100M --shapes 2x1 "
                    "--repeats 1 --bytes 64K,1M,4M --no-algorithms" for streams in (1, 4)],
    "cards": ["--cards 2 --shapes 2x2,2x1 --rate 100M --bytes 64K,1M,16M --repeats 1 "
              "--no-algorithms"],
    "training": ["--training --shapes 2x2,4x1"],
    "plots": ["--plots"],
    "joining": ["--joining 64", "--joining 256 --repeats 1"],
    "mesh": ["--mesh --repeats 3", "--mesh --repeats 3 --encryption tls"],
    "encryption": ["--encryption tls --rate 10G --no-algorithms"],
}


def part_text(runs):
    """Returns the text of a part's runs; a run is (words, cores used by others before it,
    report)."""
    return wrapped("\n\n".join(
        f"`./dev bench hosts {words}`, {versions_text(report.versions)}, while others used "
        f"{load:.1f} of the cores:\n\n{report.text}" for words, load, report in runs))


def versions_text(versions):
    return ", ".join(dict.fromkeys(text.partition(",")[0] for text in versions.values()))


def wrapped(text):
    """Wraps lines at 100 columns, except in tables."""
    return "\n".join(line if line.startswith("|") else
                     textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
                     for line in text.splitlines())


def put(path, part, text):
    """Replaces the text of a part in a page."""
    peers.put_into(path, BEGIN.format(part), END.format(part), text)
