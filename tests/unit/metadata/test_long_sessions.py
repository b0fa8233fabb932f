"""Sessions that are longer with many partitions: what the catalog says of them, and that a broker's own count ends
before the controller's, however the length changes (`session.S1`, `session.S5`)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.metadata import cluster
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import LONG_SESSIONS
from broker.metadata.controller import RETRY_MS, Controller
from broker.metadata.partition import PartitionState
from broker.metadata.session import (
    FEW_PARTITIONS,
    HEARTBEAT_MS,
    SESSION_MS,
    SESSION_MS_MAX,
    Beat,
    Lapsed,
    Opened,
    Session,
    lapse_ms,
    session_ms,
)
from tests.unit.cluster.test_heart import Both
from tests.unit.metadata.test_controller import TICK_MS, Bench, kinds

LONG_MS = 5_000


@pytest.fixture(autouse=True)
def two_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are long as soon as there is a stream."""
    monkeypatch.setattr(cluster, "session_ms", lambda partitions: LONG_MS if partitions else SESSION_MS)


def apply(catalog: Catalog, kind: str, **named: Any) -> Any:
    return catalog.apply({"v": 1, "kind": kind, **named})["ok"]


def register(catalog: Catalog, *brokers: str, **more: Any) -> None:
    named = {"incarnation": "p", "http": "h", "grpc": "g", "feature_level_max": LONG_SESSIONS, "sound": {}, **more}
    for broker in brokers:
        apply(catalog, "register_broker", broker_id=broker, **named)


def renew(catalog: Catalog) -> None:
    apply(catalog, "renew_sessions", renewals={b: info.registration for b, info in catalog.brokers.items()})


def create(catalog: Catalog) -> None:
    named = {"name": "s", "incarnation": "i", "created_us": 1, "replication_factor": 1}
    apply(catalog, "create_stream", settings={"partitions": 2, "subject": None}, **named)


def delete(catalog: Catalog) -> None:
    apply(catalog, "delete_stream", name="s")


def test_a_session_is_as_long_as_ever_with_few_partitions_and_longer_with_many() -> None:
    assert [session_ms(few) for few in (0, 1, FEW_PARTITIONS)] == [SESSION_MS] * 3
    assert [session_ms(many) for many in (2_000, 5_000, 10_000, 1 << 30)] == [3_000, 6_000, SESSION_MS_MAX, 10_000]
    assert lapse_ms(SESSION_MS) == 2_100


def test_the_catalog_counts_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "session_ms", session_ms)
    catalog = Catalog()
    apply(catalog, "set_feature_level", level=LONG_SESSIONS)
    catalog.cluster.partitions = {("i", number): PartitionState(replicas=("a",)) for number in range(1_500)}
    register(catalog, "a")
    assert catalog.brokers["a"].session_ms == 2_500


def test_registrations_and_renewals_say_how_long_a_session_is_and_no_renewal_makes_it_shorter() -> None:
    catalog = Catalog()
    register(catalog, "a", "b")
    apply(catalog, "set_feature_level", level=LONG_SESSIONS)
    renew(catalog)
    assert [info.session_ms for info in catalog.brokers.values()] == [SESSION_MS] * 2
    create(catalog)
    assert catalog.brokers["a"].session_ms == SESSION_MS, "what is counted by now is as long as it was"
    renew(catalog)
    assert [info.session_ms for info in catalog.brokers.values()] == [LONG_MS] * 2
    assert Catalog.restore(catalog.snapshot()).brokers == catalog.brokers
    assert catalog.snapshot()["cluster"]["brokers"][0]["session_ms"] == LONG_MS
    delete(catalog)
    renew(catalog)
    info = catalog.brokers["a"]
    apply(catalog, "fail_broker", broker_id="a", registration=info.registration, renewal=info.renewal)
    renew(catalog)
    assert [info.session_ms for info in catalog.brokers.values()] == [LONG_MS] * 2
    register(catalog, "a")
    assert catalog.brokers["a"].session_ms == SESSION_MS, "another registration, and nobody counts the former one's"


def test_below_its_feature_level_sessions_are_as_long_as_ever() -> None:
    """M8: a release that does not know of it makes the same catalog of the same journal."""
    catalog = Catalog()
    register(catalog, "a")
    create(catalog)
    renew(catalog)
    register(catalog, "b")
    assert [info.session_ms for info in catalog.brokers.values()] == [SESSION_MS] * 2
    assert "session_ms" not in str(catalog.snapshot())


