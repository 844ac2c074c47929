# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The systems that bench/peers.py compares: how each is started, and what it can measure.

scripts/bench_peers.sh installs and compiles them in build/peers. If that fails,
build/peers/NAME/missing has a sentence that says why.
"""

import dataclasses
import os
import pathlib
import sys

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all",
              "barrier"]
# These operate on one buffer; an all_reduce is measured in one buffer and in two.
IN_PLACE_OPERATIONS = ("broadcast", "reduce")
ELEMENT_BYTES = 4
# Huge pages make no difference to smaller buffers.
HUGE_FROM_BYTES = 1 << 20
# In these operations each rank receives `bytes` bytes.
COPIED_OPERATIONS = ("all_reduce", "all_gather", "all_to_all", "broadcast")
# The time of a smaller copy is that of the call.
SMALLEST_COPY_BYTES = 1024
# So few bytes fit into the cache line by which a rank says that it has come.
LARGEST_MEETING_BYTES = 16
# For so few bytes, the root writes once and all others copy.
LARGEST_FEW_BYTES = 16 * 1024
SMALLEST_BARE_BYTES = 32 * 1024
LARGEST_BARE_BYTES = 256 * 1024 * 1024
# A system is started without these variables, which would change its launcher or library.
FOREIGN_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "I_MPI_", "MPIR_", "MPICH_", "FI_", "UCX_",
                    "STRETTO_", "GLOO_", "TORCH_", "OMP_", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                    "MASTER_", "LD_LIBRARY_PATH", "TMPDIR")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One measurement that a system is asked for."""

    operation: str
    bytes: int
    buffers: str = "private"
    in_place: bool = False
    algorithm: str = ""
    at_once: int = 1  # Concurrent operations; each has an equal part of the bytes.


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a system is started, and with how many ranks."""

    ranks: int
    cores: int
    build: pathlib.Path  # The build folder of stretto: bin/ has its driver.
    peers: pathlib.Path
    board: str = ""
    meet: pathlib.Path = pathlib.Path()

    @property
    def oversubscribed(self):
        return self.ranks > self.cores

    def driver_arguments(self):
        return ["--board", self.board, "--meet", str(self.meet)]


@dataclasses.dataclass(frozen=True)
class Started:
    """The command to execute, and the variables to add to the environment of every system."""

    command: list
    environment: dict = dataclasses.field(default_factory=dict)


def clean_environment(meet):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(FOREIGN_PREFIXES)}
    return kept | {"TMPDIR": str(meet)}


class System:
    """A library with certain settings. Subclasses define how its ranks are started."""

    family = ""  # "stretto", "mpi", "gloo", "bound" (copies) or "bare".
    # Whether it has threads that wake up again and again without work. Its ranks are then stopped
    # while others are measured.
    is_restless = False
    settings_text = "as it is"

    def __init__(self, name, title):
        self.name = name
        self.title = title

    def driver(self, place):
        """Returns the path of the driver; those that need no other library are in stretto's
        build."""
        return place.build / "bin" / f"{self.name}_driver"

    def missing(self, place):
        """Returns a sentence that says why it cannot run here; empty if it can."""
        path = self.driver(place)
        if path.exists():
            return ""
        note = path.parent / "missing"
        return (note.read_text().strip() if note.exists()
                else f"the driver of {self.title} is not there: {path}")

    def settings(self, _place):
        return self.settings_text

    def start(self, place):
        """Returns a list of Started; together they have place.ranks ranks."""
        return started_each(place, [str(self.driver(place))])

    def buffers(self, wanted, size):
        """Returns the kinds of buffers to measure on, where `wanted` are requested.

        A system without registered memory competes on its best kind.
        """
        kinds = ["private"]
        if size >= HUGE_FROM_BYTES and wanted != ["private"]:
            kinds.append("huge")
        return kinds

    def variants(self, operation, size, wanted):
        if operation == "barrier":
            return [Variant(operation, 0)]
        both = [True, False]
        places = both if operation == "all_reduce" else [operation in IN_PLACE_OPERATIONS]
        return [Variant(operation, size, kind, in_place)
                for kind in self.buffers(wanted, size) for in_place in places]


def own_kinds(wanted, size):
    """Returns the kinds of buffers to measure, for a system that has all kinds."""
    return [kind for kind in wanted if kind != "huge" or size >= HUGE_FROM_BYTES]


def started_each(place, command, environment=None):
    """Returns a process for each rank, without a launcher; the command line names the rank."""
    return [Started([*command, *place.driver_arguments(), "--rank", str(rank), "--ranks",
                     str(place.ranks)], environment or {}) for rank in range(place.ranks)]


class Stretto(System):
    family = "stretto"

    def __init__(self, name="stretto", environment=None):
        super().__init__(name, name)
        self.environment = environment or {}

    def driver(self, place):
        return place.build / "bin" / "stretto_driver"

    def settings(self, _place):
        words = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join(words) or self.settings_text

    def start(self, place):
        common = {"STRETTO_SIZE": str(place.ranks),
                  "STRETTO_RENDEZVOUS": f"file://{place.meet}/rendezvous"} | self.environment
        return [Started([str(self.driver(place)), *place.driver_arguments()],
                        common | {"STRETTO_RANK": str(rank)}) for rank in range(place.ranks)]

    def buffers(self, wanted, size):
        return own_kinds(wanted, size)


class Copies(System):
    """Measures as many concurrent copies as there are ranks."""

    family = "bound"
    settings_text = "the better of memcpy and non-temporal stores"

    def __init__(self):
        super().__init__("copy", "p copies at once")

    def driver(self, place):
        return place.build / "bin" / "bare_driver"

    def variants(self, operation, size, wanted):
        if operation not in COPIED_OPERATIONS or size < SMALLEST_COPY_BYTES:
            return []
        return [Variant("copy", size, kind, False, algorithm)
                for kind in self.buffers(wanted, size) for algorithm in ("plain", "past_cache")]


class Bare(System):
    """Measures plain loops in which ranks meet, or sum or copy mapped or private memory."""

    family = "bare"
    settings_text = ("no checks, no names, no failures; private memory by process_vm_readv and "
                     "_writev, or staged in mapped memory")

    def __init__(self):
        super().__init__("bare", "loops without a library")

    def variants(self, operation, size, wanted):
        if size <= LARGEST_MEETING_BYTES:
            return [Variant("barrier", size)]
        is_few = operation == "broadcast" and size <= LARGEST_FEW_BYTES
        fits = is_few or SMALLEST_BARE_BYTES <= size <= LARGEST_BARE_BYTES
        if operation not in COPIED_OPERATIONS or not fits:
            return []
        in_place = operation in ("all_reduce", *IN_PLACE_OPERATIONS)
        kinds = own_kinds(wanted, size)
        variants = [Variant(operation, size, kind, in_place) for kind in kinds]
        staged = [] if is_few else [kind for kind in kinds if kind != "registered"]
        return variants + [Variant(operation, size, kind, in_place, "staged") for kind in staged]


class Mpi(System):
    family = "mpi"
    # Open MPI requires both variables to run as root; the others ignore them.
    permissions = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def __init__(self, name, title, folder, launcher, options=(), environment=None,
                 oversubscribed_options=(), oversubscribed_environment=None):
        super().__init__(name, title)
        self.folder = folder
        self.launcher = launcher  # A path in the folder, or the name of an installed program.
        self.options = list(options)
        self.environment = environment or {}
        self.oversubscribed_options = list(oversubscribed_options)
        self.oversubscribed_environment = oversubscribed_environment or {}

    def driver(self, place):
        return place.peers / self.folder / "mpi_driver"

    def all_options(self, place):
        return self.options + (self.oversubscribed_options if place.oversubscribed else [])

    def all_environment(self, place):
        more = self.oversubscribed_environment if place.oversubscribed else {}
        return self.environment | more

    def settings(self, place):
        words = [f"{name}={value}" for name, value in self.all_environment(place).items()
                 if "FOLDER" not in value]
        return " ".join(words + self.all_options(place)) or self.settings_text

    def start(self, place):
        folder = place.peers / self.folder
        launcher = folder / self.launcher
        program = str(launcher) if "/" in self.launcher else self.launcher
        environment = {name: value.replace("FOLDER", str(folder))
                       for name, value in self.all_environment(place).items()}
        return [Started([program, "-n", str(place.ranks), *self.all_options(place),
                         str(self.driver(place)), *place.driver_arguments()],
                        environment | self.permissions)]


class Gloo(System):
    family = "gloo"
    is_restless = True
    settings_text = "the group's Gloo backend called directly, 1 thread"

    def __init__(self):
        super().__init__("gloo", "Gloo in PyTorch")

    def driver(self, place):
        return place.peers / "gloo" / "libstretto_bench_bridge.so"

    def python(self, place):
        """Returns the Python with torch that scripts/bench_peers.sh has found."""
        note = place.peers / "gloo" / "python"
        return note.read_text().strip() if note.exists() else sys.executable

    def start(self, place):
        script = pathlib.Path(__file__).resolve().parent / "drivers" / "gloo_driver.py"
        return started_each(place, [self.python(place), str(script), "--bridge",
                                    str(self.driver(place))], {"OMP_NUM_THREADS": "1"})

    def variants(self, operation, size, wanted):
        """Leaves out the out-of-place all-reduce, which Gloo in PyTorch does not have."""
        return [variant for variant in super().variants(operation, size, wanted)
                if operation != "all_reduce" or variant.in_place]


class GlooLibrary(System):
    family = "gloo"
    is_restless = True
    settings_text = "the better of ring, bcube and halving_doubling"

    def __init__(self):
        super().__init__("gloo-library", "Gloo's C++ library")

    def driver(self, place):
        return place.peers / "gloo-library" / "gloo_driver"

    def variants(self, operation, size, wanted):
        variants = super().variants(operation, size, wanted)
        if operation != "all_reduce":
            return variants
        return [dataclasses.replace(variant, algorithm=algorithm) for variant in variants
                for algorithm in ("ring", "bcube", "halving_doubling")
                if variant.in_place or algorithm != "halving_doubling"]


def _open_mpi(name, title, folder, launcher, transport, options):
    return Mpi(name, title, folder, launcher,
               ["--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", f"{transport},self",
                *options], oversubscribed_options=["--oversubscribe"])


def all_systems():
    """Returns every system by its name, in the order of columns."""
    systems = [
        Stretto(),
        _open_mpi("openmpi-cma", "Open MPI 5, single copy", "openmpi", "bin/mpirun", "sm", []),
        _open_mpi("openmpi-nocma", "Open MPI 5, two copies", "openmpi", "bin/mpirun", "sm",
                  ["--mca", "smsc", "^cma,xpmem"]),
        _open_mpi("openmpi4-cma", "Open MPI 4, single copy", "openmpi4", "mpirun.openmpi",
                  "vader", []),
        _open_mpi("openmpi4-nocma", "Open MPI 4, two copies", "openmpi4", "mpirun.openmpi",
                  "vader", ["--mca", "btl_vader_single_copy_mechanism", "none"]),
        Mpi("mpich", "MPICH 5", "mpich", "bin/mpiexec"),
        Mpi("intelmpi", "Intel MPI", "intelmpi", "bin/mpiexec.hydra",
            environment={"I_MPI_ROOT": "FOLDER", "I_MPI_PIN": "0"},
            oversubscribed_environment={"I_MPI_THREAD_YIELD": "2"}),
        Gloo(),
        GlooLibrary(),
        Stretto("stretto-tcp", {"STRETTO_TRANSPORT": "tcp"}),
        Stretto("stretto-staged", {"STRETTO_SINGLE_COPY": "off"}),
        Copies(),
        Bare(),
    ]
    return {system.name: system for system in systems}
