"""Goal: a follower far behind gets what is committed in bulk, whatever becomes of the socket, the leader and its files.

Method: as test_link.py, with a relay before the socket for bulk that stops, cuts and changes what it forwards.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api.batch import decode_batch
from broker.link import answering, bulk, bulk_reader, door
from broker.link.bulk import ASKS, HOLDS, TRANSFERS_MAX, Transfer
from broker.link.bulk_reader import BulkReader
from broker.link.codec import TICKET_BYTES, Answered, Bulk
from broker.link.door import STRANGERS_MAX
from broker.link.tls import LinkTls
from broker.metadata.partition import Place
from broker.replication.messages import Fenced
from broker.storage.disk import OsDisk
from broker.storage.read import ReadPlan
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.segments.segment import Segment
from tests.support.certificates import Authority
from tests.support.doors import BulkDoor, bulk_door
from tests.support.linked import Linked, Relay, linked
from tests.support.processes import eventually
from tests.unit.link.test_faults import BIG, filled

pytestmark = [pytest.mark.slow, pytest.mark.long]
HALF = 200_000
"""So many bytes are about half of all that `filled` stores."""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Linked]:
    """A few records are much."""
    monkeypatch.setattr(answering, "BULK_BYTES_LEAST", 1 << 16)
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        yield cluster


def behind(cluster: Linked, **settings: object) -> tuple[Place, str, Relay]:
    """A partition, who is far behind, and does not run, and the relay through which it fetches in bulk."""
    [at] = cluster.create(min_insync=1, **settings)
    away = filled(cluster, at)
    return at, away, cluster.bulk_relays[cluster.leader(at).me]


def caught_up(cluster: Linked, at: Place) -> None:
    cluster.in_sync(at)
    cluster.same(at)


def test_who_is_far_behind_gets_it_in_bulk_and_the_rest_on_the_stream(two: Linked) -> None:
    at, away, _ = behind(two)
    two.start(away)
    caught_up(two, at)
    counts = two.nodes[away].link.counts
    assert counts["bulk"] >= 1
    assert two.nodes[away].link.bulk_bytes > HALF
    assert not counts["bulk_failed"] + counts["bad_batches"]
    two.stored(at, BIG)
    two.same(at)


def test_several_segments_go_at_once(two: Linked) -> None:
    at, away, _ = behind(two, segment_bytes=1 << 16)
    leader = two.leader(at).log(at)
    assert leader.state.segment_count > 3
    two.start(away)
    caught_up(two, at)
    assert two.nodes[away].link.counts["bulk"] == 1


@pytest.mark.parametrize("place", [0, 1, HALF])
def test_what_is_cut_half_way_comes_on_the_stream(two: Linked, place: int) -> None:
    """Nothing of it is kept."""
    at, away, relay = behind(two)
    relay.cut_after = place
    two.start(away)
    caught_up(two, at)
    counts = two.nodes[away].link.counts
    assert counts["bulk_failed"]
    assert not counts["bulk"]


def test_where_nobody_answers_for_bulk_all_comes_on_the_stream(two: Linked) -> None:
    at, away, relay = behind(two)
    relay.close()
    two.start(away)
    caught_up(two, at)
    assert two.nodes[away].link.counts["bulk_failed"]


def test_bulk_is_tried_again_after_a_while(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "AVOIDED_S", 0.0)
    at, away, relay = behind(two)
    relay.cut_after = HALF
    two.start(away)
    counts = two.nodes[away].link.counts
    eventually(lambda: counts["bulk_failed"], what="it to be cut")
    caught_up(two, at)
    relay.cut_after = None
    two.stop(away)
    two.fail(away)
    for _ in range(20):
        two.stored(at, BIG)
    two.start(away)
    caught_up(two, at)
    assert two.nodes[away].link.counts["bulk"]


@pytest.mark.parametrize("place", [300, 5_000, HALF])
def test_bytes_that_were_changed_on_their_way_are_refused_and_named(
    two: Linked, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    at, away, relay = behind(two)
    relay.flip_at = place
    with caplog.at_level(logging.WARNING):
        two.start(away)
        caught_up(two, at)
    counts = two.nodes[away].link.counts
    assert relay.flip_at is None
    assert counts["bad_batches"] == 1
    assert counts["bulk_failed"] == 1
    assert "replica.refuses partition=s/0" in caplog.text
    assert "the bytes are not what was stored" in caplog.text


def test_a_transfer_that_hangs_holds_up_nobody_and_is_left(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of the same pair of brokers are answered meanwhile."""
    monkeypatch.setattr(bulk_reader, "STALLED_S", 3_600.0)
    [other] = two.create("other", min_insync=1)
    at, away, relay = behind(two)
    relay.pause_after = HALF
    two.start(away)
    eventually(lambda: relay.paused, what="bytes half-way")
    two.in_sync(other)
    for number in range(5):
        two.stored(other, b"%d" % number)
    two.same(other)
    assert two.nodes[away].log(at).state.log_end_offset == 0
    relay.cut()
    caught_up(two, at)


