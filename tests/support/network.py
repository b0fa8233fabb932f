"""Hosts of their own for brokers: Linux network namespaces on a bridge, and cables that can be cut, one way as well.

    this process ── bridge 10.x.y.1 ──┬── a 10.x.y.2
      nats-server, clients            ├── b 10.x.y.3
                                      └── c 10.x.y.4

Packets on a cut cable vanish without an answer, as in a network that has failed: the sender has a neighbour's address
that is nobody's. Nothing is refused. Needs root and `ip`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Final, Self

HERE: Final = "here"
"""As a target: this process, and what else runs beside it."""
NOBODY: Final = "02:00:00:00:00:01"
"""An address on the wire that no host has."""


def is_allowed() -> bool:
    """Whether this process may make namespaces."""
    name = f"ll-may-{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    _ip("netns", "del", name)
    return True


class Network:
    """Hosts by name, a context manager. The names of its namespaces and links are this process's own."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.hosts = list(hosts)
        self._tag = f"{os.getpid() % 100_000}{random.randrange(100)}"
        self._net = f"10.{random.randrange(64, 128)}.{random.randrange(1, 255)}"
        self._stack = ExitStack()
        self._cut: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        bridge = f"llbr{self._tag}"
        with self._stack:
            _ip("link", "add", bridge, "type", "bridge")
            self._stack.callback(_ip, "link", "del", bridge)
            _ip("addr", "add", f"{self.here}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for host in self.hosts:
                space, cable = self._space(host), f"ll{host}{self._tag}"
                _ip("netns", "add", space)
                self._stack.callback(_ip, "netns", "del", space)
                _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
                _ip("link", "set", cable, "master", bridge, "up")
                _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
                _ip("-n", space, "link", "set", "eth0", "up")
                _ip("-n", space, "link", "set", "lo", "up")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def here(self) -> str:
        """This process's own address."""
        return f"{self._net}.1"

    def address(self, host: str) -> str:
        return self.here if host == HERE else f"{self._net}.{self.hosts.index(host) + 2}"

    def prefix(self, host: str) -> Sequence[str]:
        """The words before a command that is to run there; the process keeps its id."""
        return ("ip", "netns", "exec", self._space(host))

    def cut(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target`. The other way is as it was."""
        self._neighbour("replace", source, target, "lladdr", NOBODY, "nud", "permanent")
        self._cut.add((source, target))

    def cut_off(self, host: str) -> None:
        """Between this host and the others nothing goes either way. This process still reaches it."""
        for other in self.hosts:
            if other != host:
                self.cut(host, other)
                self.cut(other, host)

    def heal(self) -> None:
        """All cables are whole."""
        for source, target in sorted(self._cut):
            self._neighbour("del", source, target)
        self._cut.clear()

    def _neighbour(self, act: str, source: str, target: str, *more: str) -> None:
        _ip("-n", self._space(source), "neigh", act, self.address(target), *more, "dev", "eth0")

    def _space(self, host: str) -> str:
        return f"ll-{host}-{self._tag}"


def _ip(*arguments: str) -> None:
    found = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"ip {' '.join(arguments)}: {found.stderr}"