def test_a_broker_counts_by_the_length_that_its_catalog_has_applied() -> None:
    session = Session(7, 0)
    session.tick(0)
    session.applied(0, LONG_MS, 10)
    assert session.is_open(LONG_MS - 1), "its registration is counted as a heartbeat is"
    assert not session.is_open(LONG_MS)
    session = Session(7, 0)
    session.tick(0)
    session.tick(HEARTBEAT_MS)
    assert session.renewed(7, 2, 1, HEARTBEAT_MS + 10) == []
    assert not session.is_open(SESSION_MS), "the renewal is not applied here"
    session.applied(1, LONG_MS, HEARTBEAT_MS + 20)
    assert session.is_open(HEARTBEAT_MS + LONG_MS - 1)
    assert not session.is_open(HEARTBEAT_MS + LONG_MS)
    assert session.tick(HEARTBEAT_MS + LONG_MS)[0] == Lapsed()
    late_ms = HEARTBEAT_MS + LONG_MS + 10
    assert session.tick(late_ms + HEARTBEAT_MS) == [Beat(registration=7, number=4)]
    assert session.renewed(7, 3, 1, late_ms + LONG_MS - 20) == [Opened()], "an answer may take as long as a session"


def test_a_registration_that_took_long_opens_no_session_that_lapses_at_once() -> None:
    """S6. Seen with 10,000 partitions: it took 8 of 10 seconds, and the first renewal came 2.3 s later."""
    session = Session(7, 0)
    late_ms = LONG_MS // 2
    assert session.tick(late_ms) == [Beat(registration=7, number=1)]
    assert session.applied(0, LONG_MS, late_ms) == []
    assert session.renewed(7, 1, 0, LONG_MS + 100) == [Opened()]


def test_a_registration_opens_no_session_before_the_catalog_here_has_it() -> None:
    """S6. Seen with 10,000 partitions: a session of 2 s lapsed while this broker applied what had come before it."""
    session = Session(7, 0)
    assert session.tick(0) == [Beat(registration=7, number=1)]
    assert session.renewed(7, 1, 1, 100) == []
    assert not session.is_open(100)
    assert session.applied(1, LONG_MS, 4_000) == [Opened()]
    assert session.is_open(LONG_MS - 1)
    assert not session.is_open(LONG_MS)


def long(bench: Bench) -> None:
    """Their sessions are long from now on."""
    for broker in bench.catalog.brokers:
        bench.register(broker, feature_level_max=LONG_SESSIONS)
    bench.apply("set_feature_level", level=LONG_SESSIONS)
    create(bench.catalog)
    bench.run(1_000)
    assert {info.session_ms for info in bench.catalog.brokers.values()} == {LONG_MS}


@pytest.mark.parametrize("is_new", [False, True])
def test_a_controller_counts_sessions_by_their_length_and_so_does_a_new_one(is_new: bool) -> None:
    """H1: the new one has never heard of any."""
    bench = Bench("a", "b")
    long(bench)
    delete(bench.catalog)
    bench.tick(), bench.hear()
    bench.silent = {"b"}
    if is_new:
        bench.run(500)
        bench.controller = Controller(bench.now_ms)
    assert "fail_broker" not in kinds(bench.run(lapse_ms(LONG_MS) - 3 * TICK_MS))
    assert "fail_broker" in kinds(bench.run(4 * TICK_MS))


def test_a_heartbeat_waits_as_long_as_a_session_is_for_its_renewal() -> None:
    """H5: the answer to the renewal before it was lost for so long."""
    bench = Bench("a", "b")
    long(bench)
    bench.run(1_000)
    [renewal] = [each for _ in range(10) for each in bench.tick() if each.command["kind"] == "renew_sessions"]
    bench.silent = {"a", "b"}
    bench.tick(LONG_MS - RETRY_MS)
    bench.lose(renewal)
    [again] = [each for each in bench.tick(RETRY_MS) if each.command["kind"] == "renew_sessions"]
    assert again.command["renewals"].keys() == {"a", "b"}


@pytest.mark.parametrize("cut_ms", range(0, 1_200, 100))
@pytest.mark.parametrize("change", ["grows", "shrinks", "another controller"])
def test_a_broker_stops_before_it_is_failed_at_whatever_moment_it_is_cut_off(change: str, cut_ms: int) -> None:
    """S1, around a change of the length."""
    both = Both()
    catalog = both.node.catalog
    register(catalog, "b", incarnation="p1")
    apply(catalog, "set_feature_level", level=LONG_SESSIONS)
    both.heart.registered(catalog.brokers["b"].registration, both.now_ms)
    both.run(3_000)
    if change != "grows":
        create(catalog)
        both.run(3_000)
        assert catalog.brokers["b"].session_ms == LONG_MS
    both.run(500)
    if change == "grows":
        create(catalog)
    elif change == "shrinks":
        delete(catalog)
    else:
        both.node.end()
        both.run(300)
        both.node.elect()
        both.node.has_begun = True
    both.run(cut_ms)
    both.hears = False
    began_ms = both.now_ms
    while catalog.brokers["b"].is_live:
        had_session = both.heart.has_session()
        both.run(50)
        assert catalog.brokers["b"].is_live or not had_session
    assert both.now_ms - began_ms <= lapse_ms(LONG_MS) + 500
