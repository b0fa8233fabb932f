"""Goal: who does not belong to a cluster is refused, with a reason that names what to mend; the cluster goes on.

Method: three real brokers with a secret. Beside them processes of the real command line with one thing wrong each, all
at once, and bytes of strangers to the ports of brokers. Their answer shows in their exit code, stderr and /readyz; the
counts of the cluster show in /metrics.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from broker.api.errors import LiftlogError
from broker.client import connect
from broker.link.codec import LinkFrame
from broker.link.handshake import NONCE_BYTES, Caller, Peer, Refused, key_of
from broker.link.server import PURPOSE
from broker.raft.node import form
from broker.storage.disk import OsDisk
from tests.support.clusters import RealCluster, store, three
from tests.support.doors import RawCall
from tests.support.processes import BrokerProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECRET = "known to these three only"


@dataclass(frozen=True)
class Stranger:
    """A broker with one thing wrong. `ends`: with this exit code; None: it waits, and `text` is at /readyz."""

    env: dict[str, str]
    text: str
    ends: int | None = 1
    broker: str = "d"


STRANGERS = {
    "another secret": Stranger(
        {"LIFTLOG_RAFT_SECRET": "known to nobody at all"}, "is its raft.secret another one?", ends=None
    ),
    "no secret": Stranger({"LIFTLOG_RAFT_SECRET": ""}, "a cluster needs a secret, on loopback too"),
    "another cluster": Stranger({"LIFTLOG_CLUSTER_ID": "others"}, "this is cluster tests, not others (cluster.id)"),
    "a folder of another group": Stranger({}, "its folder is of the group tests/other"),
    "a folder of another cluster": Stranger({}, "is of cluster others, not tests (cluster.id)"),
    "a folder of a broker alone": Stranger({}, "is of a broker that is alone, and cannot join a cluster"),
    "a name that is taken": Stranger({}, "broker a lives at", broker="a"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("three"), LIFTLOG_RAFT_SECRET=SECRET) as made:
        yield made


@pytest.fixture(scope="module")
def strangers(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    """All of them, started."""
    made: dict[str, BrokerProcess] = {}
    with contextlib.ExitStack() as stack:
        for name, stranger in STRANGERS.items():
            process = cluster.another(tmp_path_factory.mktemp("stranger"), stranger.broker, **stranger.env)
            prepare(name, process)
            process.start(wait=False)
            stack.callback(process.stop)
            made[name] = process
        yield made


def prepare(name: str, process: BrokerProcess) -> None:
    """Its folder."""
    data = process.folder / "data"
    group = {"a folder of another group": "tests/other", "a folder of another cluster": "others/other"}.get(name)
    if group is not None:
        data.mkdir()
        me = f"d.0123456789abcdef@127.0.0.1:{process.port + 2}"
        form(OsDisk(), str(data / "raft.log"), node_id=me, voters=(me,), cluster_id=group).close()
    if name == "a folder of a broker alone":
        data.mkdir()
        (data / "catalog.log").touch()


@pytest.mark.parametrize("name", STRANGERS)
def test_a_broker_that_does_not_belong_is_told_why(strangers: dict[str, BrokerProcess], name: str) -> None:
    process, wanted = strangers[name], STRANGERS[name]
    assert process.process is not None
    popen = process.process.popen
    if wanted.ends is None:
        eventually(lambda: wanted.text in waits_for(process), what=wanted.text)
        assert popen.poll() is None
        assert process.stop() == 0, "it can be stopped while it waits"
        return
    eventually(lambda: popen.poll() is not None, what=f"it ends: {process.output()[-2000:]}")
    said = process.output().strip().splitlines()[-1]
    assert (popen.returncode, wanted.text in said, "Traceback" in process.output()) == (wanted.ends, True, False), said
    assert said.startswith("error["), said


def waits_for(process: BrokerProcess) -> str:
    """The body of /readyz."""
    try:
        process.get("/readyz")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""
    raise AssertionError("it is ready")


# -- bytes -----------------------------------------------------------------------------------------------------


def goes_on(cluster: RealCluster, stream: str) -> None:
    """It still stores records, three times."""
    with cluster.client(deadline_s=60.0) as client:
        if stream not in [each.name for each in client.streams()]:
            client.create_stream(stream, replication_factor=3)
        store(client, stream, 0, [{"value": b"x"}])
    cluster.in_sync(stream, 3)


def counted(process: BrokerProcess, name: str, more_than: float = 0.0) -> None:
    eventually(lambda: process.metric(name) > more_than, what=f"{name} over {more_than}")


def test_bytes_that_nobody_understands_are_cut_and_counted(cluster: RealCluster) -> None:
    victim = cluster.brokers[cluster.controller()]
    before = victim.metric("liftlog_raft_refused_total")
    noises = (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 4096, b"\x10\x00\x00\x00" + bytes(16))
    for port in (victim.port + 1, victim.port + 2):
        for noise in noises:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
                sock.sendall(noise)
                with contextlib.suppress(ConnectionError):
                    while sock.recv(1 << 16):  # until it is cut
                        pass
    counted(victim, "liftlog_raft_refused_total", before + len(noises) - 1)
    goes_on(cluster, "noise")


def dialled(process: BrokerProcess) -> RawCall:
    return RawCall(socket.create_connection(("127.0.0.1", process.port + 1), 60), PURPOSE)


def noise(process: BrokerProcess) -> str:
    """A first message that is no greeting. How it ends."""
    call = dialled(process)
    call.say(LinkFrame(os.urandom(400), 0))
    return call.end()[1]


class Greeting:
    """Greets as a broker does, and then says `after`."""

    def __init__(
        self, me: Peer, to: str, secret: str, cluster_id: str = "tests", after: LinkFrame | None = None
    ) -> None:
        self._caller = Caller(me, cluster_id, to, key_of(secret.encode()), os.urandom(NONCE_BYTES))
        self._after = after

    def talk(self, process: BrokerProcess) -> str:
        """How it ends."""
        call = dialled(process)
        try:
            call.say(self._caller.hello())
            call.say(self._caller.challenge(call.next()))
            self._caller.welcome(call.next())
        except Refused as error:
            call.close()
            return error.text
        if self._after is not None:
            call.say(self._after)
        return call.end()[1]


def test_calls_of_the_replica_port_are_refused_by_name(cluster: RealCluster) -> None:
    victim = cluster.brokers["a"]
    calls = {
        "bad_greeting": noise,
        "unknown_broker": Greeting(Peer("nobody", 1), "a", SECRET).talk,
        "registration": Greeting(Peer("b", 10_000), "a", SECRET).talk,
        "cluster": Greeting(Peer("b", 1), "a", SECRET, cluster_id="others").talk,
        "address": Greeting(Peer("b", 1), "c", SECRET).talk,
        "own_name": Greeting(Peer("a", 1), "a", SECRET).talk,
    }
    for reason, call in calls.items():
        text = call(victim)
        assert reason in text, (reason, text)
        counted(victim, f'liftlog_replica_refused_total{{reason="{reason}"}}')
    goes_on(cluster, "calls")


def test_who_is_let_in_and_talks_nonsense_is_cut(cluster: RealCluster) -> None:
    """Somebody with the secret, in the name of a broker that is there."""
    victim = cluster.brokers["a"]
    ends = []
    for registration in range(1, 40):
        text = Greeting(Peer("b", registration), "a", SECRET, after=LinkFrame(b"\xff" * 100, 0)).talk(victim)
        ends.append(text)
        if "registered as" not in text:
            break
    assert "bad_frame" in ends[-1], ends
    counted(victim, 'liftlog_replica_refused_total{reason="bad_frame"}')
    goes_on(cluster, "nonsense")


# -- commands --------------------------------------------------------------------------------------------------


def test_more_replicas_than_brokers_are_refused_on_the_command_line(cluster: RealCluster) -> None:
    done = liftlog(cluster, "stream", "create", "many", "--replication-factor", "4")
    assert done.returncode == 3, done.stderr
    assert "error[not_ready]: 4 replicas need as many" in done.stderr
    done = liftlog(cluster, "stream", "create", "many", "--replication-factor", "2", "--min-insync-replicas", "3")
    assert done.returncode == 1, done.stderr
    assert "min_insync_replicas" in done.stderr
    assert "many" not in liftlog(cluster, "stream", "list").stdout


def liftlog(cluster: RealCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LIFTLOG_BROKERS": ",".join(cluster.addresses), "LIFTLOG_RETRY_S": "0"}
    command = [sys.executable, "-m", "broker.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)


# -- logs ------------------------------------------------------------------------------------------------------


def test_a_longer_log_of_an_older_epoch_is_cut(cluster: RealCluster) -> None:
    """A leader alone takes records that only it has (`acks = leader`), dies, and comes back as a follower."""
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("older", replication_factor=3, acks="leader")
        cluster.in_sync("older", 3)
        store(client, "older", 0, [{"value": b"before"}])
    leader = cluster.leader("older")
    process = cluster.brokers[leader]
    eventually(lambda: cluster.state("older")["high_watermark"] == 1, what="all have it")
    others = [each.pid for broker, each in cluster.brokers.items() if broker != leader]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    alone = 0
    try:
        with connect(process.address, deadline_s=0.0, timeout_s=1.0) as client, contextlib.suppress(LiftlogError):
            while alone < 10_000:
                client.append("older", 0, [{"value": b"alone"}], acks="leader")
                alone += 1
        process.kill9()
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)
    assert alone > 10
    assert cluster.leader("older") != leader
    with cluster.client(deadline_s=60.0) as client:
        store(client, "older", 0, [{"value": b"after"}])
    process.start(wait=False)
    cluster.wait_ready(leader)
    cluster.in_sync("older", 3)
    with cluster.client(deadline_s=60.0) as client:
        values = [value.decode() for value in client.read("older").to_table().column("value").to_pylist()]
    assert (values[0], values[-1], set(values[1:-1]) <= {"alone"}) == ("before", "after", True)
    assert len(values) < 1 + alone, "some had been on their way when the others stood still"
    assert "replica.truncates" in process.output()
    [folder] = (process.folder / "data" / "streams" / "older").glob("*/0")
    dumped = liftlog(cluster, "log", "dump", str(folder), "--records", "--json").stdout
    assert [json.loads(line)["value"] for line in dumped.splitlines()] == values
