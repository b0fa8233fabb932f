"""The registration of this process: asked for until the catalog has it, from a folder that the catalog means.

    processes    in the data folder: <name> <after>, a line for each process that has run on it, the newest last

    the catalog's last process of this broker ─► has this folder seen it? ─► own line on disk ─► register, after it

R1  It names the registration that it replaces. One that arrives when another process has registered since is refused:
    it would end that process, and have the replicas that were made meanwhile taken for lost.
R2  A line is on disk in this folder before the catalog can have its process. So a folder with logs that lacks the last
    process, and has seen nobody register since, is not the folder that the catalog means: its broker has another one,
    or this is an older copy. It is refused, or its logs would pass for those that are in sync. (The Raft journal has an
    id too, and may be lost alone.)
R3  A catalog that is older than the folder proves nothing: one that a rescue begins with, or that of a broker that has
    just started. Registrations up to `after` are older.
R4  A folder of an earlier release has no such file: it is taken for the one that the catalog means, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from broker.api.errors import InvalidRequest, LiftlogError, NotReady
from broker.control.clock import boot_ms
from broker.control.service import Catalogs
from broker.storage.disk import Disk, disk_errors

FILE: Final = "processes"
KEPT: Final = 100
"""So many lines are kept when there are twice as many: of processes that ended before they had registered."""


class Registration:
    """See the module.

    Args:
        command: `register_broker` of this process, without `after`.
        has_logs: Whether the folder has any.

    Attributes:
        sent_ms: When each try that may have been carried out was sent.
    """

    def __init__(
        self, service: Catalogs, disk: Disk, folder: str, command: Mapping[str, Any], *, has_logs: bool
    ) -> None:
        self.sent_ms: list[int] = []
        self._service, self._disk, self._folder = service, disk, folder
        self._command = command
        self._has_logs = has_logs

    def ask(self) -> int:
        """Ask once. Returns the number of the registration.

        Raises:
            InvalidRequest: it was refused, or R2.
            LiftlogError: to be asked again.
        """
        broker, name = str(self._command["broker_id"]), str(self._command["incarnation"])
        known = self._service.catalog.brokers.get(broker)
        if known is not None and known.incarnation == name:
            return known.registration
        after = 0 if known is None else known.registration
        seen = seen_in(self._disk, self._folder)
        if self._has_logs and known is not None and seen is not None and seen.lacks(known.incarnation, after):
            raise former(broker, self._folder)
        self._note((name, after))
        self.sent_ms.append(boot_ms())
        try:
            return int(self._service.execute({**self._command, "after": after})["registration"])
        except LiftlogError as error:
            if not error.fields.get("sent"):
                self.sent_ms.pop()
            if isinstance(error, InvalidRequest) and error.fields.get("registration", after) != after:  # R1
                self._service.read()
                raise NotReady(f"{error.message}: this catalog had {after}") from error
            raise

    def _note(self, own: tuple[str, int]) -> None:
        disk, path = self._disk, f"{self._folder}/{FILE}"
        with disk_errors(f"write {path}"):
            lines = _read(disk, path) or []
            if not lines or len(lines) >= 2 * KEPT:
                disk.replace_file(path, _lines([*lines[-KEPT:], own]), frees=True)  # it may start to make room
            elif own != lines[-1]:
                file = disk.open(path)
                try:
                    file.write(b"\n" + _lines([own]))  # the one before it may be torn
                    file.sync()
                finally:
                    file.close()


class Seen(NamedTuple):
    """The processes that a data folder has seen. Registrations up to `after` are older than the last of them."""

    names: frozenset[str]
    after: int

    def lacks(self, name: str, registration: int) -> bool:
        """Whether this process has registered since, from elsewhere (R2, R3)."""
        return registration > self.after and name not in self.names


def seen_in(disk: Disk, folder: str) -> Seen | None:
    """None: the folder says nothing (R4). Raises StorageFailed."""
    path = f"{folder}/{FILE}"
    with disk_errors(f"read {path}"):
        lines = _read(disk, path)
    return Seen(frozenset(name for name, _ in lines), max(after for _, after in lines)) if lines else None


def former(broker: str, folder: str) -> InvalidRequest:
    """The error for a folder that is not its broker's present one."""
    return InvalidRequest(
        f"broker {broker} has had another data folder since, or {folder} is an older copy of its own: what was stored"
        " since is not there. Start it with the present one. If that is lost, empty this one: the broker copies what"
        " others have",
        path=folder,
    )


def _read(disk: Disk, path: str) -> list[tuple[str, int]]:
    text = disk.read_file(path).decode("ascii", "replace") if disk.exists(path) else ""
    lines = [line.split(" ") for line in text.splitlines()]
    return [(line[0], int(line[1])) for line in lines if len(line) == 2 and line[1].isascii() and line[1].isdigit()]


def _lines(lines: Iterable[tuple[str, int]]) -> bytes:
    return "".join(f"{name} {after}\n" for name, after in lines).encode()
