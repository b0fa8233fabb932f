"""What a broker has of other brokers: its part in the catalog, its link, where the stages of sinks are kept.

runtime/several.py  of a cluster: Raft, the link, companions of partitions
runtime/alone.py    of a cluster of one: a file, nobody, folders beside the logs; it loads nothing of the former
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.api.certificate_faults import Unbelieved
from broker.config.certificates import Certificates
from broker.config.settings import ReplicationConfig
from broker.control.service import Catalogs
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncExecutor
from broker.node.sinks.places import StagePlaces
from broker.node.wiring import Wiring
from broker.storage.disk import FixedDisk

CATALOG_FILE: Final = "catalog.log"
"""In the data folder of a broker that is alone."""
Tell = Callable[[str, str, Unbelieved], None]
"""Of a certificate that is not believed: the port, the address, what was found. From any thread; does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where this broker is reached, as the catalog tells others."""

    http: str
    grpc: str
    rack: str = ""


class MetadataPlane(Protocol):
    """This broker's part in the catalog: `plane.Plane`, `local.LocalPlane`."""

    process: str
    service: Catalogs
    refusals: int

    def start(self) -> None: ...
    def register(
        self,
        addresses: Addresses,
        *,
        sound: Mapping[str, list[int]] | None = None,
        behind: Mapping[str, list[int]] | None = None,
        epoch_seen: int = -1,
    ) -> int: ...
    def hand_over(self) -> None: ...
    def leave(self) -> None: ...
    def stop(self) -> None: ...
    def has_session(self) -> bool: ...
    def obstacle(self) -> str: ...
    def member_heard(self, group: str, member: str, session: int) -> None: ...
    def report_leader(self, at: Place, leader_epoch: int) -> None: ...
    def status(self, *, timeout_s: float = ...) -> dict[str, Any]: ...


class Link(Wiring, Protocol):
    """This broker's link to others: `link.link.ReplicaLink`, `runtime.alone.Unlinked`."""

    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def bulk_bytes(self) -> int: ...
    def start(self, host: str, port: int) -> int: ...
    def stop(self) -> None: ...
    def hurry(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """What this broker gives to its part in the catalog.

    Attributes:
        folder: The data folder, locked.
        cluster_id: As the folder has it.
        halt: Ends the process, and says why: it may act under its id no more.
        session_changed: Called on the catalog's thread when the session has opened or lapsed; must not wait.
        controller_changed: Likewise, when another controller is known than before.
        waits_for: Told in words, from time to time, for whom the start waits.
    """

    disk: FixedDisk
    folder: str
    cluster_id: str
    halt: Callable[[str], None]
    session_changed: Callable[[bool], None]
    controller_changed: Callable[[], None]
    waits_for: Callable[[str], None]


class Others(Protocol):
    """See the module.

    Attributes:
        is_alone: There are none, and never will be.
        cluster_id: As configured; None: the folder has its own.
        certificate: For the ports that other brokers call; None: they speak no TLS.
        voters: How many first voters are configured.
    """

    is_alone: bool
    cluster_id: str | None
    secret: str | None
    certificate: Certificates | None
    voters: int

    def check_folder(self, disk: FixedDisk, folder: str) -> None:
        """Raise WrongFolder if it is that of the other kind."""

    def plane(self, home: Home) -> MetadataPlane:
        """Its part in the catalog."""

    def link(self, plane: MetadataPlane, home: Home, pool: SyncExecutor, settings: ReplicationConfig) -> Link:
        """Its link."""

    def stages(
        self,
        plane: MetadataPlane,
        home: Home,
        find: Callable[[Place], Partition | None],
        *,
        boot_id: str,
        clock: Callable[[], int],
    ) -> StagePlaces:
        """Where stages are kept. `find`: the replica that is open here; `clock`: microseconds since 1970 UTC."""
