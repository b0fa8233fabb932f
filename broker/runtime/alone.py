"""A broker that is alone: a cluster of one. See `others.py`. Nobody follows it, and nobody is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from broker.api.errors import WrongFolder
from broker.config.certificates import Certificates
from broker.config.configuration import Config
from broker.config.settings import ReplicationConfig
from broker.control.local import LocalPlane
from broker.control.others import Home, MetadataPlane, Tell
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncExecutor
from broker.node.sinks.here import StagesHere
from broker.node.sinks.places import StagePlaces
from broker.node.wiring import FollowerDriver, Followers
from broker.replication.events import Send
from broker.replication.messages import AskRange, HeldRange, Incarnation
from broker.storage.disk import FixedDisk
from broker.storage.folder import GROUP_FILES


class Alone:
    """See the module. `config`: without voters."""

    is_alone = True

    def __init__(self, config: Config, tell: Tell) -> None:
        self._me = config.broker_id
        self.cluster_id: str | None = None
        self.secret: str | None = None
        self.certificate: Certificates | None = None
        self.voters = 0

    def check_folder(self, disk: FixedDisk, folder: str) -> None:
        """As `Others.check_folder`."""
        if any(disk.exists(f"{folder}/{name}") for name in GROUP_FILES):
            raise WrongFolder(
                f"data folder {folder} is of a broker in a cluster: set cluster.id and cluster.voters", path=folder
            )

    def plane(self, home: Home) -> LocalPlane:
        """As `Others.plane`."""
        return LocalPlane(self._me, home)

    def link(self, plane: MetadataPlane, home: Home, pool: SyncExecutor, settings: ReplicationConfig) -> Unlinked:
        """As `Others.link`."""
        return Unlinked()

    def stages(
        self,
        plane: MetadataPlane,
        home: Home,
        find: Callable[[Place], Partition | None],
        *,
        boot_id: str,
        clock: Callable[[], int],
    ) -> StagePlaces:
        """As `Others.stages`."""
        return StagesHere(home.disk, find, boot_id=boot_id, clock=clock)


class Unlinked:
    """The link of a broker that is alone. Implements `others.Link`."""

    bulk_bytes = 0

    def __init__(self) -> None:
        self.counts: Mapping[str, int] = Counter()
        self.refused: Mapping[str, int] = {}

    def start(self, host: str, port: int) -> int:
        """Nothing listens."""
        return port

    def stop(self) -> None:
        """There is nothing to end."""

    def hurry(self) -> None:
        """There is no other controller."""

    def follower(self, at: Place, partition: Partition, step_out: Callable[[str], None]) -> FollowerDriver:
        """As `Wiring.follower`."""
        return _FOLLOWS_NOBODY

    def followers(self, at: Place, partition: Partition) -> Followers:
        """As `Wiring.followers`."""
        return _NO_FOLLOWERS

    def ask_range(self, to: str, at: Place, question: AskRange, take: Callable[[HeldRange, bytes], None]) -> bool:
        """As `Wiring.ask_range`."""
        return False

    def forget_range(self, to: str, at: Place) -> None:
        """As `Wiring.forget_range`."""


class _FollowsNobody:
    """The follower of a log that is led here, always. Implements `wiring.FollowerDriver`."""

    agreed_epoch = -1

    def follow(self, epoch: int, leader: str, incarnation: Incarnation) -> None:
        raise AssertionError(f"{leader} cannot lead: this broker is alone")

    def rest(self) -> None:
        pass

    def tick(self, now_ms: int) -> None:
        pass

    def marks(self) -> tuple[int, int]:
        return 0, 0

    def compacted(self) -> int:
        return 0

    def close(self) -> None:
        pass


class _NoFollowers:
    """Implements `wiring.Followers`."""

    def send(self, effect: Send) -> None:
        raise AssertionError("there is nobody to send to: this broker is alone")

    def close(self) -> None:
        pass


_FOLLOWS_NOBODY: Final = _FollowsNobody()
_NO_FOLLOWERS: Final = _NoFollowers()
"""Of all logs: they know of none."""
