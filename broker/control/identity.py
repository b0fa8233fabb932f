"""The identity of this broker in the group, and the brokers that it knows: from its configuration."""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from dataclasses import dataclass
from typing import Final

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.api.http import host_port
from broker.api.tls_files import why_not_private
from broker.config.configuration import Config
from broker.raft.secured import RaftTls

SECRET_BYTES_LEAST: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """See the module.

    Attributes:
        address: host:port at which the others reach its Raft port. bind: Where it listens.
        named: The first voters as configured, in their order: (broker id, host:port). The same on every broker.
        secret: The cluster's; None: it was forgotten (`wire.W1`).
        tls: What its Raft port speaks; None: plain text.
    """

    broker_id: str
    cluster_id: str
    address: str
    bind: str
    named: tuple[tuple[str, str], ...]
    secret: str | None = None
    tls: RaftTls | None = None

    def __repr__(self) -> str:
        return f"Identity({self.broker_id} of {self.cluster_id} at {self.address})"

    @property
    def is_named(self) -> bool:
        """Whether it is one of the first voters."""
        return any(broker == self.broker_id for broker, _ in self.named)

    @property
    def others(self) -> dict[str, str]:
        """The other ones that are named: address -> broker id."""
        return {address: broker for broker, address in self.named if broker != self.broker_id}

    def new_id(self) -> str:
        """An id in the group that nobody has had."""
        return f"{self.broker_id}.{secrets.token_hex(8)}@{self.address}"


def identity_from(config: Config) -> Identity | None:
    """The identity of a broker that is to be one of a cluster's; None: it is alone, and opens no Raft port.

    Raises:
        InvalidSetting: settings that do not fit together. InvalidRequest: the file of the secret cannot be read.
    """
    cluster, raft = config.cluster, config.raft
    if not cluster.voters or cluster.id is None:
        return None
    named = tuple((name, at) for name, _, at in (voter.partition("@") for voter in cluster.voters))
    own = dict(named).get(config.broker_id)
    if own is not None and raft.advertised not in (None, own):
        raise InvalidSetting(
            f"raft.advertised = {raft.advertised}, but cluster.voters names {config.broker_id} at {own}",
            key="raft.advertised",
            value=raft.advertised,
        )
    if raft.port == 0:
        raise InvalidSetting("raft.port = 0: the others have to know the port", key="raft.port", value=0)
    bind = host_port(raft.host, raft.port)
    address = own or raft.advertised or bind
    if address.rpartition(":")[0].strip("[]") in ("0.0.0.0", "::"):
        raise InvalidSetting(
            f"the others cannot reach {address}: set raft.advertised, or name this broker in cluster.voters",
            key="raft.advertised",
            value=address,
        )
    return Identity(
        broker_id=config.broker_id,
        cluster_id=cluster.id,
        address=address,
        bind=bind,
        named=named,
        secret=_secret_of(config),
    )


def _secret_of(config: Config) -> str | None:
    raft = config.raft
    if raft.secret_file is None:
        return None if raft.secret is None else raft.secret.value
    try:
        with open(raft.secret_file, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            if open_to := why_not_private(mode, found.st_uid, os.geteuid()):
                raise InvalidRequest(
                    f"raft.secret_file: {raft.secret_file} {open_to}: chmod 600 {shlex.quote(raft.secret_file)}",
                    key="raft.secret_file",
                    value=f"{mode:04o}",
                )
            return file.read().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise InvalidRequest(
            f"raft.secret_file: {raft.secret_file} cannot be read: {why}", key="raft.secret_file"
        ) from error


def check_secret(secret: str | None) -> None:
    """`wire.W1`. Raises InvalidRequest: there is no secret, or it is too short."""
    if secret is None:
        raise InvalidRequest(
            "a cluster needs a secret, on loopback too: whoever reaches a Raft port could take part in the cluster and"
            " change its catalog. Run `liftlog secret new FILE` once, copy FILE to every broker, and set"
            " raft.secret_file = FILE (or LIFTLOG_RAFT_SECRET_FILE) on each. Brokers that ran without one are all"
            " stopped first: one with a secret and one without do not hear each other",
            key="raft.secret_file",
        )
    if len(secret.encode()) < SECRET_BYTES_LEAST:
        raise InvalidRequest(
            f"raft.secret has less than {SECRET_BYTES_LEAST} bytes; `liftlog secret new FILE` makes one",
            key="raft.secret",
        )
