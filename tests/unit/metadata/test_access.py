"""Tokens and grants in the catalog: what a grant covers, what a command takes, and that all of it survives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.api.errors import InvalidRequest, NotReady
from broker.api.permissions import ACTIONS, BROKERS_ALONE
from broker.api.principals import (
    NOBODYS,
    Granted,
    check_grant,
    digest_of,
    is_reserved,
    new_token,
    principal_of_uri,
    token_of,
    uri_of,
)
from broker.metadata import access
from broker.metadata.access import weaker_brokers
from broker.metadata.catalog import MODES_SINCE, SINCE, Catalog
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.producers import TAG_BITS, is_anothers, tag_of

REGISTER = {"v": 1, "kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h:1", "grpc": "h:2"}
ID = "abcdefgh2345"


def catalog(**more: Any) -> Catalog:
    made = Catalog()
    assert "ok" in made.apply({**REGISTER, **more})
    return made


def apply(of: Catalog, kind: str, **named: Any) -> dict[str, Any]:
    command = {"v": 1, "kind": kind, "by": "user:ops", **named}
    if "error" not in (result := of.apply(command)):
        return result["ok"]  # type: ignore[no-any-return]
    with pytest.raises((InvalidRequest, NotReady)):
        of.judge(command)
    return result["error"]  # type: ignore[no-any-return]


def token(token_id: str = ID, principal: str = "user:ana", **more: Any) -> dict[str, Any]:
    return {"token_id": token_id, "sha256": "0" * 64, "principal": principal, "expires_ms": 100, "at_ms": 1, **more}


def test_a_token_is_what_it_was_made_as() -> None:
    made = new_token()
    assert token_of(made.text) == made
    assert made.sha256 == digest_of(made.text)
    assert made.text not in repr(made)
    assert len({new_token().text for _ in range(100)}) == 100
    for bad in (made.text + "\n", made.text[:-1], made.text.upper(), "llg__" + "0" * 64, "", made.id):
        assert token_of(bad) is None


@pytest.mark.parametrize(
    ("uri", "principal"),
    [
        ("liftlog:user/ana", "user:ana"),
        ("liftlog:svc/etl.7", "svc:etl.7"),
        ("liftlog:broker/b-1", "broker:b-1"),
        ("liftlog:user/ana/x", None),
        ("liftlog:user/", None),
        ("liftlog:admin/ana", None),
        ("LIFTLOG:user/ana", None),
        ("liftlog:user/ana ", None),
        ("liftlog:user/an:a", None),
        ("xliftlog:user/ana", None),
    ],
)
def test_a_certificate_names_a_principal_or_nobody(uri: str, principal: str | None) -> None:
    assert principal_of_uri(uri) == principal
    if principal is not None:
        assert uri_of(principal) == uri


@pytest.mark.parametrize(
    ("granted", "name", "is_covered"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "order", False),
        ("orders*", "orders2", True),
        ("orders*", "orders", True),
        ("orders.*", "orders", False),
        ("*", "orders", True),
        ("*", "__offsets", False),
        ("_*", "__offsets", False),
        ("__*", "__offsets", True),
        ("__offsets", "__offsets", True),
        ("", "orders", False),
    ],
)
def test_a_grant_covers_a_name_or_a_prefix(granted: str, name: str, is_covered: bool) -> None:
    """Q2. A name with the same prefix is another name."""
    assert Granted([("stream:read", granted)]).allows("stream:read", name) is is_covered


@pytest.mark.parametrize(
    ("granted", "subject", "is_covered"),
    [
        ("orders.>", "orders.>", True),
        ("orders.>", "orders.eu", False),
        ("orders.*", "orders.>", True),
        ("orders.*", "orders.*.x", True),
        ("orders.*", "ordersx.>", False),
        ("orders.*", "*.eu", False),
        ("orders.*", "orders", False),
        *(("*", subject, False) for subject in ("$SYS.>", "$JS.API.>", "_INBOX.>", ">", "*.x", "*")),
        ("$SYS.>", "$SYS.>", False),
        ("_INBOX.*", "_INBOX.a", False),
        ("*", "orders.>", True),
    ],
)
def test_a_grant_of_subjects_covers_all_that_a_subject_matches(granted: str, subject: str, is_covered: bool) -> None:
    """Q3."""
    assert Granted([("subject:capture", granted)]).allows("subject:capture", subject) is is_covered
    assert is_reserved(subject) is (subject[0] in "$_>*")


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ("broker", ""),
        ("stream:delete", "a"),
        ("stream:read", ""),
        ("metrics", "a"),
        ("cluster:admin", "*"),
        ("stream:read", "a*b"),
        ("stream:read", "a**"),
        ("subject:capture", "a.*.*"),
        ("subject:capture", "a.>*"),
        ("stream:read", "a b"),
        ("stream:read", "ä"),
        ("stream:read", "x" * 513),
    ],
)
def test_what_cannot_be_granted_is_refused_and_nothing_changes(action: str, name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_grant("user:ana", action, name)
    of = catalog()
    before = of.snapshot()
    good = ["stream:read", "orders"]
    assert apply(of, "put_grants", principal="user:ana", add=[good, [action, name]])["reason"] == "invalid_request"
    assert of.snapshot() == before


def test_grants_are_added_and_taken_away_and_each_change_counts() -> None:
    """Z2."""
    of = catalog()
    read, append = ["stream:read", "orders*"], ["stream:append", "orders"]
    assert apply(of, "put_grants", principal="user:ana", add=[read, append]) == {"version": 1}
    assert apply(of, "put_grants", principal="user:ana", add=[read]) == {"version": 1}, "it is there already"
    ana = Granted(of.access.grants["user:ana"])
    assert ana.allows("stream:read", "orders-eu")
    assert not ana.allows("stream:append", "orders-eu")
    assert ana.allows_any("stream:append")
    assert not ana.allows_any("stream:admin")
    assert of.access.grants.keys() == {"user:ana"}
    assert apply(of, "put_grants", principal="user:ana", remove=[read]) == {"version": 2}
    assert not Granted(of.access.grants["user:ana"]).allows("stream:read", "orders")
    assert apply(of, "put_grants", principal="user:ana", remove=[append, read]) == {"version": 3}
    assert of.access.grants == {}
    for principal in ("broker:b", "admin", "ana", "user:", "user:a b", "*"):
        assert apply(of, "put_grants", principal=principal, add=[read])["key"] == "principal"


def test_every_action_but_the_brokers_own_can_be_granted() -> None:
    of = catalog()
    for action in set(ACTIONS) - BROKERS_ALONE:
        name = "x" if ":" in action and action.split(":")[0] not in ("cluster", "auth") else ""
        assert "version" in apply(of, "put_grants", principal="svc:x", add=[[action, name]])
        assert Granted(of.access.grants["svc:x"]).allows(action, name)
    assert not any(Granted(of.access.grants["svc:x"]).allows(action, "") for action in BROKERS_ALONE)


def test_nobody_is_granted_what_needs_somebody() -> None:
    """Whoever reaches the port could make tokens, in every mode."""
    of = catalog()
    for action in NOBODYS:
        refused = apply(of, "put_grants", principal="anonymous", add=[["metrics", ""], [action, ""]])
        assert "cannot be granted to anonymous" in refused["detail"]
        assert "version" in apply(of, "put_grants", principal="user:ops", add=[[action, ""]])
    assert "anonymous" not in of.access.grants


def test_a_token_id_is_one_token() -> None:
    """Z1."""
    of = catalog()
    assert apply(of, "put_token", **token()) == {"version": 1}
    assert apply(of, "put_token", **token(at_ms=2)) == {"version": 1}, "the same again"
    assert apply(of, "put_token", **token(sha256="1" * 64))["reason"] == "invalid_request"
    assert apply(of, "put_token", **token(principal="user:bob"))["reason"] == "invalid_request"
    assert apply(of, "drop_token", token_id=ID) == {"version": 2}
    assert apply(of, "drop_token", token_id=ID)["reason"] == "unknown_token"
    assert of.access.tokens == {}
    assert apply(of, "put_token", **token(sha256="zz"))["key"] == "sha256"
    assert apply(of, "put_token", **token(principal="broker:b"))["key"] == "principal"
    assert apply(of, "put_token", **token(principal="admin"))["key"] == "principal", "Q4"


def test_a_revoked_token_is_remembered_the_newest_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Z6."""
    monkeypatch.setattr(access, "REVOKED_MAX", 2)
    of, ids = catalog(), ["cccccccccccc", "bbbbbbbbbbbb", "aaaaaaaaaaaa"]
    for each in ids:
        apply(of, "put_token", **token(each))
    before = of.access.revoked
    for each in ids:
        apply(of, "drop_token", token_id=each)
    assert before == {}, "a reader keeps what it has"
    assert list(of.access.revoked) == ids[1:]
    again = Catalog.restore(json.loads(json.dumps(of.snapshot())))
    assert list(again.access.revoked.items()) == list(of.access.revoked.items())
    apply(again, "put_token", **token(ids[2]))
    assert list(again.access.revoked) == [ids[1]]


