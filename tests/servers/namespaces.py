"""Hosts in a network of their own, on one machine, with `ip netns`. Only for root on Linux."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from typing import Any

from tests.servers.watch import Watch

RANDOM = random.SystemRandom()  # hypothesis seeds the default generator, and then every run would make the same network

REMOVE = """
cat
bridge=$0
for host; do
    ip netns delete "$host"
    ip link delete "v$host"  # gone with its namespace, but the kernel takes its time
done
ip link delete "$bridge"
"""


def obstacle() -> str | None:
    """Why networks are not possible on this machine, or an empty text."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "no `ip` here. Install iproute2"
    tried = subprocess.run(["ip", "netns", "add", name := _name("try")], capture_output=True, text=True, timeout=30)
    if tried.returncode:
        return f"`ip netns add` does not work here: {tried.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


class Host:
    """A network namespace with one cable."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.cable = f"v{name}"

    def command(self, *command: str) -> list[str]:
        """The command that runs `arguments` on this host."""
        return ["ip", "netns", "exec", self.name, *command]

    def popen(self, *command: str, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(*command), **options)

    def cut_off(self) -> None:
        """Pull the cable at the other end. No side gets a FIN or a RST: only silence, as when a machine is gone."""
        _ip("link", "set", self.cable, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self.cable, "up")


class Network:
    """`with Network() as network:` has hosts that reach this machine, and so a server on it, at `network.address`."""

    def __init__(self, hosts: int = 2) -> None:
        # Other tests may make networks at the same time. On a test machine, 10.x is free to use.
        tag = _name("td")
        subnet = f"10.{RANDOM.randrange(100, 250)}.{RANDOM.randrange(1, 250)}"
        self.bridge = f"b{tag}"
        self.address = f"{subnet}.1"
        self.hosts = [Host(f"{tag}-{number}", f"{subnet}.{number + 1}") for number in range(1, hosts + 1)]
        self._watch: Watch | None = None

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        if self._watch is not None:
            self._watch.finish()
            self._watch = None

    def _make(self) -> None:
        self._watch = Watch(REMOVE, self.bridge, *(host.name for host in self.hosts))
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for host in self.hosts:
            _ip("netns", "add", host.name)
            _ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("link", "set", host.cable, "master", self.bridge, "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")


def _name(prefix: str) -> str:
    """A short name: the name of a link has at most 15 letters."""
    return f"{prefix}{RANDOM.randrange(16**6):06x}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
