"""A broker of a cluster: Raft, the link to others, companions of partitions. See `others.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from broker.api.errors import WrongFolder
from broker.config.certificates import certificates_of
from broker.config.configuration import Config
from broker.config.settings import ReplicationConfig
from broker.control.identity import check_secret, identity_from
from broker.control.others import CATALOG_FILE, Home, MetadataPlane, Tell
from broker.control.plane import Plane
from broker.link.link import ReplicaLink
from broker.link.tls import LinkTls
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncExecutor
from broker.node.sinks.beside import Companions
from broker.node.sinks.places import StagePlaces
from broker.raft.secured import RaftTls
from broker.storage.disk import FixedDisk


class Several:
    """See the module.

    Args:
        config: With voters.
        tell: Of certificates that are not believed.
    """

    is_alone = False

    def __init__(self, config: Config, tell: Tell) -> None:
        identity = identity_from(config)
        assert identity is not None, "there are voters"
        check_secret(identity.secret)  # before there is a folder
        self._me, self._tell = config.broker_id, tell
        self.certificate = certificates_of(config.cluster, broker=config.broker_id, by_date=False)
        if self.certificate is not None:
            contexts = self.certificate.contexts
            needs_name, revocations = self.certificate.needs_name, contexts.revocations
            plain = {"takes_plain": contexts.takes_plain, "dials": contexts.dials}
            tls = RaftTls(
                contexts.server, contexts.client, needs_name, revocations, **plain, tell=partial(tell, "raft")
            )
            identity = replace(identity, tls=tls)
        self.identity = identity
        self.cluster_id: str | None = identity.cluster_id
        self.secret, self.voters = identity.secret, len(identity.named)

    def check_folder(self, disk: FixedDisk, folder: str) -> None:
        """As `Others.check_folder`."""
        if disk.exists(f"{folder}/{CATALOG_FILE}"):
            raise WrongFolder(
                f"data folder {folder} is of a broker that is alone, and cannot join a cluster: take another",
                path=folder,
            )

    def plane(self, home: Home) -> Plane:
        """As `Others.plane`."""
        return Plane(
            self.identity,
            disk=home.disk,
            folder=home.folder,
            halt=home.halt,
            session_changed=home.session_changed,
            controller_changed=home.controller_changed,
            tell=home.waits_for,
        )

    def link(self, plane: MetadataPlane, home: Home, pool: SyncExecutor, settings: ReplicationConfig) -> ReplicaLink:
        """As `Others.link`."""
        return ReplicaLink(
            me=self._me,
            process=plane.process,
            cluster_id=home.cluster_id,
            secret=(self.secret or "").encode(),
            service=plane.service,
            report=plane.report_leader,
            sync_pool=pool,
            settings=settings,
            tls=LinkTls.of(self.certificate, partial(self._tell, "replica")),
        )

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
        return Companions(self._me, plane.service, find)
