"""Processes that `up` started, recognised without doubt before they are signalled.

A number in a pid file proves nothing: after a crash or a reboot it may belong to somebody else's
process. A `ProcessIdentity` therefore also holds when the process began (clock ticks since boot), in which
boot, and its command line. All must fit.

    ProcessIdentity(pid, started_ticks, boot_id, command)  ->  /proc/<pid>/stat, /proc/<pid>/cmdline

P1  A signal goes to a process only after its identity was checked *through the same pidfd*: a pid that
    is reused between check and signal is not hit.
P2  A zombie counts as ended: in a container nobody may reap it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from broker.api.errors import InvalidRequest
from broker.api.nats_url import shown_urls

_SECRET: Final = re.compile(r"((?:password|token|nkey_seed|secret)=).+", re.DOTALL)


def _shown(word: str) -> str:
    """A word of a command line without the secrets that it may hold: it is kept in a file."""
    before, mark, rest = word.partition("://")
    if mark and "@" in rest:
        urls = ",".join(shown_urls(f"nats://{rest}".split(",")))
        word = f"{before}://{urls.removeprefix('nats://')}"
    return _SECRET.sub(r"\1***", word)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Which process it is.

    Attributes:
        pid: Its number.
        started_ticks: When it began, in clock ticks since boot.
        boot_id: The boot that this counts from.
        command: Its command line, without secrets.
    """

    pid: int
    started_ticks: int
    boot_id: str
    command: tuple[str, ...]

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that runs under `pid` now; None: none, or a zombie (P2)."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        after_name = stat[stat.rindex(b")") + 2 :].split()  # the name may hold spaces and brackets
        if after_name[0] in (b"Z", b"X"):
            return None
        words = tuple(_shown(word.decode(errors="replace")) for word in command.rstrip(b"\0").split(b"\0"))
        return cls(pid=pid, started_ticks=int(after_name[19]), boot_id=_boot_id(), command=words)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ProcessIdentity:
        return cls(
            pid=int(values["pid"]),
            started_ticks=int(values["started_ticks"]),
            boot_id=str(values["boot_id"]),
            command=tuple(_shown(str(word)) for word in values["command"]),
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "command": list(self.command)}

    def is_alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Signal it (P1); False: it has ended.

        Raises:
            InvalidRequest: it runs as another user.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise InvalidRequest(f"process {self.pid} belongs to another user", pid=self.pid) from error
        finally:
            os.close(descriptor)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False: the time was up first."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.is_alive():
                return True
            ready, _, _ = select.select([descriptor], [], [], max(0.0, timeout_s))
            return bool(ready)
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class Process:
    """One that `up` looks after: started now (`child`), or found alive from an earlier `up`.

    `log_position` is where in its log file it began to write, in bytes.
    """

    name: str
    identity: ProcessIdentity
    log: Path
    log_position: int = 0
    child: subprocess.Popen[bytes] | None = None

    @property
    def is_new(self) -> bool:
        return self.child is not None

    def has_ended(self) -> bool:
        if self.child is not None:
            return self.child.poll() is not None
        return not self.identity.is_alive()

    def ending(self) -> str:
        """How it ended, in words."""
        code = self.child.poll() if self.child is not None else None
        if code is None:
            return "ended"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def send(self, number: signal.Signals) -> None:
        """Signal it, unless it has ended. A child that was not reaped keeps its pid, so it needs no proof."""
        if self.child is not None:
            self.child.send_signal(number)
        else:
            self.identity.send(number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False: the time was up first."""
        if self.child is None:
            return self.identity.wait(timeout_s)
        try:
            self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, *, timeout_s: float, force: bool) -> bool:
        """SIGTERM, wait, and with `force` SIGKILL; False: it still runs."""
        self.send(signal.SIGTERM)
        ended = self.wait(timeout_s)
        if not ended and force:
            self.send(signal.SIGKILL)
            ended = self.wait(timeout_s)
        return ended


def start(name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> Process:
    """Start a process in a session of its own, its output appended to `log`.

    Its own session keeps the terminal's Ctrl-C away from it: who supervises decides the order in
    which things stop. A file, not a pipe: it outlives its supervisor.
    """
    with open(log, "ab") as output:
        position = output.tell()
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env),
            start_new_session=True,
        )
    return Process(name=name, identity=_identify(child), log=log, log_position=position, child=child)


def _identify(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    """The identity of the child, once its command line can be read: for a moment after exec it is empty."""
    while child.poll() is None:
        identity = ProcessIdentity.of(child.pid)
        if identity is not None and any(identity.command):
            return identity
        time.sleep(0.001)
    return ProcessIdentity(pid=child.pid, started_ticks=-1, boot_id=_boot_id(), command=())  # has ended: nobody is that


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
