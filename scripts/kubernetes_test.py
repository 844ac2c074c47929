# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The manifests of examples/kubernetes, with network namespaces as pods (pods.py)."""

import time

import pods

# The host is the last word but one, the command the last. The second host is not there at once.
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
  *worker-0*) exec ip netns exec {0} sh -c "$2" ;;
  *) mkdir {2}/tried 2> /dev/null && exit 255; exec ip netns exec {1} sh -c "$2" ;;
esac
"""


class KubernetesTest(pods.Pods):
    def test_jobset(self):
        names, start = self.pods_of_jobset()
        started = [start(pod) for pod in range(len(names))]
        time.sleep(0.5)
        self.publish(names)
        self.expect_a_job(started)

    def test_mpijob(self):
        spec = pods.manifest("mpijob.yaml")["spec"]
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
        # The operator overrides what the template says.
        self.assertEqual(roles["Launcher"]["restartPolicy"], "Never")
        (launcher,) = roles["Launcher"]["template"]["spec"]["containers"]
        self.assertIn("/etc/mpi/hostfile", launcher["command"])
        process = self.start([str(hostfile) if word == "/etc/mpi/hostfile" else word
                              for word in launcher["command"]], {})
        time.sleep(0.5)
        self.publish(names)
        self.expect_a_job([process])
        self.assertTrue((self.folder / "tried").exists())
