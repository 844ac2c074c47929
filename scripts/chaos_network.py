# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Two hosts and the switch between them: three network namespaces on this machine."""

import subprocess

ADDRESSES = ("10.79.0.1", "10.79.0.2")


class NetworkError(Exception):
    """Namespaces cannot be made here; the text says why."""


class Network:
    """Packets are dropped in the switch, so that neither host sees its own link go down."""

    def __init__(self, name):
        self._hosts = [f"{name}h0", f"{name}h1"]
        self._switch = f"{name}s"

    def make(self):
        for space in (*self._hosts, self._switch):
            self._ip(f"netns add {space}")
            self._ip(f"-n {space} link set lo up")
        self._ip(f"-n {self._switch} link add bridge type bridge")
        self._ip(f"-n {self._switch} link set bridge up")
        for host, space in enumerate(self._hosts):
            self._ip(f"link add eth netns {space} type veth peer name to{host} "
                     f"netns {self._switch}")
            self._ip(f"-n {self._switch} link set to{host} master bridge")
            self._ip(f"-n {self._switch} link set to{host} up")
            self._ip(f"-n {space} addr add {ADDRESSES[host]}/24 dev eth")
            self._ip(f"-n {space} link set eth up")

    def remove(self):
        for space in (*self._hosts, self._switch):
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)

    def enter(self, host):
        """The words before a command that runs on a host."""
        return ["ip", "netns", "exec", self._hosts[host]]

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

    def _ip(self, arguments):
        self._run(f"ip {arguments}")

    @staticmethod
    def _run(command):
        try:
            subprocess.run(command.split(), check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise NetworkError(f"{error.filename} is not installed (package iproute2)") from error
        except subprocess.CalledProcessError as error:
            raise NetworkError(f"{command}: {error.stderr.strip()}") from error
