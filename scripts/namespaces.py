# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Simulates hosts and the switch between them by network namespaces on this machine."""

import contextlib
import os
import pathlib
import shutil
import subprocess

# A shaped link sends up to this many seconds' worth of bytes at once. With less, a busy machine
# does not reach the rate, because it wakes up too late.
BURST_SECONDS = 0.001
SMALLEST_BURST_BYTES = 16 * 1024


class NetworkError(Exception):
    """Namespaces cannot be created here; the text says why."""


def burst_bytes(bits_per_second):
    return max(SMALLEST_BURST_BYTES, int(bits_per_second / 8 * BURST_SECONDS))


class Network:
    """Hosts connected by a switch. Packets are dropped in the switch, so that no host sees its own
    link go down. A host with several cards has one card in each of as many networks."""

    device = "eth"  # The name of the first card.
    streams = 1  # STRETTO_STREAMS of the jobs on this network.

    def __init__(self, name, hosts=2, cards=1):
        self._devices = [self.device, *(f"{self.device}{card}" for card in range(1, cards))]
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
        for card, device in enumerate(self._devices):
            bridge = f"bridge{card}"
            self._ip(f"-n {self._switch} link add {bridge} type bridge")
            self._ip(f"-n {self._switch} link set {bridge} up")
            for host, space in enumerate(self._hosts):
                port = self._port(host, card)
                self._ip(f"link add {device} netns {space} type veth peer name {port} "
                         f"netns {self._switch}")
                self._ip(f"-n {self._switch} link set {port} master {bridge}")
                self._ip(f"-n {self._switch} link set {port} up")
                self._ip(f"-n {space} addr add {self.address(host, card)}/24 dev {device}")
                self._ip(f"-n {space} link set {device} up")
                self._keep_order(self._switch, port, host)
                self._keep_order(space, device, host + 1)

    @staticmethod
    def _port(host, card):
        """Returns the name of the switch's port to this card of the host."""
        return f"to{host}c{card}"

    def _keep_order(self, space, device, number):
        """Makes one core process all packets that a device receives. With several cores, packets
        overtake each other, so that TCP sends some twice and is slower. The core is that of the
        next host; by default it would be the sender's."""
        cores = sorted(os.sched_getaffinity(0))
        digits = f"{1 << cores[number % len(cores)]:x}"
        digits = digits.zfill(-len(digits) // 8 * -8)
        mask = ",".join(digits[at:at + 8] for at in range(0, len(digits), 8))
        file = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"  # Not every kernel has this file.
        self._run(f"ip netns exec {space} sh -c", f"echo {mask} 2>/dev/null > {file} || true")

    def use_congestion_control(self, name):
        """Sets the congestion control of future connections between hosts, instead of the
        default."""
        self._congestion_control = name
        for host, space in enumerate(self._hosts):
            for card, device in enumerate(self._devices):
                self._ip(f"-n {space} route replace {self.subnets()[card]} dev {device} "
                         f"src {self.address(host, card)} congctl {name}")

    def remove(self):
        for space in (*self._hosts, self._switch):
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def up(self, bits_per_second, congestion_control="cubic"):
        """Creates the network with this rate for the duration of a `with` block."""
        try:
            self.make()
            self.shape(bits_per_second)
            self.use_congestion_control(congestion_control)
            yield self
        finally:
            self.remove()

    def address(self, host, card=0):
        return f"10.79.{card}.{host + 1}"

    def subnets(self):
        """Returns the subnet of each card."""
        return [f"{self.address(0, card).rpartition('.')[0]}.0/24"
                for card in range(len(self._devices))]

    def space(self, host):
        """Returns the name of a host's namespace."""
        return self._hosts[host]

    def hosts_file(self, host):
        """Returns the file that serves as /etc/hosts for programs started on this host from now
        on."""
        folder = pathlib.Path("/etc/netns", self.space(host))
        folder.mkdir(parents=True)
        self._folders.append(folder)
        path = folder / "hosts"
        path.write_text("127.0.0.1 localhost\n")
        return path

    def enter(self, host):
        """Returns the words to put before a command that runs on a host."""
        return ["ip", "netns", "exec", self._hosts[host]]

    def shape(self, bits_per_second):
        """Limits the rate at which each host sends, and at which the switch sends to each host."""
        self._bits_per_second = bits_per_second
        bucket = (f"root tbf rate {bits_per_second:.0f}bit burst "
                  f"{burst_bytes(bits_per_second)} latency 20ms")
        for host, space in enumerate(self._hosts):
            for card, device in enumerate(self._devices):
                self._run(f"tc -n {space} qdisc replace dev {device} {bucket}")
                self._shape_switch(host, card, bucket)

    def _shape_switch(self, host, card, bucket):
        self._run(f"tc -n {self._switch} qdisc replace dev {self._port(host, card)} {bucket}")

    def drop_to(self, host):
        """Drops all packets to a host: the token bucket is smaller than any packet."""
        for card in range(len(self._devices)):
            self._run(f"tc -n {self._switch} qdisc replace dev {self._port(host, card)} root "
                      "tbf rate 8bit burst 1 limit 1")

    def unplug(self, host):
        """Sets a host's own links down, so that the host notices it."""
        for device in self._devices:
            self._ip(f"-n {self._hosts[host]} link set {device} down")

    def heal(self):
        for host, space in enumerate(self._hosts):
            for card, device in enumerate(self._devices):
                port = self._port(host, card)
                subprocess.run(f"tc -n {self._switch} qdisc del dev {port} root".split(),
                               stderr=subprocess.DEVNULL, check=False)
                self._ip(f"-n {space} link set {device} up")
        if self._congestion_control:
            self.use_congestion_control(self._congestion_control)  # It was lost with the link.
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
    """Two hosts on a cable with a delay, packet loss and a rate limit per connection (bits per
    second; 0: no limit): replaces netem and fq on kernels that lack them.

    A process forwards every packet, so such a link carries a few hundred Mbit/s.
    """

    def __init__(self, name, program, delay_ms, loss_permille, connection_rate=0):
        super().__init__(name)
        self._command = [str(program), *self._hosts, f"{delay_ms:g}", f"{loss_permille}",
                         f"{connection_rate}"]
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

    def address(self, host, card=0):
        return f"10.78.{card}.{host + 1}"

    def _shape_switch(self, host, card, bucket):
        """Does nothing: there is no switch, and both ends shape what they send."""
