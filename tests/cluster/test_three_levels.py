"""Goal: beside a broker of an earlier release what it does not know is refused by name, or left out, and nobody is kept
from anything else. Once it is renewed all is there, also what could not be recorded meanwhile.

Method: three real brokers with `enforce`, one of which says that it knows levels up to 5 or 6. Then it is started as
this release.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.api.errors import NotReady, Unauthorized
from broker.api.principals import new_token
from broker.client import Client, connect
from broker.metadata.catalog import MODES_SINCE
from broker.metadata.cluster import AUDITED, FEATURE_LEVEL
from tests.support.clusters import RealCluster
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

AUDIT = "__audit"
TOKENS = 5


def guarded(folder: Path, level: int) -> RealCluster:
    """`a` and `b` of this release, `c` of an earlier one. All enforce."""
    admin = folder / "admin.token"
    admin.write_text(new_token().text)
    admin.chmod(0o600)
    settings = {"LIFTLOG_AUTH_MODE": "enforce", "LIFTLOG_AUTH_ADMIN_TOKEN_FILE": str(admin)}

    def command(broker: str) -> tuple[str, ...]:
        return ("tests.support.earlier_broker", str(level)) if broker == "c" else ("broker.cli.main", "broker")

    return RealCluster(folder, None, command=command, **settings)


def renew(cluster: RealCluster) -> None:
    """Start `c` as this release."""
    cluster.brokers["c"].stop()
    cluster.brokers["c"]._command = cluster.brokers["a"]._command
    cluster.brokers["c"].start(wait=False)
    cluster.wait_ready("c")


def as_ana(cluster: RealCluster, admin: Client, folder: Path) -> Path:
    """A token of a user who may begin queue groups."""
    file = folder / "ana.token"
    file.write_text(admin.create_token("user:ana", ttl_s=3600.0).text)
    file.chmod(0o600)
    for action in ("stream:create", "subject:capture"):
        admin.grant("user:ana", action, "*")
    return file


def records(admin: Client) -> list[tuple[str, str, str]]:
    """Operation, thing and result of what `__audit` has."""
    found = [json.loads(value) for value in admin.read(AUDIT).to_table()["value"].to_pylist()]
    return [(each["operation"], each["resource"].get("stream", ""), each["result"]) for each in found]


@pytest.mark.parametrize("level", [TOKENS, MODES_SINCE])
def test_what_an_earlier_broker_does_not_know_waits_for_its_end(tmp_path: Path, level: int) -> None:
    cluster = guarded(tmp_path, level)
    try:
        cluster.start()
        with cluster.client(deadline_s=60.0) as admin:
            eventually(lambda: admin.cluster().feature_level == level, what="the level of all three")
            ana = as_ana(cluster, admin, tmp_path)
            for broker in cluster.brokers:
                with connect(cluster.brokers[broker].address, token_file=str(ana), deadline_s=60.0) as client:
                    client.create_stream(f"s-{broker}", subject=f"{broker}.>", replication_factor=3)
                    with pytest.raises(Unauthorized):
                        client.pause(f"s-{broker}")
            admin.pause("s-a")
            assert AUDIT not in {each.name for each in admin.streams(internal=True)}
            assert "audit.late" in "".join(broker.output() for broker in cluster.brokers.values())
        with cluster.client(deadline_s=1.0) as hasty:
            if level < MODES_SINCE:
                with pytest.raises(NotReady, match=f"feature level {MODES_SINCE}, the cluster has {level}"):
                    hasty.require_auth()
            else:
                hasty.require_auth()
        renew(cluster)
        with cluster.client(deadline_s=60.0) as admin:
            eventually(lambda: admin.cluster().feature_level == FEATURE_LEVEL >= AUDITED, what="the level to rise")
            modes = {"enforce"}
            eventually(lambda: {each.auth_mode for each in admin.cluster().brokers} == modes, what="what each says")
            admin.require_auth()
            assert admin.cluster().auth_required
            eventually(lambda: AUDIT in {each.name for each in admin.streams(internal=True)}, what=AUDIT)
            admin.resume("s-a")
            eventually(lambda: ("resume_stream", "s-a", "done") in records(admin), what="its record")
            eventually(lambda: ("pause_stream", "s-a", "done") in records(admin), what="that of before")
    finally:
        cluster.stop()
