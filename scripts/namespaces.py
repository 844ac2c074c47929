# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Hosts and the switch between them: network namespaces on this machine."""

import contextlib
import os
import pathlib
import shutil
import subprocess

# What a shaped link lets through at once. Less, and a busy machine does not reach the rate, because
# it wakes up too late.
BURST_SECONDS = 0.001
SMALLEST_BURST_BYTES = 16 * 1024


class NetworkError(Exception):
    """Namespaces cannot be made here; the text says why."""


def burst_bytes(bits_per_second):
    return max(SMALLEST_BURST_BYTES, int(bits_per_second / 8 * BURST_SECONDS))


class Network:
    """Packets are dropped in the switch, so that neither host sees its own link go down."""

    device = "eth"
    streams = 1  # STRETTO_STREAMS of its jobs.

    def __init__(self, name, hosts=2):
        self._hosts = [f"{name}h{host}" for host in range(hosts)]
        self._switch = f"{name}s"
        self._bits_per_second = None
        self._congestion_control = None
        self._folders = []

    def make(self):
        for space in (*self._hosts, self._switch):
            self._ip(f"netns add {space}")
            self._ip(f"-n {space} link set lo up")
        self._connect()

    def _connect(self):
        self._ip(f"-n {self._switch} link add bridge type bridge")
        self._ip(f"-n {self._switch} link set bridge up")
        for host, space in enumerate(self._hosts):
            self._ip(f"link add eth netns {space} type veth peer name to{host} "
                     f"netns {self._switch}")
            self._ip(f"-n {self._switch} link set to{host} master bridge")
            self._ip(f"-n {self._switch} link set to{host} up")
            self._ip(f"-n {space} addr add {self.address(host)}/24 dev eth")
            self._ip(f"-n {space} link set eth up")
            self._keep_order(self._switch, f"to{host}", host)
            self._keep_order(space, "eth", host + 1)

    def _keep_order(self, space, device, number):
        """One core takes what a device receives: packets that several take overtake each other, for
        which TCP sends some of them twice, and all of them more slowly. The core is the next
        host's, as without this it is that of whoever has sent."""
        cores = sorted(os.sched_getaffinity(0))
        digits = f"{1 << cores[number % len(cores)]:x}"
        digits = digits.zfill(-len(digits) // 8 * -8)
        mask = ",".join(digits[at:at + 8] for at in range(0, len(digits), 8))
        file = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"  # Not of every kernel.
        self._run(f"ip netns exec {space} sh -c", f"echo {mask} 2>/dev/null > {file} || true")

    def use_congestion_control(self, name):
        """Of connections that hosts make to each other from now on, instead of the default."""
        self._congestion_control = name
        for host, space in enumerate(self._hosts):
            address = self.address(host)
            self._ip(f"-n {space} route replace {address.rpartition('.')[0]}.0/24 "
                     f"dev {self.device} src {address} congctl {name}")

    def remove(self):
        for space in (*self._hosts, self._switch):
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def up(self, bits_per_second, congestion_control="cubic"):
        """There, at this rate, for as long as a `with` lasts."""
        try:
            self.make()
            self.shape(bits_per_second)
            self.use_congestion_control(congestion_control)
            yield self
        finally:
            self.remove()

    def address(self, host):
        return f"10.79.0.{host + 1}"

    def space(self, host):
        """The name of a host's namespace."""
        return self._hosts[host]

    def hosts_file(self, host):
        """What is /etc/hosts for the programs that are started on a host from now on."""
        folder = pathlib.Path("/etc/netns", self.space(host))
        folder.mkdir(parents=True)
        self._folders.append(folder)
        path = folder / "hosts"
        path.write_text("127.0.0.1 localhost\n")
        return path

    def enter(self, host):
        """The words before a command that runs on a host."""
        return ["ip", "netns", "exec", self._hosts[host]]

    def shape(self, bits_per_second):
        """What each host sends, and what the switch sends to each, goes no faster."""
        self._bits_per_second = bits_per_second
        bucket = (f"root tbf rate {bits_per_second:.0f}bit burst "
                  f"{burst_bytes(bits_per_second)} latency 20ms")
        for host, space in enumerate(self._hosts):
            self._run(f"tc -n {space} qdisc replace dev {self.device} {bucket}")
            self._shape_switch(host, bucket)

    def _shape_switch(self, host, bucket):
        self._run(f"tc -n {self._switch} qdisc replace dev to{host} {bucket}")

    def drop_to(self, host):
        """Nothing arrives at a host any more: the bucket is smaller than any packet."""
        self._run(f"tc -n {self._switch} qdisc replace dev to{host} root "
                  "tbf rate 8bit burst 1 limit 1")

    def unplug(self, host):
        """A host sees that its own link is down."""
        self._ip(f"-n {self._hosts[host]} link set eth down")

    def heal(self):
        for host, space in enumerate(self._hosts):
            subprocess.run(f"tc -n {self._switch} qdisc del dev to{host} root".split(),
                           stderr=subprocess.DEVNULL, check=False)
            self._ip(f"-n {space} link set eth up")
        if self._congestion_control:
            self.use_congestion_control(self._congestion_control)  # The route has gone with it.
        if self._bits_per_second:
            self.shape(self._bits_per_second)

    def _ip(self, arguments):
        self._run(f"ip {arguments}")

    @staticmethod
    def _run(command, *words):
        try:
            subprocess.run([*command.split(), *words], check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise NetworkError(f"{error.filename} is not installed (package iproute2)") from error
        except subprocess.CalledProcessError as error:
            raise NetworkError(f"{command}: {error.stderr.strip()}") from error


class Cable(Network):
    """Two hosts on a cable that takes its time and loses packets: netem, where kernels lack it.

    A process passes every packet on, so such a link carries some hundred Mbit/s.
    """

    def __init__(self, name, program, delay_ms, loss_permille):
        super().__init__(name)
        self._command = [str(program), *self._hosts, f"{delay_ms:g}", f"{loss_permille}"]
        self._process = None

    def _connect(self):
        try:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise NetworkError(f"{error.filename}: {error.strerror}; it is built with the "
                               "tests") from error
        if self._process.stdout.readline() != "up\n":
            raise NetworkError("the cable did not come up")
        for host, space in enumerate(self._hosts):
            self._ip(f"-n {space} link set far{host} name {self.device}")

    def remove(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
        super().remove()

    def address(self, host):
        return f"10.78.0.{host + 1}"

    def _shape_switch(self, host, bucket):
        """There is none: both ends shape what they send."""
