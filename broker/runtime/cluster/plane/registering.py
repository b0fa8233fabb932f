"""The registration of this process: asked for until the catalog has it, from a folder that the catalog means.

    processes    in the data folder: the names of the processes that have run on it, a line each, the newest last

    the catalog's last process of this broker ─► has this folder seen it? ─► own name on disk ─► register, after it

R1  It names the registration that it replaces. One that arrives when another process has registered since is refused:
    it would end that process, and have the replicas that were made meanwhile taken for lost.
R2  A name is on disk in this folder before the catalog can have it. So a folder with logs that lacks the name of the
    last process is not the folder that the catalog means: its broker has another one, or this is an older copy. It is
    refused, or its logs would pass for those that are in sync. (The Raft journal has an id too, and may be lost alone.)
R3  In a rescue the catalog is older than the folders, and the logs decide by themselves (`rescue.Q3`).
R4  A folder of an earlier release has no such file: it is taken for the one that the catalog means, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.api.errors import InvalidRequest, LiftlogError, NotReady
from broker.metadata.info import BrokerInfo
from broker.runtime.cluster.plane.clock import boot_ms
from broker.runtime.cluster.plane.service import Catalogs
from broker.storage.disk import Disk, disk_errors

FILE: Final = "processes"
KEPT: Final = 1_000
"""So many names are kept when there are twice as many. A catalog that a rescue begins with may be older by some."""


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
        catalog, name = self._service.catalog, str(self._command["incarnation"])
        known = catalog.brokers.get(str(self._command["broker_id"]))
        if known is not None and known.incarnation == name:
            return known.registration
        self._note(name, known, is_rescued=catalog.cluster.rescue is not None)
        after = 0 if known is None else known.registration
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

    def _note(self, name: str, known: BrokerInfo | None, *, is_rescued: bool) -> None:
        """R2, R3, R4."""
        disk, path = self._disk, f"{self._folder}/{FILE}"
        seen = names_in(disk, self._folder)
        is_former = known is not None and seen is not None and known.incarnation not in seen
        if is_former and self._has_logs and not is_rescued:
            raise former(str(self._command["broker_id"]), self._folder)
        with disk_errors(f"write {path}"):
            if seen is None:
                seen = [known.incarnation] if known is not None and self._has_logs else []
                disk.replace_file(path, _lines([*seen, name]))
            elif name not in seen and len(seen) < 2 * KEPT:
                self._append(path, name)
            elif name not in seen:
                disk.replace_file(path, _lines([*seen[-KEPT:], name]))

    def _append(self, path: str, name: str) -> None:
        file = self._disk.open(path)
        try:
            file.write(b"\n" + _lines([name]))  # the one before it may be torn
            file.sync()
        finally:
            file.close()


def names_in(disk: Disk, folder: str) -> list[str] | None:
    """The processes that a data folder has seen; None: it says nothing (R4). Raises StorageFailed."""
    path = f"{folder}/{FILE}"
    with disk_errors(f"read {path}"):
        return disk.read_file(path).decode("ascii", "replace").split() if disk.exists(path) else None


def former(broker: str, folder: str) -> InvalidRequest:
    """The error for a folder that is not its broker's present one."""
    return InvalidRequest(
        f"broker {broker} has had another data folder since, or {folder} is an older copy of its own: what was stored"
        " since is not there. Start it with the present one. If that is lost, empty this one: the broker copies what"
        " others have",
        path=folder,
    )


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()
