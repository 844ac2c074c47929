# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""docs/internals/launchers.md on two hosts: network namespaces, with names in /etc/hosts.

Slurm's daemons are the test's own, of Debian's packages slurmctld and slurmd.
"""

import os
import pathlib
import shutil
import socket
import sys
import time
import unittest

import two_hosts

SOURCE = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(SOURCE / "bench"))
import hosts_systems  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ["STRETTO_BUILD_DIR"])
STRETTO = str(BUILD / "bin/stretto")
RANK = str(BUILD / "bin/join_rank_program")
NODES = ("node0", "node1")
SLURM = """
ClusterName=stretto
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/%n.tmp
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
NodeName=node[0-1] CPUs=4
PartitionName=all Nodes=ALL Default=YES
"""


def find(*programs):
    """Returns the paths of programs; skips the test if one is missing."""
    path = os.environ["PATH"] + ":/usr/sbin"
    for program in programs:
        if shutil.which(program, path=path) is None:
            raise unittest.SkipTest(f"{program} is not installed")
    return [shutil.which(program, path=path) for program in programs]


class LaunchersTest(two_hosts.TwoHosts):
    def setUp(self):
        super().setUp()
        self.publish(NODES)

    def start(self, host, *words, **variables):
        return self.run_process([*self.network.enter(host), *words], variables)

    def expect_joined(self, *processes):
        """Expects that all four ranks have joined, two on each host."""
        output = "".join(process.communicate(timeout=60)[0] for process in processes)
        self.assertEqual([process.returncode for process in processes], [0] * len(processes),
                         output)
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4: sum 6\n", output)

    def start_slurm(self):
        slurmctld, slurmd, sinfo = find("slurmctld", "slurmd", "sinfo")
        path = self.folder / "slurm.conf"
        path.write_text(SLURM.format(folder=self.folder, host=socket.gethostname().split(".")[0],
                                     address=self.network.address(0)))
        # Otherwise slurmd looks for a mounted control group, which does not exist in a namespace.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.start(0, slurmctld, "-D", "-f", str(path))
        for host, node in enumerate(NODES):
            (self.folder / f"{node}.tmp").mkdir()  # Its PMIx keeps sockets here.
            self.start(host, slurmd, "-D", "-N", node, "-f", str(path))
        deadline = time.monotonic() + 30
        while True:
            output, _ = self.start(0, sinfo, "-hN", "-o", "%T", SLURM_CONF=str(path)).communicate()
            if output == "idle\nidle\n":
                return {"SLURM_CONF": str(path)}
            self.assertLess(time.monotonic(), deadline, output)
            time.sleep(0.1)

    def test_slurm(self):
        (srun,) = find("srun")
        variables = self.start_slurm()
        for options in ((), ("--distribution=cyclic",), ("--mpi=pmi2",), ("--mpi=pmix",)):
            with self.subTest(options=options):
                self.expect_joined(self.start(0, srun, "-N2", "-n4", *options, RANK, **variables))
        with self.subTest("a launcher a node"):
            launch = (f"{STRETTO} run --no-prefix -n 2 --hosts {','.join(NODES)} "
                      f"--host-index $SLURM_NODEID -- {RANK}")
            self.expect_joined(self.start(0, srun, "-N2", "--ntasks-per-node=1", "sh", "-c", launch,
                                          STRETTO_JOB_KEY="7" * 64, **variables))

    def test_mpirun(self):
        mpirun, = find("mpirun.openmpi")
        before, options = hosts_systems.mpirun_between(self.network, [2, 2], self.folder / "agent")
        before = before[len(self.network.enter(0)):]  # start() adds these words again.
        self.expect_joined(self.start(0, *before, mpirun, "--allow-run-as-root", *options,
                                      "-x", "STRETTO_RENDEZVOUS=tcp://node0:29600", RANK))

    def test_torchrun(self):
        usual = SOURCE / "build/venv/bin/torchrun"
        torchrun = str(usual) if usual.exists() else find("torchrun")[0]
        self.expect_joined(*(
            self.start(host, torchrun, "--no-python", "--nnodes=2", f"--node-rank={host}",
                       "--nproc-per-node=2", "--master-addr=node0", "--master-port=29500", RANK)
            for host in range(2)))