def test_who_asks_is_said() -> None:
    """Z4."""
    of = catalog()
    for kind, named in (
        ("put_token", token()),
        ("drop_token", {"token_id": ID}),
        ("put_grants", {"principal": "user:a"}),
    ):
        assert "error" in of.apply({"v": 1, "kind": kind, **named})
    apply(of, "put_token", **token())
    assert of.access.tokens[ID].by == "user:ops"


def test_tables_have_limits_and_expired_tokens_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKENS_MAX", "PRINCIPALS_MAX", "GRANTS_MAX"):
        monkeypatch.setattr(access, name, 2)
    of, grant = catalog(), ["stream:read", "a"]
    for number, each in enumerate(("aaaaaaaaaaaa", "bbbbbbbbbbbb")):
        apply(of, "put_token", **token(each, expires_ms=100 + number))
    assert apply(of, "put_token", **token("cccccccccccc", at_ms=99))["limit"] == 2
    assert "version" in apply(of, "put_token", **token("cccccccccccc", at_ms=100, expires_ms=200))
    assert sorted(of.access.tokens) == ["bbbbbbbbbbbb", "cccccccccccc"]
    of.access.tokens = {}
    apply(of, "put_token", **token(at_ms=1, expires_ms=100))
    apply(of, "put_token", **token("dddddddddddd", at_ms=1 << 50, expires_ms=1 << 51))
    assert len(of.access.tokens) == 2, "a clock that is ahead takes nobody's token while there is room"
    for each in ("user:a", "user:b"):
        apply(of, "put_grants", principal=each, add=[grant])
    assert apply(of, "put_grants", principal="user:c", add=[grant])["limit"] == 2
    assert apply(of, "put_grants", principal="user:a", add=[["stream:read", "b"], ["stream:read", "c"]])["limit"] == 2


