"""DATA, the folder of one `up`: who runs there, on which addresses.

    DATA/broker-0/          the broker's logs (its own business); of several brokers also broker-1 and so on
    DATA/run/brokers        how many there are: a folder of theirs may be lost with its disk
    DATA/run/up.json        the record: addresses, and the identity of each process and of the folder
    DATA/run/<name>.pid     the number alone, for other tools: broker-0.pid, nats.pid
    DATA/run/nats.conf      of the embedded NATS
    DATA/logs/<name>.log    what each process wrote

D1  up.json is replaced as a whole; it is the truth, the pid files are a courtesy.
D2  `up` and `down` hold a lock on DATA/run/lock while they change anything; the system drops it with
    the process that held it.
D3  The processes of a record are those of the folder that the record was written in. A copy of the folder has the
    record, too, and none of the processes: `load` gives it nothing, so no command finds them by a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.api.errors import FolderInUse, FolderNotAllowed, WrongFolder
from broker.api.plain import parse_json
from broker.cli.local.processes import ProcessIdentity

BROKER: Final = "broker-0"
"""The broker of `up`, and its folder in DATA."""
CATALOG_FILE: Final = "catalog.log"
LOG_BYTES_KEPT: Final = 16 << 20
"""A log over this is put aside, as `.1`, at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The content of up.json.

    Attributes:
        http, grpc: host:port of the broker; of the first one, where there are several. `http` over TLS: with https://.
        others: The other brokers: id, http and grpc of each.
        nats_url: Where it takes messages from, without credentials.
        nats_embedded: Whether that server is ours.
        mode: foreground or detached.
        processes: By name: `broker-0` and so on, `nats`, and in the foreground `up`.
    """

    http: str
    grpc: str
    nats_url: str
    nats_embedded: bool
    mode: str
    others: tuple[tuple[str, str, str], ...] = ()
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)

    def addresses(self, data: Path) -> dict[str, Any]:
        """The part that others use, as `--json` prints it."""
        return {
            "data": str(data),
            "mode": self.mode,
            "brokers": [
                {"id": broker, "http": http, "grpc": grpc}
                for broker, http, grpc in ((BROKER, self.http, self.grpc), *self.others)
            ],
            "nats": {"url": self.nats_url, "embedded": self.nats_embedded},
        }

    @property
    def all_http(self) -> list[str]:
        """The HTTP addresses of all brokers."""
        return [self.http, *(http for _, http, _ in self.others)]

    def alive(self) -> dict[str, ProcessIdentity]:
        return {name: identity for name, identity in self.processes.items() if identity.is_alive()}


class UpFolder:
    """Paths and record of one DATA. Makes nothing until `prepare`."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self.run = self.path / "run"
        self.logs = self.path / "logs"
        self.record_path = self.run / "up.json"
        self.count_path = self.run / "brokers"
        self.nats_config = self.run / "nats.conf"
        self.secret = self.path / "secret"

    def check(self) -> None:
        """See that this is a folder of `up`, or may become one. Changes nothing.

        Raises:
            WrongFolder: it is the data folder of a broker, or it holds one that `up` would not start. A new and empty
                broker there would look as if the records were lost.
        """
        from broker.storage.folder import BROKER_FILE, brokers_in

        if (self.path / BROKER_FILE).exists() or (self.path / CATALOG_FILE).exists():
            raise WrongFolder(f"{self.path} is the data folder of a broker: {self._way_to_it()}", path=str(self.path))
        is_ours = (self.path / BROKER).exists() or self.brokers_count() is not None
        below = [] if is_ours else brokers_in(self.path)
        if below:
            other = self.path / below[0]
            raise WrongFolder(
                f"{self.path} holds the data folders of other brokers ({', '.join(below)}), which `up` does not start:"
                f" {_broker_command(other)}",
                path=str(self.path),
                found=below,
            )

    def _way_to_it(self) -> str:
        """How to start the broker whose data folder this is."""
        owner = _broker_id(self.path)
        if self.path.name == BROKER and owner in (BROKER, None):
            return f"name the folder above it: liftlog up --data {shlex.quote(str(self.path.parent))}"
        as_ours = f"; `up` works one level above, and calls it DATA/{BROKER}" if owner == BROKER else ""
        return f"{_broker_command(self.path)}{as_ours}"

    def prepare(self) -> None:
        """Make the folders, for their owner alone: logs and notes of processes are nobody else's.

        Raises:
            FolderNotAllowed: cannot be made or written.
        """
        for folder in (self.path, self.run, self.logs):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except FileExistsError as error:
                raise FolderNotAllowed(f"{folder} is not a folder", path=str(folder)) from error
            except OSError as error:
                raise self._not_allowed(folder, error) from error
            if not os.access(folder, os.W_OK | os.X_OK):
                raise FolderNotAllowed(f"{folder}: no permission to write", path=str(folder))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder (D2).

        Raises:
            FolderInUse: another `up` or `down` is running here.
        """
        try:
            handle = open(self.run / "lock", "a")  # noqa: SIM115 closed below, the lock with it
        except OSError as error:
            raise self._not_allowed(self.run, error) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FolderInUse(
                    f"{self.path}: another `liftlog up` or `down` is running here", path=str(self.path)
                ) from error
            yield

    def brokers_count(self) -> int | None:
        """How many brokers it was made with, whatever is left of their folders; None: nobody knows."""
        try:
            return int(self.count_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def keep_count(self, count: int) -> None:
        """Note how many brokers there are. Raises DiskFull, StorageFailed."""
        _replace(self.count_path, f"{count}\n")

    def load(self) -> Record | None:
        """The record of the last `up` in this folder; None: there is none that can be read, or it is another's (D3)."""
        found = self._read()
        return found[1] if found is not None and self._wrote(found[0]) else None

    def copied(self) -> tuple[str, Record] | None:
        """Of a copy: the folder that it is a copy of, and that one's record as of then. None: it is no copy (D3)."""
        found = self._read()
        return None if found is None or self._wrote(found[0]) else (str(found[0].get("data")), found[1])

    def disown(self) -> None:
        """Remove the record and all pid files of a copy: they name processes of another folder."""
        for path in (*self.run.glob("*.pid"), self.record_path):
            path.unlink(missing_ok=True)

    def _read(self) -> tuple[dict[str, Any], Record] | None:
        try:
            values = parse_json(self.record_path.read_text(encoding="utf-8"))
            broker, *others = values["brokers"]
            return values, Record(
                http=str(broker["http"]),
                grpc=str(broker["grpc"]),
                nats_url=str(values["nats"]["url"]),
                nats_embedded=bool(values["nats"]["embedded"]),
                mode=str(values["mode"]),
                others=tuple((str(each["id"]), str(each["http"]), str(each["grpc"])) for each in others),
                processes={str(name): ProcessIdentity.from_dict(v) for name, v in values["processes"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _wrote(self, values: Mapping[str, Any]) -> bool:
        """Whether the record is of this folder; of one that was written by an earlier build, its path says it."""
        if "folder" not in values:
            return os.path.realpath(str(values.get("data"))) == os.path.realpath(self.path)
        return bool(values["folder"] == self._identity())

    def _identity(self) -> dict[str, int]:
        """What a folder keeps when it is moved, and a copy does not have."""
        found = self.run.stat()
        return {"device": found.st_dev, "inode": found.st_ino}

    def save(self, record: Record) -> None:
        """Write the record and the pid files. Raises DiskFull, StorageFailed."""
        values = record.addresses(self.path)
        values["folder"] = self._identity()
        values["processes"] = {name: identity.as_dict() for name, identity in record.processes.items()}
        for name, identity in record.processes.items():
            _replace(self.run / f"{name}.pid", f"{identity.pid}\n")
        _replace(self.record_path, json.dumps(values, indent=2) + "\n")

    def forget(self, record: Record) -> None:
        """Remove the record and the pid files: nothing runs here. One that is another's is left alone."""
        if self.copied() is not None:
            return
        for name in record.processes:
            (self.run / f"{name}.pid").unlink(missing_ok=True)
        self.record_path.unlink(missing_ok=True)

    def write_nats_config(self, text: str) -> None:
        """Write the configuration of the embedded NATS. Raises DiskFull, StorageFailed."""
        _replace(self.nats_config, text)

    def log(self, name: str) -> Path:
        """Where a process writes; put aside first when it has grown long."""
        path = self.logs / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_BYTES_KEPT:
                path.replace(path.with_suffix(".log.1"))
        return path

    @staticmethod
    def _not_allowed(folder: Path, error: OSError) -> FolderNotAllowed:
        return FolderNotAllowed(f"{folder}: {error.strerror}", path=str(folder))


def copy_notice(folder: UpFolder, original: str, record: Record) -> str:
    """What a user has to know of a folder that is a copy (`UpFolder.copied`)."""
    alive = ", ".join(f"{name} (pid {identity.pid})" for name, identity in sorted(record.alive().items()))
    processes = f"{alive} run there and are left alone" if alive else "none of its processes runs"
    what = "the folder that was here before" if original == str(folder.path) else original
    return f"{folder.path} is a copy of {what}: {processes}"


def _broker_command(folder: Path) -> str:
    """The command that starts the broker of a data folder."""
    owner = _broker_id(folder)
    more = "" if owner in (BROKER, None) else f" --set {shlex.quote(f'broker_id={owner}')}"
    return f"liftlog broker --set {shlex.quote(f'data_dir={folder}')}{more}"


def _broker_id(folder: Path) -> object:
    from broker.storage.inspect.places import owner_of

    return (owner_of(str(folder)) or {}).get("broker_id")


def _replace(path: Path, text: str) -> None:
    """Raises DiskFull, StorageFailed."""
    from broker.storage.disk import OsDisk, disk_errors

    with disk_errors(f"write {path}"):
        OsDisk().replace_file(str(path), text.encode())
