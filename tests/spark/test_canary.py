"""Goal: a token in a file is in nothing that Spark and the brokers show, keep, log or run with.

Method: a Spark cluster and three brokers that judge each call, whose logs say all they can. A job works with a token
that is worth nothing else, is refused here and there, and has it revoked under a query. Then the token, its secret part
and those of the admin are sought in each place. In each there is something by which it is known to be looked at.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.api.principals import Token, new_token
from broker.client.client import Client
from broker.metadata.cluster import AUDITED
from tests.spark.canary_app import SIBLING, SOURCE, TARGET, TOKEN_FILE
from tests.spark.kills import ROOT
from tests.spark.stalls import descendants
from tests.spark.standalone import Standalone
from tests.spark.streams import Stream
from tests.support.clusters import RealCluster
from tests.support.processes import eventually

GRANTS = (
    ("stream:read", SOURCE),
    ("stream:read", TARGET),
    ("stream:append", TARGET),
    ("sink:write", "*"),
    ("consumer:read", "job*"),
    ("consumer:write", "job*"),
)
REST = ("environment", "sql?details=true&planDescription=true&length=1000", "jobs", "stages?details=true", "executors")
PAGES = ("environment/", "SQL/", "StreamingQuery/", "jobs/", "stages/", "executors/")

SEEN = {
    "processes of Spark": (
        "SparkSubmit",
        "CoarseGrainedExecutorBackend",
        "pyspark.daemon",
        "python_streaming",
        "canary_app",
    ),
    "processes of brokers": ("broker.cli.main", "LIFTLOG_AUTH_ADMIN_TOKEN_FILE"),
    "REST environment": ("spark.eventLog.dir",),
    "REST sql": ("BatchScan liftlog", "FAILED"),
    "REST jobs": ("FAILED",),
    "REST stages": ("LIFTLOG_UNAUTHENTICATED", "LIFTLOG_UNAUTHORIZED"),
    "REST executors": ("totalTasks",),
    "pages": ("LIFTLOG_UNAUTHENTICATED", "MicroBatchScan"),
    "plans": ("RelationV2", "BatchScan liftlog", "StreamingDataSourceV2"),
    "log of the driver": ("LIFTLOG_UNAUTHENTICATED", "INFO", "DEBUG"),
    "log of its Python": ("LIFTLOG_UNAUTHENTICATED", "tokenFile"),
    "errors of the driver": ("sink.abort",),
    "logs of executors": ("LIFTLOG_UNAUTHENTICATED", "Running task"),
    "logs of master and workers": ("Registering app",),
    "event log": ("SparkListenerSQLExecutionStart", "LIFTLOG_UNAUTHENTICATED", TOKEN_FILE),
    "checkpoints": ("batchTimestampMs",),
    "tracebacks": ("LIFTLOG_UNAUTHENTICATED", "LIFTLOG_UNAUTHORIZED", "self = <__main__.Job object"),
}
"""By what each place is known to be looked at."""

Places = dict[str, bytes]
"""What was found in each place."""


def private(file: Path, token: Token) -> Path:
    file.write_text(token.text)
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def masters() -> Token:
    """The admin's token, which the brokers have from a file."""
    return new_token()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, masters: Token) -> Iterator[RealCluster]:
    folder = tmp_path_factory.mktemp("guarded")
    file = str(private(folder / "admin.token", masters))
    auth: dict[str, Any] = {"LIFTLOG_AUTH_MODE": "enforce", "LIFTLOG_AUTH_ADMIN_TOKEN_FILE": file}
    made = RealCluster(folder, None, LIFTLOG_LOG_LEVEL="debug", **auth)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def admin(guarded: RealCluster) -> Iterator[Client]:
    with guarded.client(deadline_s=60.0) as client:
        eventually(lambda: client.cluster().feature_level >= AUDITED, what="the feature level")
        yield client


def run_with(pids: Iterable[int]) -> bytes:
    """The arguments and the environment of processes."""
    found = []
    for pid in pids:
        for name in ("cmdline", "environ"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                found.append(Path(f"/proc/{pid}/{name}").read_bytes())
    return b"\n".join(found)


def in_files(folder: Path, pattern: str) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob(pattern)) if path.is_file())