def test_all_of_it_survives_a_snapshot_and_an_older_one_has_none() -> None:
    of = catalog()
    assert "access" not in of.snapshot(), "where there is nothing, nothing new is written"
    apply(of, "put_token", **token())
    apply(of, "put_grants", principal="anonymous", add=[["metrics", ""]])
    kept = json.loads(json.dumps(of.snapshot()))
    again = Catalog.restore(kept)
    assert again.access == of.access
    assert again.snapshot() == of.snapshot()
    del kept["access"]
    assert Catalog.restore(kept).access == access.Access()


def test_an_id_without_a_name_says_whose_it_is_where_all_brokers_know_that() -> None:
    """`producers.D5`, M8."""
    of = catalog()
    register = {"v": 1, "kind": "register_producer", "at_ms": 1, "forget_before_ms": 0}
    before = of.apply(register)["ok"]["producer_id"]
    ana, bob = tag_of("user:ana"), tag_of("user:bob")
    ids = [of.apply({**register, "tag": tag})["ok"]["producer_id"] for tag in (ana, bob, ana, 0, (1 << TAG_BITS) - 1)]
    assert ids == sorted(set(ids))
    assert [is_anothers(each, "user:ana") for each in ids[:3]] == [False, True, False]
    assert not is_anothers(before, "user:ana"), "nobody's"
    named = of.apply({**register, "name": "mine", "tag": ana})["ok"]["producer_id"]
    assert of.apply({**register, "tag": ana})["ok"]["producer_id"] > named > ids[-1]
    assert all(of.producer_names.knows(each, 0) for each in ids)
    assert of.apply({**register, "tag": 1 << TAG_BITS})["error"]["key"] == "tag"
    assert Catalog.restore(json.loads(json.dumps(of.snapshot()))).producer_names == of.producer_names
    of = catalog(raft="b.1@h:3", feature_level_max=FEATURE_LEVEL)
    assert "feature level 5" in of.apply({**register, "tag": 7})["error"]["detail"]
    assert of.apply(register)["ok"]["producer_id"] == 1


