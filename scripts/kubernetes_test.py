# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of the manifests of examples/kubernetes, with network namespaces as pods.

Each pod runs the command of its container, with the variables and names that JobSet and the MPI
operator set. As with a headless service, names become known only after the pods have started.
"""

import os
import pathlib
import re
import time
import unittest

import two_hosts

try:
    import yaml
except ImportError:
    yaml = None

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ["STRETTO_BUILD_DIR"])
NAMES_SECONDS = 100
HOST_SECONDS = 125

# The host is the second to last word, the command the last. The second host is not available at
# once.
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
  *worker-0*) exec ip netns exec {0} sh -c "$2" ;;
  *) mkdir {2}/tried 2> /dev/null && exit 255; exec ip netns exec {1} sh -c "$2" ;;
esac
"""

# The fields of JobSet, MPIJob, Job and Pod that the manifests use, with their possible values.
# Kubernetes refuses a field that it does not know, or silently drops it. Compared by hand with the
# definitions of JobSet (01078527) and MPIJob (013fa15b), and with the checks of their operators.
POD = {"spec": {
    "restartPolicy": {"Never"},
    "containers": [{
        "name": str, "image": str, "command": [str],
        "env": [{"name": str, "valueFrom": {
            "secretKeyRef": {"name": str, "key": str},
            "fieldRef": {"fieldPath": {
                "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}}],
        "resources": {"limits": {"cpu": str, "memory": str}}}]}}
FIELDS = {
    "jobset.yaml": {
        "apiVersion": {"jobset.x-k8s.io/v1alpha2"}, "kind": {"JobSet"}, "metadata": {"name": str},
        "spec": {
            "network": {"enableDNSHostnames": {True}, "publishNotReadyAddresses": {True}},
            "failurePolicy": {"maxRestarts": int},
            "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": {
                "completionMode": {"Indexed"}, "completions": int, "parallelism": int,
                "backoffLimit": int, "template": POD}}}]}},
    "mpijob.yaml": {
        "apiVersion": {"kubeflow.org/v2beta1"}, "kind": {"MPIJob"}, "metadata": {"name": str},
        "spec": {
            "mpiImplementation": {"OpenMPI", "Intel", "MPICH"}, "slotsPerWorker": int,
            "runPolicy": {"backoffLimit": int, "cleanPodPolicy": {"None", "Running", "All"}},
            "mpiReplicaSpecs": dict.fromkeys(
                ("Launcher", "Worker"),
                {"replicas": int, "restartPolicy": {"Never", "OnFailure"}, "template": POD})}}}


def misfits(value, shape, place):
    """Yields the parts of a manifest that do not match the shape in FIELDS."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for field, part in value.items():
            if field in shape:
                yield from misfits(part, shape[field], f"{place}.{field}")
            else:
                yield f"{place} has no field {field}"
    elif isinstance(shape, list) and isinstance(value, list):
        for part in value:
            yield from misfits(part, shape[0], f"{place}[]")
    elif not (value in shape if isinstance(shape, set) else type(value) is shape):
        yield f"{place} is {value!r}"


def manifest(name):
    found = yaml.safe_load((SOURCE / "examples/kubernetes" / name).read_text())
    problems = list(misfits(found, FIELDS[name], name))
    assert not problems, problems
    return found


@unittest.skipIf(yaml is None, "python3 has no yaml (Debian's python3-yaml)")
class KubernetesTest(two_hosts.TwoHosts):
    def setUp(self):
        super().setUp()
        # The image contains this program.
        (self.folder / "stretto").symlink_to(BUILD / "bin/stretto")
        (self.folder / "train").symlink_to(BUILD / "bin/join_rank_program")

    def start(self, command, variables, before=()):
        # Expands variables as the kubelet does.
        words = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word)
                 for word in command]
        return self.run_process([*before, *words], variables | {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "STRETTO_LOG": "error"})

    def output_of(self, process):
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, output)
        return output

    def pods_of_jobset(self):
        """Returns (names of the pods, a function that starts one)."""
        jobset = manifest("jobset.yaml")
        (workers,) = jobset["spec"]["replicatedJobs"]
        job = workers["template"]["spec"]
        pods = job["completions"]
        self.assertEqual((pods, job["parallelism"], job["completionMode"]), (2, 2, "Indexed"))
        self.assertEqual(job["template"]["spec"]["restartPolicy"], "Never")
        self.assertEqual(len(jobset["spec"]["network"]), 2)
        name = jobset["metadata"]["name"]
        names = [f"{name}-{workers['name']}-0-{pod}.{name}" for pod in range(pods)]
        (container,) = job["template"]["spec"]["containers"]
        self.assertIn(",".join(names), container["command"])
        self.assertEqual([variable["name"] for variable in container["env"]],
                         ["STRETTO_JOB_KEY", "JOB_COMPLETION_INDEX"])

        def start(pod):
            variables = {"JOB_COMPLETION_INDEX": str(pod), "STRETTO_JOB_KEY": "7" * 64,
                         "TEST_JOIN_SECONDS": "300"}
            return self.start(container["command"], variables, self.network.enter(pod))
        return names, start

    def expect_a_job(self, processes):
        output = "".join(self.output_of(process) for process in processes)
        for rank in range(8):
            self.assertIn(f"[{rank}] rank {rank} of 8: sum 28\n", output)

    def test_jobset(self):
        names, start = self.pods_of_jobset()
        started = [start(pod) for pod in range(len(names))]
        time.sleep(0.5)
        self.publish(names)
        self.expect_a_job(started)

    @unittest.skipUnless(os.environ.get("STRETTO_THOROUGH"),
                         "it takes two minutes: ./dev test --all runs it")
    def test_a_second_pod_may_come_minutes_late(self):
        names, start = self.pods_of_jobset()
        begin = time.monotonic()
        first = start(0)
        time.sleep(NAMES_SECONDS)
        self.assertIsNone(first.poll())
        self.publish(names)
        time.sleep(HOST_SECONDS - (time.monotonic() - begin))
        self.assertIsNone(first.poll())
        self.expect_a_job([first, start(1)])

    def test_mpijob(self):
        spec = manifest("mpijob.yaml")["spec"]
        roles = spec["mpiReplicaSpecs"]
        self.assertEqual(roles["Worker"]["replicas"], 2)
        (worker,) = roles["Worker"]["template"]["spec"]["containers"]
        self.assertEqual(worker["command"], ["/usr/sbin/sshd", "-De"])
        names = [f"train-worker-{pod}.train.default.svc" for pod in range(2)]
        hostfile = self.folder / "hostfile"
        hostfile.write_text("".join(f"{name} slots={spec['slotsPerWorker']}\n" for name in names))
        ssh = self.folder / "ssh"
        ssh.write_text(SSH.format(*map(self.network.space, range(2)), self.folder))
        ssh.chmod(0o755)
        # The operator overrides the template's value.
        self.assertEqual(roles["Launcher"]["restartPolicy"], "Never")
        (launcher,) = roles["Launcher"]["template"]["spec"]["containers"]
        self.assertIn("/etc/mpi/hostfile", launcher["command"])
        process = self.start([str(hostfile) if word == "/etc/mpi/hostfile" else word
                              for word in launcher["command"]], {})
        time.sleep(0.5)
        self.publish(names)
        self.expect_a_job([process])
        self.assertTrue((self.folder / "tried").exists())