def shown_by(ui: str, application: str) -> Places:
    """All that Spark's UI tells of a job, as JSON and as pages."""

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"{ui}/{path}", timeout=60) as answer:
            body: bytes = answer.read()
        return body

    rest = {f"REST {path.partition('?')[0]}": get(f"api/v1/applications/{application}/{path}") for path in REST}
    queries = [f"SQL/execution/?id={each['id']}" for each in json.loads(rest["REST sql"])]
    page = get("StreamingQuery/").decode()
    queries += [f"StreamingQuery/{each}" for each in set(re.findall(r"statistics/?\?id=[0-9a-f-]+", page))]
    assert len(queries) > 3
    return {**rest, "pages": b"\n".join(get(path) for path in (*PAGES, *queries))}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
@pytest.mark.timeout(900)
def test_a_token_is_in_nothing_that_is_shown_kept_or_logged(
    guarded: RealCluster, admin: Client, masters: Token, tmp_path: Path
) -> None:
    canary = admin.create_token("svc:canary", ttl_s=3600)
    for action, name in GRANTS:
        admin.grant("svc:canary", action, name)
    private(tmp_path / TOKEN_FILE, canary)
    source, _, sibling = (Stream.create(admin, name, replication_factor=3) for name in (SOURCE, TARGET, SIBLING))
    source.append(50)
    sibling.append(5)

    with Standalone(tmp_path / "cluster") as cluster:
        command = [sys.executable, "-m", "tests.spark.canary_app", source.address, str(tmp_path), cluster.url]
        with (tmp_path / "output").open("wb") as out, (tmp_path / "log").open("wb") as log:
            job = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        try:
            until(job, tmp_path / "running")
            pids = [
                job.pid,
                *descendants(job.pid),
                *cluster.pids,
                *(d for pid in cluster.pids for d in descendants(pid)),
            ]
            found: Places = {
                "processes of Spark": run_with(pids),
                "processes of brokers": run_with(broker.pid for broker in guarded.brokers.values()),
            }
            admin.revoke_token(canary.id)
            source.append(10)
            (tmp_path / "revoked").touch()
            until(job, tmp_path / "refused")
            told = json.loads((tmp_path / "running").read_text())
            found |= shown_by(told["ui"], told["application"])
            (tmp_path / "seen").touch()
            assert job.wait(120) == 0, (tmp_path / "log").read_text()[-4000:]
        finally:
            job.kill()
            job.wait()

    found |= {
        "plans": in_files(tmp_path, "output"),
        "log of the driver": in_files(tmp_path, "driver.log"),
        "log of its Python": in_files(tmp_path, "python.log"),
        "errors of the driver": in_files(tmp_path, "log"),
        "logs of executors": in_files(tmp_path / "cluster", "127.*/app-*/*/std*"),
        "logs of master and workers": in_files(tmp_path / "cluster", "*.log"),
        "event log": in_files(tmp_path, "events/**/*"),
        "checkpoints": in_files(tmp_path, "checkpoints/**/*"),
        "tracebacks": in_files(tmp_path, "tracebacks"),
        **{f"log of broker {name}": broker.output().encode() for name, broker in guarded.brokers.items()},
    }
    for place, seen in SEEN.items():
        assert [each for each in seen if each.encode() not in found[place]] == [], place
    assert found.keys() - SEEN.keys() == {"log of broker a", "log of broker b", "log of broker c"}
    assert all(b"DEBUG" in found[f"log of broker {name}"] for name in guarded.brokers)
    assert any(f"token {canary.id} was revoked".encode() in text for text in found.values())
    for token in (canary, masters):
        secret = token.text.rpartition("_")[2].encode()
        assert [place for place, text in found.items() if secret in text or token.text.encode() in text] == []


def until(job: subprocess.Popen[bytes], file: Path) -> None:
    """Wait for a file of the job; AssertionError: the job has ended."""

    def is_there() -> bool:
        assert job.poll() is None, (file.parent / "log").read_text()[-4000:]
        return file.exists()

    eventually(is_there, timeout_s=400, what=str(file))