def test_a_cluster_takes_them_at_their_feature_level_and_not_before() -> None:
    """M8. A broker that is alone asks nobody."""
    assert set(access.KINDS) <= set(SINCE)
    of = catalog(raft="b.1@h:3", feature_level_max=FEATURE_LEVEL)
    refused = apply(of, "put_grants", principal="user:a", add=[])
    assert refused["reason"] == "not_ready", "it rises a moment later: clients wait for it"
    assert "feature level 5" in refused["detail"]
    assert "ok" in of.apply({"v": 1, "kind": "set_feature_level", "level": 5})
    assert apply(of, "put_grants", principal="user:a", add=[["metrics", ""]]) == {"version": 1}


def brokers_of(*names: str) -> Catalog:
    """A cluster of these, at the level at which they say their modes."""
    of = Catalog()
    for name in names:
        who = {"broker_id": name, "raft": f"{name}.1@h:3", "feature_level_max": FEATURE_LEVEL, "sound": {}}
        assert "ok" in of.apply({**REGISTER, **who})
    of.apply({"v": 1, "kind": "set_feature_level", "level": MODES_SINCE})
    return of


def say(of: Catalog, broker: str, mode: str) -> dict[str, Any]:
    named = {"broker_id": broker, "registration": of.brokers[broker].registration, "mode": mode}
    return of.apply({"v": 1, "kind": "tell_auth_mode", **named})


def test_a_broker_says_its_mode_and_who_is_weaker_is_seen() -> None:
    of = brokers_of("a", "b", "c")
    for broker, mode in (("a", "enforce"), ("b", "off"), ("c", "permissive")):
        assert "ok" in say(of, broker, mode)
    seen = [weaker_brokers(of.access, of.brokers.values(), mode) for mode in ("enforce", "permissive", "off")]
    assert seen == [{"b": "off", "c": "permissive"}, {"b": "off"}, {}]
    assert "error" in say(of, "a", "none")
    again = Catalog.restore(json.loads(json.dumps(of.snapshot())))
    assert again.brokers == of.brokers
    who = {"broker_id": "b", "incarnation": "j", "raft": "b.1@h:3", "feature_level_max": FEATURE_LEVEL}
    stale = of.brokers["b"].registration
    assert "ok" in of.apply({**REGISTER, **who, "sound": {}})
    assert of.brokers["b"].auth_mode == "", "nothing of the former process is taken for true"
    late = {"v": 1, "kind": "tell_auth_mode", "broker_id": "b", "registration": stale, "mode": "enforce"}
    assert "error" in of.apply(late)
    assert weaker_brokers(of.access, of.brokers.values(), "enforce") == {"c": "permissive"}