def test_a_leader_that_sends_nothing_is_left(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "STALLED_S", 0.2)
    at, away, relay = behind(two)
    relay.pause_after = HALF
    two.start(away)
    caught_up(two, at)
    assert relay.paused
    assert two.nodes[away].link.counts["bulk_failed"] == 1


def test_another_leadership_half_way_makes_nothing_of_it_count(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads in another epoch when the last byte comes: what it had said holds no more."""
    monkeypatch.setattr(bulk_reader, "STALLED_S", 3_600.0)
    at, away, relay = behind(two)
    relay.pause_after = HALF
    two.start(away)
    eventually(lambda: relay.paused, what="bytes half-way")
    leader = two.leader(at)
    epoch = two.service.state(at).leader_epoch
    registration = two.service.catalog.brokers[leader.me].registration
    two.service.apply(kind="fail_broker", broker_id=leader.me, registration=registration)
    eventually(lambda: leader.partition(at).leadership()[0] != epoch, what="the leadership to be over")
    relay.paused = False
    counts = two.nodes[away].link.counts
    eventually(lambda: counts["bulk_failed"], what="it to be told so")
    assert not counts["bulk"]
    assert two.nodes[away].log(at).state.log_end_offset == 0


def test_a_follower_that_ends_half_way_begins_anew(two: Linked) -> None:
    at, away, relay = behind(two)
    relay.pause_after = HALF
    two.start(away)
    eventually(lambda: relay.paused, what="bytes half-way")
    two.stop(away, kill=True)
    two.fail(away)
    relay.paused = False
    two.start(away)
    caught_up(two, at)


def test_a_trim_half_way_changes_nothing_of_what_comes(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are gone from the folder, and are sent to their end."""
    monkeypatch.setattr(bulk_reader, "STALLED_S", 3_600.0)
    at, away, relay = behind(two, segment_bytes=1 << 16)
    relay.pause_after = HALF
    two.start(away)
    eventually(lambda: relay.paused, what="bytes half-way")
    leader = two.leader(at).log(at)
    leader.trim(leader.state.high_watermark - 1)
    assert leader.state.segment_count == 1
    relay.paused = False
    eventually(lambda: two.nodes[away].link.counts["bulk"], what="all of it to come")
    follower = two.nodes[away].log(at)
    eventually(lambda: follower.state.log_start_offset == leader.state.log_start_offset, what="it to follow the trim")
    caught_up(two, at)
    assert not two.nodes[away].link.counts["bulk_failed"]


def test_segments_that_are_joined_half_way_come_as_they_were(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "STALLED_S", 3_600.0)
    at, away, relay = behind(two, segment_bytes=1 << 16)
    leader = two.leader(at).log(at)
    before = [bytes(message) for message in leader.reader.batches(0)]
    relay.pause_after = HALF
    two.start(away)
    eventually(lambda: relay.paused, what="bytes half-way")
    settings = CoalescingSettings(min_batch_bytes=1 << 30, min_age_ms=0)
    report = coalesce(leader, settings, {}, now_us=1 << 60, throttle=lambda _: None)
    assert report is not None
    assert not report.failed
    assert [bytes(message) for message in leader.reader.batches(0)] != before
    relay.paused = False
    eventually(lambda: two.nodes[away].link.counts["bulk"], what="all of it to come")
    two.in_sync(at)
    follower = two.nodes[away].log(at)
    came = [bytes(message) for message in follower.reader.batches(0)]
    assert came[0] == before[0], "of the file that was opened"
    rows = [pa.Table.from_batches(map(decode_batch, log.reader.batches(0))) for log in (leader, follower)]
    assert rows[0].equals(rows[1])
    assert not two.nodes[away].link.counts["bulk_failed"]


def test_a_stream_that_is_deleted_half_way_is_gone_at_once(two: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "STALLED_S", 3_600.0)
    at, away, relay = behind(two)
    relay.pause_after = HALF
    two.start(away)
    eventually(lambda: relay.paused, what="bytes half-way")
    two.service.apply(kind="delete_stream", name="s", incarnation=at[0])
    eventually(lambda: all(at not in node.replicas._replicas for node in two.nodes.values()), what="it to be gone")
    [other] = two.create("other")
    relay.paused = False
    two.stored(other, b"x")
    two.same(other)


# -- the socket --------------------------------------------------------------------------------------------------


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture(params=["plain", "tls"])
def server(refused: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BulkDoor]:
    tls = LinkTls.of(Authority(tmp_path / "ca").cluster_certificates()) if request.param == "tls" else None
    with bulk_door(lambda reason, who, text: refused.append(reason), tls) as made:
        yield made


class Plan(ReadPlan):
    """It reads one file. `is_closed`: once it is."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "file").write_bytes(BIG * 100)
    made = Plan(0)
    file = made.own(OsDisk().open(f"{tmp_path}/file", readonly=True))
    made.add(Segment(str(tmp_path), 0), file, 0, 100, 1_000_000, 1)
    return made


def dialled(server: BulkDoor, ticket: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.told_port), 60)
    if server.tls is not None:
        made = server.tls.client().wrap_socket(made, server_hostname="127.0.0.1")
    made.sendall(bulk.PURPOSE + ticket)
    return made


def taken(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


@pytest.mark.parametrize("does_hold", [True, False])
def test_bytes_are_those_of_the_range_and_hold_if_it_is_led_still_once_all_have_come(
    server: BulkDoor, plan: Plan, does_hold: bool
) -> None:
    holds = True
    transfer = Transfer("b", plan, lambda: holds)
    with dialled(server, server.offer(transfer).ticket) as connection:
        assert taken(connection, 1_000_000) == (BIG * 100)[100:1_000_100]
        holds = does_hold
        connection.sendall(ASKS)
        assert connection.recv(1) == (HOLDS if does_hold else b"")
    eventually(lambda: plan.is_closed, what="the files to be closed")


def test_a_ticket_is_good_once(server: BulkDoor, plan: Plan, refused: list[str]) -> None:
    told = server.offer(Transfer("b", plan, lambda: True))
    with dialled(server, told.ticket) as first:
        assert len(taken(first, 10)) == 10
        with dialled(server, told.ticket) as second:
            assert second.recv(1) == b""
    eventually(lambda: plan.is_closed, what="the files to be closed")
    with dialled(server, told.ticket) as third:
        assert third.recv(1) == b""
    assert refused == ["ticket", "ticket"]


@pytest.mark.parametrize("says", [b"", b"short", bytes(32), random.Random(1).randbytes(1_000)])
def test_who_has_no_ticket_gets_nothing_and_is_counted(
    server: BulkDoor, plan: Plan, refused: list[str], says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 0.2)
    told = server.offer(Transfer("b", plan, lambda: True))
    with dialled(server, says) as connection, contextlib.suppress(ConnectionResetError):  # it had more to say
        assert connection.recv(1) == b""
    eventually(lambda: refused == ["ticket"], what="it to be counted")
    with dialled(server, told.ticket) as connection:
        assert len(taken(connection, told.byte_count)) == told.byte_count


def test_a_ticket_that_nobody_uses_is_taken_back(server: BulkDoor, plan: Plan, refused: list[str]) -> None:
    transfer = Transfer("b", plan, lambda: True)
    told = server.offer(transfer)
    server.check(transfer.begun_s + bulk.CLAIMED_WITHIN_S)
    assert not plan.is_closed
    server.check(transfer.begun_s + bulk.CLAIMED_WITHIN_S + 1)
    assert plan.is_closed
    with dialled(server, told.ticket) as connection:
        assert connection.recv(1) == b""
    assert refused == ["ticket"]


def test_what_is_under_way_is_ended_by_whoever_has_reason_to(server: BulkDoor, plan: Plan) -> None:
    """Its thread closes the files: nobody else may, as they are read."""
    transfer = Transfer("b", plan, lambda: True)
    with dialled(server, server.offer(transfer).ticket) as connection:
        assert len(taken(connection, 1_000_000)) == 1_000_000
        transfer.end()
        assert connection.recv(1) == b""
    eventually(lambda: plan.is_closed, what="the files to be closed")


def test_who_reads_nothing_is_cut(server: BulkDoor, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STALLED_S", 0.2)
    with dialled(server, server.offer(Transfer("b", plan, lambda: True)).ticket):
        eventually(lambda: plan.is_closed, what="the files to be closed")


def test_each_broker_has_a_few_transfers(server: BulkDoor, plan: Plan) -> None:
    transfers = [Transfer("b", plan, lambda: True) for _ in range(TRANSFERS_MAX)]
    for transfer in transfers:
        assert server.has_room("b")
        server.offer(transfer)
    assert not server.has_room("b")
    assert server.has_room("c")
    transfers[0].end()
    assert server.has_room("b")


def test_the_oldest_stranger_goes_first(
    server: BulkDoor, plan: Plan, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 3_600.0)
    held = []
    for count in range(1, STRANGERS_MAX + 1):
        held.append(dialled(server, b""))
        eventually(lambda: len(server.door._strangers) == count, what="it is counted")  # noqa: B023
    with dialled(server, server.offer(Transfer("b", plan, lambda: True)).ticket) as connection:
        assert taken(connection, 1_000) == BIG[100:1_100]
        assert held[0].recv(1) == b""
        assert len(server.door._strangers) == STRANGERS_MAX - 1
    for each in held:
        each.close()
    eventually(lambda: not server.door._visitors, what="the others to be let go")
    assert refused == ["crowded"] + ["ticket"] * (STRANGERS_MAX - 1), refused


def test_who_shows_a_ticket_takes_no_place_of_strangers(server: BulkDoor, plan: Plan, refused: list[str]) -> None:
    held = []
    for count in range(1, STRANGERS_MAX + 2):
        held.append(dialled(server, server.offer(Transfer("b", plan, lambda: True)).ticket))
        eventually(lambda: len(server.door._visitors) == count and not server.door._strangers, what="its ticket")  # noqa: B023
    with dialled(server, server.offer(Transfer("b", plan, lambda: True)).ticket) as connection:
        assert taken(connection, 1_000) == BIG[100:1_100]
    assert refused == []
    for each in held:
        each.close()


def test_a_file_that_was_cut_ends_it(server: BulkDoor, plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BIG)
    with dialled(server, server.offer(Transfer("b", plan, lambda: True)).ticket) as connection:
        assert len(taken(connection, 1_000_000)) == len(BIG) - 100
    eventually(lambda: plan.is_closed, what="the files to be closed")


# -- the follower's side -----------------------------------------------------------------------------------------


def test_what_was_half_there_when_it_is_closed_is_not_handed_on() -> None:
    """Nor asked about: what comes next may look like the word that it holds."""
    handed: list[bytes] = []

    def arrived(said: Answered, data: memoryview) -> bool:
        handed.append(bytes(data))
        return True

    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = BulkReader("a", arrived, lambda at: None, Counter())
        told = Bulk(bytes(TICKET_BYTES), 100, listener.getsockname()[1])
        reader.take(("127.0.0.1", 0), Answered(("i", 0), Fenced(epoch=1, incarnation=(1, 0)), b"", told))
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(60)
            assert taken(connection, 4 + TICKET_BYTES) == bulk.PURPOSE + bytes(TICKET_BYTES)
            reader._is_closed = True  # as `close` has it, before it cuts the connection
            connection.sendall(bytes(50))
            asked = b""
            with contextlib.suppress(ConnectionResetError):  # it has not read all
                asked = connection.recv(1)
            if asked:
                connection.sendall(HOLDS)
        assert reader.close(60)
    assert (asked, handed) == (b"", [])


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_for_a_transfer_the_next_one_is_sent(
    server: BulkDoor, plan: Plan, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system allows few threads, strangers may take all that are left."""
    transfer = Transfer("b", plan, lambda: True)
    server.offer(transfer)
    with monkeypatch.context() as patched:
        patched.setattr(door.threading.Thread, "start", no_thread)
        is_cut = contextlib.suppress(ConnectionResetError, ssl.SSLError)  # it has not read all
        with is_cut, dialled(server, transfer.ticket) as connection:
            assert connection.recv(1) == b""
    eventually(lambda: refused == ["no_thread"], what="it is counted")
    with dialled(server, transfer.ticket) as connection:
        assert len(taken(connection, plan.bytes)) == plan.bytes


def test_a_reader_without_a_thread_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, counts = list[Place](), Counter[str]()
    reader = BulkReader("a", lambda said, data: True, failed.append, counts)
    at = "i", 0
    with monkeypatch.context() as patched:
        patched.setattr(bulk_reader.threading.Thread, "start", no_thread)
        reader.take(
            ("127.0.0.1", 0), Answered(at, Fenced(epoch=1, incarnation=(1, 0)), b"", Bulk(bytes(TICKET_BYTES), 1, 1))
        )
    assert (failed, counts["bulk_failed"]) == ([at], 1)
    assert reader.close(60)
