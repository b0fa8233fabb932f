"""The catalog as a state machine: commands in, results out, never an exception, the same again after a restore."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from broker.api.errors import CorruptLog, LiftlogError, ProducerFenced, UnknownProducer
from broker.metadata import broker_commands
from broker.metadata.catalog import SINCE, Catalog
from broker.metadata.cluster import FEATURE_LEVEL, FENCES_ABOVE, Cluster
from broker.metadata.journal import decode_lines, encode_line
from broker.metadata.partition import PartitionState
from broker.metadata.producers import PRODUCER_NAMES_MAX

REGISTER = {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g"}


def create(name: str, subject: str | None = None, **settings: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "kind": "create_stream",
        "name": name,
        "incarnation": f"inc-{name}",
        "created_us": 1,
        "settings": {"subject": subject or name, **settings},
    }


def test_creating_again_with_the_same_settings_succeeds_and_with_others_lists_the_differences() -> None:
    catalog = Catalog()
    assert catalog.apply(create("a", partitions=2))["ok"]["created"] is True
    assert catalog.apply(create("a", partitions=2))["ok"]["created"] is False
    error = catalog.apply(create("a", partitions=3))["error"]
    assert error["reason"] == "stream_exists"
    assert error["differences"] == {"partitions": [2, 3]}


def test_only_one_of_overlapping_streams_sends_acks() -> None:
    """M3, and the second says so."""
    catalog = Catalog()
    catalog.apply(create("wide", "orders.*"))
    second = catalog.apply(create("narrow", "orders.eu"))["ok"]["stream"]
    assert second["reply_acks_effective"] is False
    assert "wide" in second["warnings"][0]
    assert catalog.apply(create("other", "invoices"))["ok"]["stream"]["reply_acks_effective"] is True
    suffixed = catalog.apply(create("suffixed", "invoices", partitions=2))["ok"]["stream"]
    assert suffixed["reply_acks_effective"] is False


def test_members_of_one_group_all_send_acks() -> None:
    catalog = Catalog()
    results = [catalog.apply(create(name, "work", group="g"))["ok"]["stream"] for name in ("a", "b")]
    assert [r["reply_acks_effective"] for r in results] == [True, True]


def test_what_decides_where_records_go_cannot_be_altered() -> None:
    catalog = Catalog()
    catalog.apply(create("a"))
    error = catalog.apply({"v": 1, "kind": "alter_stream", "name": "a", "settings": {"partitions": 4}})["error"]
    assert (error["reason"], error["key"]) == ("invalid_setting", "partitions")
    ok = catalog.apply({"v": 1, "kind": "alter_stream", "name": "a", "settings": {"retention_ms": 5000}})
    assert ok["ok"]["stream"]["settings"]["retention_ms"] == 5000


def test_envelopes_are_altered_only_where_no_partition_depends_on_what_is_in_them() -> None:
    """M14. Brokers go by a command one after the other: meanwhile one would hash a key that others do not see."""
    catalog = Catalog()
    brokers = [{"broker_id": broker, "incarnation": "i", "http": "h", "grpc": "g"} for broker in "ab"]
    for each in brokers:
        catalog.apply({"v": 1, "kind": "register_broker", "raft": f"{each['broker_id']}.1@h:3", **each})

    def alter(name: str, envelopes: str | None) -> str:
        answer = catalog.apply({"v": 1, "kind": "alter_stream", "name": name, "settings": {"envelopes": envelopes}})
        return answer["error"]["reason"] if "error" in answer else answer["ok"]["stream"]["settings"].get("envelopes")

    for name, settings in (
        ("by-key", {"partition_by": "key", "partitions": 3}),
        ("one", {"partition_by": "key"}),
        ("growing", {"partition_by": "key"}),
        ("by-token", {"subject": "t.*", "partition_by": "token:2", "partitions": 3}),
        ("unheard", {"subject": None, "partition_by": "key", "partitions": 3}),
    ):
        command = create(name) | {"settings": {"subject": name, **settings}, "replication_factor": 2}
        assert "ok" in catalog.apply(command)
    assert alter("one", "open") == "not_ready", "an earlier broker may be there"
    for each in brokers:
        again = {"feature_level_max": FEATURE_LEVEL, "sound": {}, "raft": f"{each['broker_id']}.1@h:3"}
        catalog.apply({"v": 1, "kind": "register_broker", **each, "incarnation": "j", **again})
    assert "ok" in catalog.apply({"v": 1, "kind": "set_feature_level", "level": FEATURE_LEVEL})
    assert "ok" in catalog.apply({"v": 1, "kind": "add_partitions", "name": "growing", "partitions": 2})
    assert catalog.streams["growing"].partitions_next == 2
    assert [alter(name, "open") for name in ("by-key", "growing")] == ["invalid_setting"] * 2
    assert alter("by-key", "keep") == "keep", "that is what it does"
    assert [alter(name, "open") for name in ("one", "by-token", "unheard")] == ["open"] * 3
    assert Catalog.restore(json.loads(json.dumps(catalog.snapshot()))).snapshot() == catalog.snapshot()


def test_request_id_is_applied_once() -> None:
    """M4: a retry of a delete gets the first answer, not "unknown stream"."""
    catalog = Catalog()
    catalog.apply(create("a"))
    command = {"v": 1, "kind": "delete_stream", "name": "a", "request_id": "r1"}
    assert catalog.apply(command) == catalog.apply(command)
    assert "ok" in catalog.apply(command)
    assert Catalog.restore(json.loads(json.dumps(catalog.snapshot()))).apply(command) == catalog.apply(command)


def test_a_deletion_that_names_an_incarnation_takes_no_other() -> None:
    catalog = Catalog()
    catalog.apply(create("a"))
    command = {"v": 1, "kind": "delete_stream", "name": "a"}
    assert catalog.apply({**command, "incarnation": "former"})["error"]["reason"] == "stale_incarnation"
    assert catalog.apply({**command, "incarnation": 7})["error"]["reason"] == "invalid_request"
    assert "a" in catalog.streams
    assert "ok" in catalog.apply({**command, "incarnation": "inc-a"})


def test_a_refused_request_is_judged_again() -> None:
    """It is in no journal, so nobody who replays one knows of it."""
    catalog = Catalog()
    command = {"v": 1, "kind": "delete_stream", "name": "a", "request_id": "r1"}
    assert catalog.apply(command)["error"]["reason"] == "unknown_stream"
    catalog.apply(create("a"))
    assert "ok" in catalog.apply(command)


def test_deleted_incarnations_are_remembered_until_somebody_says_that_they_are_gone() -> None:
    """M6, over a restore too."""
    catalog = Catalog()
    for name in "ab":
        catalog.apply(create(name))
        catalog.apply({"v": 1, "kind": "delete_stream", "name": name})
    catalog = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    assert catalog.deleted == {"inc-a": "a", "inc-b": "b"}
    catalog.apply({"v": 1, "kind": "forget_deleted", "incarnations": ["inc-a", "unknown"]})
    assert catalog.deleted == {"inc-b": "b"}


def _nested(times: int) -> Any:
    value: Any = 0
    for _ in range(times):
        value = [value]
    return value


@pytest.mark.parametrize(
    "command",
    [
        {"kind": "register_broker", "broker_id": "b"},
        {"kind": "register_broker", "broker_id": [], "incarnation": "i", "http": "h", "grpc": "g"},
        {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g", "epoch_seen": "x"},
        {"kind": "register_producer", "name": []},
        {"kind": "forget_deleted", "incarnations": ["inc-b", []]},
        {"kind": "forget_deleted"},
        {"kind": "delete_stream", "name": []},
        {"kind": "set_state"},
        {"kind": "add_partitions", "name": "a"},
        {"kind": "add_partitions", "name": "a", "partitions": 0},
        {"kind": "alter_stream", "name": "a", "settings": []},
        {"kind": "create_stream", "name": "c", "settings": {}},
        *(
            {"kind": "create_stream", "name": "c", "incarnation": "i", "settings": {}, "created_us": value}
            for value in (float("nan"), 1.5, "x", None, [], -1, 1 << 63)
        ),
        {"kind": "create_stream", "name": "c", "incarnation": "half \ud800", "settings": {}, "created_us": 1},
        {"kind": "form_cluster", "cluster_id": "half \ud800"},
        {"kind": "register_producer", "request_id": 7},
        {"kind": "register_producer", "request_id": _nested(32)},
        {"kind": "register_producer", "unknown": _nested(970)},
        *(
            {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g", "epoch_seen": n}
            for n in ((1 << 63) - 1, 1 << 32)
        ),
        {},
    ],
)
def test_what_is_refused_changes_nothing(command: dict[str, Any]) -> None:
    """Malformed half-way, too: a refused command is not in the journal, so what it changed would be gone later."""
    catalog = Catalog()
    for name in "ab":
        catalog.apply(create(name))
    catalog.apply({"v": 1, "kind": "delete_stream", "name": "b"})
    before = json.dumps(catalog.snapshot())
    with pytest.raises(LiftlogError):
        catalog.judge({"v": 1, **command})
    assert "error" in catalog.apply({"v": 1, **command})
    assert json.dumps(catalog.snapshot()) == before


def test_a_command_of_a_later_level_has_no_effect_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: a release that knows the command, and one that does not, replay one journal to the same catalog."""
    broker: dict[str, Any] = {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g"}
    journal: list[dict[str, Any]] = [
        {"kind": "form_cluster", "cluster_id": "c"},
        {**broker, "feature_level_max": 2},
        create("a"),
        {"kind": "set_state", "name": "a", "paused": True},
        {"kind": "set_feature_level", "level": 2},
        {"kind": "set_state", "name": "a", "read_only": True},
    ]
    monkeypatch.setitem(SINCE, "set_state", 2)
    monkeypatch.setattr(broker_commands, "FEATURE_LEVEL", 2)
    new = Catalog()
    results = [new.apply({"v": 1, **command}) for command in journal]
    assert "needs feature level 2" in results[3]["error"]["detail"]
    assert (new.streams["a"].paused, new.streams["a"].read_only) == (False, True)
    assert Catalog().cluster.feature_level == 1, "a catalog begins alike in every release"


def test_a_broker_that_names_no_level_knows_the_first_alone() -> None:
    """In each release, whatever level that has: or one journal would make two catalogs."""
    catalog = Catalog()
    catalog.apply({"v": 1, "kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g"})
    assert catalog.brokers["b"].feature_level_max == 1
    assert "error" in catalog.apply({"v": 1, "kind": "set_feature_level", "level": 2})


def test_a_cluster_may_begin_with_a_later_level_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: who is removed is not asked whether it knows a level, and is not let in again without knowing it."""
    monkeypatch.setattr(broker_commands, "FEATURE_LEVEL", 3)
    catalog = Catalog()
    form = {"v": 1, "kind": "form_cluster", "cluster_id": "c"}
    assert "error" in catalog.apply({**form, "feature_level": 4})
    assert "ok" in catalog.apply({**form, "feature_level": 2})
    assert "ok" in catalog.apply(form), "again"
    assert catalog.cluster.feature_level == 2
    register = {"v": 1, "kind": "register_broker", "incarnation": "i", "http": "h", "grpc": "g"}
    old, new = ({**register, "broker_id": b, "feature_level_max": level} for b, level in (("old", 2), ("new", 3)))
    number = catalog.apply(old)["ok"]["registration"]
    catalog.apply(new)
    raised = {"v": 1, "kind": "set_feature_level", "level": 3}
    assert "not known to old" in catalog.apply(raised)["error"]["detail"]
    catalog.apply({"v": 1, "kind": "fail_broker", "broker_id": "old", "registration": number})
    assert "ok" in catalog.apply({"v": 1, "kind": "remove_broker", "broker_id": "old"})
    assert catalog.apply(raised)["ok"] == {"feature_level": 3}
    assert "knows feature level 2" in catalog.apply(old)["error"]["detail"]
    assert "error" in catalog.apply({**raised, "level": 2})


def test_a_folder_that_its_broker_has_replaced_is_not_taken_again() -> None:
    """The catalog knows the replicas of the later one. Put back, the old logs would have led."""
    catalog = Catalog()
    register = {"v": 1, "kind": "register_broker", "broker_id": "a", "incarnation": "i", "http": "h", "grpc": "g"}
    for raft in ("a.1@h:3", "a.2@h:3"):
        assert "ok" in catalog.apply({**register, "raft": raft})
        assert "ok" in catalog.apply({**register, "raft": raft, "incarnation": "i2"}), "a restart with the same folder"
        number = catalog.cluster.brokers["a"].registration
        catalog.apply({"v": 1, "kind": "fail_broker", "broker_id": "a", "registration": number})
    assert "former one" in catalog.apply({**register, "raft": "a.1@h:3"})["error"]["detail"]
    assert "former one" in catalog.apply({**register, "broker_id": "b", "raft": "a.1@h:3"})["error"]["detail"]
    assert "ok" in catalog.apply({**register, "raft": "a.2@h:3"})


def test_registration_raises_the_epoch_for_all_that_a_broker_leads() -> None:
    catalog = Catalog()
    command = {"v": 1, "kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g"}
    assert [catalog.apply(command)["ok"]["leader_epoch"] for _ in range(3)] == [1, 2, 3]
    seen = [2, 3, 9, -1]  # the greatest in the broker's logs: with 9 the catalog is an older one, from a backup
    epochs = [catalog.apply({**command, "epoch_seen": epoch})["ok"]["leader_epoch"] for epoch in seen]
    assert epochs == [4, 5, 10, 11]


@pytest.mark.parametrize("seed", range(20))
def test_restored_catalog_goes_on_as_the_original(seed: int) -> None:
    rng = random.Random(seed)
    catalog = Catalog()
    for step in range(60):
        name = rng.choice("abcd")
        command: dict[str, Any] = rng.choice(
            [
                create(name, rng.choice(["x", "x.*", "y"]), partitions=rng.randint(0, 3)),
                {"v": 1, "kind": "delete_stream", "name": name},
                {"v": 1, "kind": "alter_stream", "name": name, "settings": {"linger_ms": rng.randint(-1, 5)}},
                {"v": 1, "kind": "nonsense"},
                {"v": 2},
                {"v": 1, "kind": "create_stream"},
            ]
        )
        twin = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
        assert catalog.apply(command) == twin.apply(command), step
        assert catalog.snapshot() == twin.snapshot()


def test_producer_ids_are_never_given_out_twice_and_a_name_keeps_its_id() -> None:
    """M5, also over a restore."""
    catalog = Catalog()

    def register(name: str | None = None) -> tuple[int, int]:
        ok = catalog.apply({"v": 1, "kind": "register_producer", "name": name})["ok"]
        return ok["producer_id"], ok["epoch"]

    assert [register(), register("a"), register(), register("a"), register("b")] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (2, 1),
        (4, 0),
    ]
    catalog = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    assert [register(), register("a")] == [(5, 0), (2, 2)]
    catalog.producer_names.check(2, 2)
    catalog.producer_names.check(1, 0)
    with pytest.raises(ProducerFenced) as fenced:
        catalog.producer_names.check(2, 1)
    assert fenced.value.producer_epoch == 2
    for producer_id, epoch in ((2, 3), (1, 1), (6, 0), (0, 0)):
        with pytest.raises(UnknownProducer):
            catalog.producer_names.check(producer_id, epoch)


def test_names_of_producers_are_bounded() -> None:
    catalog = Catalog()
    for i in range(PRODUCER_NAMES_MAX):
        catalog.apply({"v": 1, "kind": "register_producer", "name": f"p{i}"})
    error = catalog.apply({"v": 1, "kind": "register_producer", "name": "more"})["error"]
    assert (error["reason"], error["limit"]) == ("invalid_request", PRODUCER_NAMES_MAX)
    assert catalog.apply({"v": 1, "kind": "register_producer", "name": "p7"})["ok"] == {"producer_id": 8, "epoch": 1}
    assert catalog.apply({"v": 1, "kind": "register_producer", "name": "a b"})["error"]["reason"] == "invalid_name"


def test_torn_last_line_of_the_journal_is_dropped_and_a_damaged_one_before_it_is_not() -> None:
    lines = [encode_line({"n": i}) for i in range(3)]
    data = b"".join(lines)
    for cut in range(len(lines[0])):
        with pytest.raises(CorruptLog):
            decode_lines(data[:cut], where="j")
    for cut in range(len(lines[0]), len(data)):
        values, used = decode_lines(data[:cut], where="j")
        assert values == [{"n": i} for i in range(len(values))]
        assert used == sum(len(line) for line in lines[: len(values)])
    damaged = bytearray(data)
    damaged[12] ^= 1
    with pytest.raises(Exception, match="damaged line at byte 0"):
        decode_lines(bytes(damaged), where="j")


def test_a_trial_leaves_the_known_subjects_alone_and_a_restore_knows_them() -> None:
    """`judge` answers what `apply` would; a stream that is deleted or altered makes room for another's acks."""
    catalog = Catalog()
    catalog.judge(create("trial", "orders.eu"))
    assert catalog.apply(create("first", "orders.eu"))["ok"]["stream"]["reply_acks_effective"] is True
    restored = Catalog.restore(catalog.snapshot())
    for each in (catalog, restored):
        assert each.apply(create("second", "orders.*"))["ok"]["stream"]["reply_acks_effective"] is False
        each.judge({"v": 1, "kind": "delete_stream", "name": "first"})
        assert each.apply(create("third", "orders.>"))["ok"]["stream"]["reply_acks_effective"] is False
        each.apply({"v": 1, "kind": "delete_stream", "name": "first"})
        assert each.apply(create("fourth", "orders.eu"))["ok"]["stream"]["reply_acks_effective"] is True


def test_a_report_does_not_take_the_last_member_out_of_another_partition() -> None:
    """`cluster.C3`: of the second one a alone has all records; without it nobody would lead."""
    catalog = Catalog()
    numbers = {}
    for broker in "abc":
        named = {"broker_id": broker, "incarnation": "p", "http": "h", "grpc": "g"}
        numbers[broker] = catalog.apply({"v": 1, "kind": "register_broker", **named})["ok"]["registration"]
    led = PartitionState(
        replicas=("a", "b", "c"), isr=("a", "b", "c"), leader="a", leader_incarnation=(numbers["a"], 0), leader_epoch=3
    )
    catalog.cluster.partitions |= {("i", 0): led, ("i", 1): replace(led, isr=("a",))}
    for broker in "bc":
        by = {"broker_id": broker, "registration": numbers[broker], "at_ms": 1, "window_ms": 9}
        of = {"stream": "i", "partition": 0, "leader_epoch": 3}
        told = catalog.apply({"v": 1, "kind": "report_leader", **by, **of})["ok"]
        if told["moved"]:
            break
    assert told["moved"] == [["i", 0, "b"]]
    assert catalog.cluster.partitions["i", 1].leader == "a"
    assert catalog.cluster.partitions["i", 1].isr == ("a",)


@pytest.mark.parametrize("kind", ["report_leader", "fail_broker", "renew_sessions"])
def test_a_look_at_a_command_that_ends_leaderships_carries_nothing_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M11: a follower of 10,000 partitions has 16 reports out, and each took a quarter of a second to judge."""
    catalog = Catalog()
    numbers = {}
    for broker in "abc":
        named = {"broker_id": broker, "incarnation": "p", "http": "h", "grpc": "g"}
        numbers[broker] = catalog.apply({"v": 1, "kind": "register_broker", **named})["ok"]["registration"]
    catalog.cluster.partitions["i", 0] = PartitionState(
        replicas=("a", "b"), isr=("a", "b"), leader="a", leader_incarnation=(numbers["a"], 0), leader_epoch=3
    )
    report = {"stream": "i", "partition": 0, "leader_epoch": 3, "at_ms": 1, "window_ms": 9}
    command = {
        "report_leader": {"broker_id": "b", "registration": numbers["b"], **report},
        "fail_broker": {"broker_id": "a", "registration": numbers["a"], "renewal": 0},
        "renew_sessions": {"renewals": numbers},
    }[kind]
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "copy", lambda self: pytest.fail("a look needs no copy"))
        catalog.check({"v": 1, "kind": kind, **command})
        if kind != "renew_sessions":
            with pytest.raises(LiftlogError) as refusal:
                catalog.check({"v": 1, "kind": kind, **command, "registration": 99})
            assert (
                refusal.value.message
                == catalog.apply({"v": 1, "kind": kind, **command, "registration": 99})["error"]["detail"]
            )
    assert catalog.cluster.partitions["i", 0].leader == "a"
    assert "ok" in catalog.apply({"v": 1, "kind": kind, **command})
    assert (catalog.cluster.partitions["i", 0].leader == "a") is (kind == "renew_sessions")


def test_the_stream_of_a_streams_stages_goes_with_it() -> None:
    """M9; nobody deletes it by itself, and it may grow."""
    catalog = Catalog()
    catalog.apply(create("a"))
    stages = {**create("__stages.inc-a"), "internal": True, "incarnation": "inc-stages", "settings": {"subject": None}}
    assert catalog.apply(stages)["ok"]["created"] is True
    refused = catalog.apply({"v": 1, "kind": "delete_stream", "name": "__stages.inc-a"})["error"]
    assert refused["reason"] == "invalid_request"
    grown = catalog.apply({"v": 1, "kind": "add_partitions", "name": "__stages.inc-a", "partitions": 3})
    assert grown["ok"]["stream"]["settings"]["partitions"] == 3
    catalog.apply({"v": 1, "kind": "delete_stream", "name": "a"})
    assert not catalog.streams
    assert catalog.deleted == {"inc-a": "a", "inc-stages": "__stages.inc-a"}


def test_fsync_by_intervals_is_refused_while_any_partition_has_several_replicas() -> None:
    """One partition was moved to a single broker: only the first was looked at, and only where it was to be moved to.
    The others committed what their leader had not fsynced."""
    catalog = Catalog()
    for broker in ("a", "b"):
        named = {"broker_id": broker, "incarnation": "i", "http": "h", "grpc": "g"}
        catalog.apply({"v": 1, "kind": "register_broker", **named})
    catalog.apply({**create("s", partitions=2), "replication_factor": 2})
    altered = {"v": 1, "kind": "alter_stream", "name": "s", "settings": {"fsync": "interval"}}
    places = sorted(catalog.cluster.partitions)
    for at in places:
        assert catalog.apply(altered)["error"]["key"] == "fsync"
        catalog.cluster.partitions[at] = replace(catalog.cluster.partitions[at], target=("a",))
    assert catalog.apply(altered)["error"]["key"] == "fsync", "they are moved, and count still"
    for at in places:
        assert catalog.apply(altered)["error"]["key"] == "fsync"
        catalog.cluster.partitions[at] = PartitionState(replicas=("a",))
    assert "ok" in catalog.apply(altered)


def test_a_setting_of_a_later_level_has_no_effect_below_it() -> None:
    """M8: a release that does not know the setting refuses what names it, so one that does must refuse it as well."""
    catalog = Catalog()
    for command in (
        {"kind": "form_cluster", "cluster_id": "c"},
        {**REGISTER, "feature_level_max": 3, "raft": "b.1@h:3"},
        create("orders"),
    ):
        assert "ok" in catalog.apply({"v": 1, **command})
    before = json.dumps(catalog.snapshot())
    assert "payload_schema" not in before, "a release without it restores this"
    schema = {"payload_schema": "item long"}
    for refused in (
        {"kind": "alter_stream", "name": "orders", "settings": schema},
        {"kind": "alter_stream", "name": "orders", "settings": {"payload_schema": None}},
        {**create("others"), "settings": schema},
    ):
        error = catalog.apply({"v": 1, **refused})["error"]
        assert error["detail"].startswith("payload_schema needs feature level 3, the cluster has 1; it rises")
    assert json.dumps(catalog.snapshot()) == before
    catalog.apply({"v": 1, "kind": "set_feature_level", "level": 3})
    altered = catalog.apply({"v": 1, "kind": "alter_stream", "name": "orders", "settings": schema})
    assert altered["ok"]["stream"]["settings"]["payload_schema"] == "item BIGINT"
    restored = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    assert restored.streams["orders"].settings.payload_schema == "item BIGINT"
    catalog.apply({"v": 1, "kind": "alter_stream", "name": "orders", "settings": {"payload_schema": None}})
    assert "payload_schema" not in json.dumps(catalog.snapshot()["streams"])


def test_fences_have_numbers_that_each_are_given_out_once() -> None:
    """M12, and M8: a cluster has them at their feature level; a broker alone has them."""
    catalog, placed = Catalog(), Catalog()
    placed.apply({"v": 1, "kind": "form_cluster", "cluster_id": "c"})
    placed.apply({"v": 1, **REGISTER, "feature_level_max": SINCE["raise_fence"], "raft": "b.1@h:3"})
    catalog.apply({"v": 1, **REGISTER})
    for of in (catalog, placed):
        incarnation = of.apply({"v": 1, **create("orders", partitions=2)})["ok"]["stream"]["incarnation"]
    fence = {"v": 1, "kind": "raise_fence", "name": "orders", "incarnation": incarnation, "partition": 1, "after": 0}
    assert placed.apply(fence)["error"]["reason"] == "not_ready"
    placed.apply({"v": 1, "kind": "set_feature_level", "level": SINCE["raise_fence"]})
    for of in (catalog, placed):
        assert "fences" not in json.dumps(of.snapshot())
        assert of.apply(fence)["ok"] == {"fence": 1}
        refused = of.apply(fence)["error"]
        assert (refused["reason"], refused["fence"]) == ("expectation_failed", 1)
        assert of.apply({**fence, "after": 1})["ok"] == {"fence": 2}
        assert of.apply({**fence, "partition": 2})["error"]["reason"] == "unknown_partition"
        assert of.apply({**fence, "incarnation": "other"})["error"]["reason"] == "stale_incarnation"
        restored = Catalog.restore(json.loads(json.dumps(of.snapshot())))
        info = restored.streams["orders"]
        assert [info.fence_of(partition) for partition in range(3)] == [0, 2, 0]
        assert restored.apply({"v": 1, "kind": "set_state", "name": "orders", "paused": True})["ok"]
        assert restored.apply({**fence, "after": 2})["ok"] == {"fence": 3}


@pytest.mark.parametrize("level", [0, FENCES_ABOVE - 1, FENCES_ABOVE])
def test_fences_of_a_stream_made_anew_are_above_those_of_before(level: int) -> None:
    """M12; in a cluster from its level on, whatever the snapshot. 0: a broker alone."""
    catalog = Catalog()
    if level:
        catalog.apply({"v": 1, "kind": "form_cluster", "cluster_id": "c"})
        catalog.apply({"v": 1, **REGISTER, "feature_level_max": FEATURE_LEVEL, "raft": "b.1@h:3"})
        catalog.apply({"v": 1, "kind": "set_feature_level", "level": level})
    else:
        catalog.apply({"v": 1, **REGISTER})
    is_above, fence = level != FENCES_ABOVE - 1, {"v": 1, "kind": "raise_fence", "name": "orders", "above": True}
    given = list[int]()
    for made in range(3):
        asked = {**create("orders", partitions=2), "incarnation": f"i{made}"}
        assert catalog.apply({"v": 1, **asked})["ok"]["created"]
        for partition in (1, 0, 1):
            after = catalog.streams["orders"].fence_of(partition)
            one = {**fence, "incarnation": f"i{made}", "partition": partition, "after": after}
            assert catalog.judge(one) == catalog.apply(one)["ok"], "it is foretold"
            given.append(catalog.streams["orders"].fence_of(partition))
        catalog.apply({"v": 1, "kind": "delete_stream", "name": "orders"})
        catalog = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    assert given == ([1, 1, 2, 3, 3, 4, 5, 5, 6] if is_above else [1, 1, 2] * 3)
    assert ("fence_floor" in catalog.snapshot()) == is_above


def test_a_journal_of_before_gives_the_fences_that_it_gave() -> None:
    catalog = Catalog()
    catalog.apply({"v": 1, **REGISTER})
    for made in range(2):
        catalog.apply({"v": 1, **create("orders"), "incarnation": f"i{made}"})
        fence = {"v": 1, "kind": "raise_fence", "name": "orders", "incarnation": f"i{made}", "partition": 0, "after": 0}
        assert catalog.apply(fence)["ok"] == {"fence": 1}, "M8: who was told so holds it"
        catalog.apply({"v": 1, "kind": "delete_stream", "name": "orders"})


def test_a_broker_alone_has_settings_of_all_levels() -> None:
    """Nobody raises its level, and nobody else reads its catalog."""
    catalog = Catalog()
    catalog.apply({"v": 1, **REGISTER})
    made = catalog.apply({"v": 1, **create("orders"), "settings": {"payload_schema": "item INT"}})
    assert made["ok"]["stream"]["settings"]["payload_schema"] == "item INT"