def test_auth_is_required_once_every_broker_enforces_and_refuses_nobody_anything_before() -> None:
    """`access.Z5`."""
    of = brokers_of("a", "b", "c")
    refused = apply(of, "require_auth", required=True)
    assert refused["brokers"] == ["a (not known yet)", "b (not known yet)", "c (not known yet)"]
    for broker, mode in (("a", "enforce"), ("b", "off"), ("c", "enforce")):
        say(of, broker, mode)
    assert apply(of, "require_auth", required=True)["brokers"] == ["b (off)"]
    of.apply({"v": 1, "kind": "fail_broker", "broker_id": "b", "registration": of.brokers["b"].registration})
    assert of.brokers["b"].has_left
    before = of.access.copy()
    assert apply(of, "require_auth", required=True) == {"version": before.version + 1}, "who has left registers anew"
    assert before != of.access
    assert apply(of, "require_auth", required=True) == {"version": of.access.version}
    say(of, "c", "off")
    assert weaker_brokers(of.access, of.brokers.values(), "enforce") == {}, "it is overruled"
    again = Catalog.restore(json.loads(json.dumps(of.snapshot())))
    assert (again.access, again.access.is_required) == (of.access, True)
    assert "version" in apply(of, "require_auth", required=False), "whatever the modes are"
    assert "required" not in of.snapshot()["access"]
    assert "error" in of.apply({"v": 1, "kind": "require_auth", "required": True}), "Z4"


def test_modes_are_told_and_required_at_their_feature_level_and_not_before() -> None:
    """M8. A broker that is alone has its own mode and nobody else's."""
    of = catalog(raft="b.1@h:3", feature_level_max=FEATURE_LEVEL)
    assert "feature level 6" in say(of, "b", "off")["error"]["detail"]
    assert "feature level 6" in apply(of, "require_auth", required=True)["detail"]
    assert apply(catalog(), "require_auth", required=True) == {"version": 1}


def test_a_stream_joins_a_group_only_of_streams_that_its_creator_may_take_messages_from() -> None:
    """`beside`, at its feature level: what the gate has judged is compared at the command's place in the journal."""
    settings = {"subject": "s.>", "group": "g", "partitions": 1}

    def create(of: Catalog, name: str, **more: Any) -> str:
        named = {"name": name, "incarnation": f"i-{name}", "created_us": 1, "settings": settings}
        said = of.apply({"v": 1, "kind": "create_stream", **named, **more})
        return "" if "ok" in said else f"{said['error']['reason']}: {said['error']['detail']}"

    of = catalog()
    assert create(of, "a", beside=[]) == ""
    assert create(of, "b", beside=[]).startswith("not_ready: its group has another stream by now")
    assert create(of, "b", beside=["a"]) == ""
    assert create(of, "c", beside=["a"]).startswith("not_ready")
    assert create(of, "c", beside=["b", "a", "gone"]) == ""
    assert create(of, "b", beside=[]) == "", "it is there"
    assert create(of, "d") == "", "whoever creates it may do everything, or is not judged"
    settings = {**settings, "group": None}
    assert create(of, "e", beside=[]) == ""
    assert create(of, "f", beside=[]) == "", "without a group there is none"
    old = catalog(raft="b.1@h:3", feature_level_max=FEATURE_LEVEL)
    settings = {**settings, "group": "g"}
    assert create(old, "a", beside=[]) == ""
    assert create(old, "b", beside=[]) == "", "an earlier release would take it"
    old.apply({"v": 1, "kind": "set_feature_level", "level": MODES_SINCE})
    assert create(old, "c", beside=[]).startswith("not_ready")
