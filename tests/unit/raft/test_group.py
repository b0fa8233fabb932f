"""Goal: the adapter keeps what pysyncobj loses by itself. Method: each test stands for a script, or a reading of its
source."""

from __future__ import annotations

import errno
from typing import Any

import pysyncobj
import pytest
from pysyncobj import SyncObj
from pysyncobj.node import Node

from broker.api.errors import DeadlineExceeded, InvalidRequest, StorageFailed
from broker.control import status
from broker.control.identity import Identity
from broker.raft.core import Core
from broker.raft.journal import encode_transfer
from broker.raft.node import open_journal
from tests.sim.raft.mutants import mutated
from tests.support.simdisk import Crashed
from tests.unit.raft.group import PATH, Group, Message


def test_the_insides_of_pysyncobj_are_those_that_the_adapter_mends() -> None:
    assert pysyncobj.__file__ is not None
    names = (
        "doApplyCommand onMessageReceived parseChangeClusterRequest loadDumpFile changeCluster doChangeCluster"
        " getCurrentLogIndex sendNextNodeIdx sendAppendEntries tryLogCompaction applyLogEntries"
    )
    for name in names.split():
        assert hasattr(SyncObj, f"_SyncObj__{name}"), name
    from pysyncobj.version import VERSION

    assert VERSION == "0.3.17"


def late_reset() -> tuple[set[str], set[str]]:
    """A late reset: all that was acknowledged is there after its leader has died."""
    group = Group("abc")
    group.elect("a")
    for _ in range(4):
        group.turn()
    group.cut |= {("a", "c"), ("c", "a"), ("b", "c"), ("c", "b"), ("a", "b")}
    group.net.clear()
    answers = {f"p{i}": group.submit("a", i) for i in range(40)}
    for _ in range(3):
        group.nodes["a"].tick()
    group.cut.discard(("a", "b"))
    a, b = group.nodes["a"].core, group.nodes["b"].core
    for _ in range(2):
        a._SyncObj__sendAppendEntries()
    group.deliver(lambda m: m[1][0] == "b")
    first, second = (m for m in list(group.net) if m[1][0] == "a")
    group.net.clear()
    group.hand_over(first)
    a._SyncObj__sendAppendEntries()
    group.deliver(lambda m: m[1][0] == "b")
    group.deliver(lambda m: m[1][0] == "a")
    group.nodes["a"].tick()
    acknowledged = {name for name, results in answers.items() if results and "ok" in results[0]}
    group.net.clear()
    group.hand_over(second)  # late
    full = a._SyncObj__getEntries
    a._SyncObj__getEntries = lambda at, count=None, size=None: full(at, count, size and 1_500)  # several messages
    a._SyncObj__sendAppendEntries()
    out = [m for m in group.net if m[1][0] == "b"]
    group.hand_over(out[0])  # only the first arrives; then the leader dies
    group.net.clear()
    group.cut.clear()
    group.cut |= {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}
    del group.nodes["a"]
    b._SyncObj__raftElectionDeadline = 0
    for _ in range(12):
        group.turn()
    assert group.nodes["b"].is_controller
    return acknowledged, group.has("b") & group.has("c")


def test_a_late_reset_takes_nothing_away() -> None:
    acknowledged, kept = late_reset()
    assert len(acknowledged) == 40
    assert acknowledged <= kept


def test_without_the_adapters_rules_a_late_reset_loses_what_was_acknowledged() -> None:
    with mutated("late_resets"):
        acknowledged, kept = late_reset()
    assert len(acknowledged) == 40
    assert acknowledged - kept


def deposed(latency: int, *, asks: bool = False) -> Group:
    """A leader with a tail that nobody else has comes back, while more is appended and sent all the time.

    `asks`: for another voter, too, in that tail.
    """
    group = Group("abc")
    group.elect("c")
    for _ in range(4):
        group.turn()
    group.cut |= {(one, other) for one in "abc" for other in "abc" if "c" in (one, other)}
    for number in range(40):
        group.submit("c", number)
        if asks and number == 20:
            group.nodes["c"].change_voters("add", "d@d", lambda _: None)
    group.nodes["c"].tick()
    assert ("d@d" in group.nodes["c"].voters()) is asks
    group.elect("a")
    for number in range(40, 99):
        group.submit("a", number)
    for _ in range(4):
        group.turn()
    group.cut.clear()
    group.net.clear()
    under_way: list[list[Message]] = [[] for _ in range(latency)]
    for turn in range(12 * latency):
        group.submit("a", 100 + turn)
        for name in "abc":
            group.nodes[name].tick()
        under_way.append(list(group.net))
        group.net.clear()
        for message in under_way.pop(0):
            group.hand_over(message)
    return group


@pytest.mark.parametrize("latency", [1, 3, 10])
def test_a_deposed_leader_is_back_within_a_few_round_trips(latency: int) -> None:
    """Chaos, seed 27000: it took a minute."""
    group = deposed(latency)
    assert "p39" not in group.has("c")
    assert group.has("c") >= {f"p{number}" for number in (*range(40, 99), 100)}


def test_a_voter_that_a_deposed_leader_alone_has_added_is_none() -> None:
    """Its entry is cut with the others: who has a vote is what the leader's log says."""
    core = deposed(3, asks=True).nodes["c"].core
    assert core.voters_at(core.journal.entries[-1][1]) == ("a@a", "b@b", "c@c")
    assert {str(node.id) for node in core.otherNodes} == {"a@a", "b@b"}


def test_without_the_adapters_rules_it_is_asked_about_one_entry_after_the_other() -> None:
    with mutated("one_step_back"):
        assert not deposed(3).has("c")


def test_kill_at_any_operation_of_a_snapshot_loses_nothing() -> None:
    """A dump is cut short at every step that the disk makes, by a kill and by a power cut."""
    for step in range(1, 200):
        group = Group("a")
        group.elect("a")
        acknowledged = set()
        disk = group.disks["a"]
        disk.crash_at = disk.steps + step
        try:
            for number in range(10):
                results = group.submit("a", number)
                if number == 5:
                    group.nodes["a"].core.forceLogCompaction()
                group.turn()
                if results:
                    assert "ok" in results[0]
                    acknowledged.add(f"p{number}")
        except Crashed:
            pass
        else:
            assert step > 20, "a snapshot and ten commands take more steps"
            return
        for after in (disk.after_kill(), disk.after_crash("lost"), disk.after_crash("torn", seed=step)):
            group.disks["a"] = after
            group.net.clear()
            node = group.start("a")
            assert node.node_id == "a@a", "it is the same voter"
            group.elect("a")
            group.turn()
            assert acknowledged <= group.has("a")
    raise AssertionError("it never ended")


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_full_disk_ends_the_node_and_loses_nothing(call: str) -> None:
    """The journal on a full disk: an error that is told, in the place of SIGBUS."""
    group = Group("a")
    group.elect("a")
    assert "ok" in (group.submit("a", 0), group.turn())[0][0]
    group.disks["a"].fail(call, errno.ENOSPC, short=10, times=99)
    results = group.submit("a", 1)
    with pytest.raises(StorageFailed):
        group.turn()
    assert isinstance(results[0], DeadlineExceeded)
    assert results[0].sent
    with pytest.raises(StorageFailed):
        group.nodes["a"].tick()
    group.disks["a"] = group.disks["a"].after_kill()
    group.start("a")
    group.elect("a")
    group.turn()
    assert "p0" in group.has("a")
    assert "ok" in (group.submit("a", 2), group.turn())[0][0]


def test_a_command_that_breaks_is_answered_and_the_next_one_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pysyncobj by itself every later tick fails."""
    group = Group("a")
    group.elect("a")
    apply = group.nodes["a"].catalog.apply

    def breaks(command: Any) -> Any:
        if command.get("name") == "p0":
            raise RuntimeError("poison")
        return apply(command)

    group.nodes["a"].core._apply = breaks
    first, second = group.submit("a", 0), group.submit("a", 1)
    group.turn()
    assert first[0]["error"]["reason"] == "internal"
    assert "ok" in second[0]


def at_once() -> Group:
    """Led by `a`, with nothing on its way."""
    group = Group("abc", is_timed=False)
    group.elect("a")
    for _ in range(3):
        group.turn()
    group.net.clear()
    return group


def test_what_comes_between_two_ticks_goes_out_together() -> None:
    """A13. So many commands cost one fsync of each voter."""
    group = at_once()
    results = [group.submit("a", number) for number in range(10)]
    assert not group.net
    group.nodes["a"].tick()
    to_b = [message.get("entries") for _, to, message in group.net if to.startswith("b")]
    assert [len(entries) for entries in to_b if entries] == [10]
    for _ in range(3):
        group.turn()
    assert all("ok" in result[0] for result in results)


def test_what_waits_for_a_tick_is_not_sent_by_one_that_leads_no_more() -> None:
    """A13. It would go out as of the term of whoever leads now: two leaders of one term."""
    group = at_once()
    a = group.nodes["a"]
    group.submit("a", 0)
    later = {"type": "request_vote", "term": a.term + 1, "last_log_index": 99, "last_log_term": a.term}
    group.hand_over((group.ids[1], group.ids[0], {**later, "cluster": "x"}))
    assert (a.is_controller, a.term) == (False, later["term"])
    a.tick()
    assert not [message for _, _, message in group.net if message["type"] == "append_entries"]


def test_who_waits_and_fails_does_not_have_a_command_applied_twice() -> None:
    """In pysyncobj by itself an exception in a callback applies the command again."""
    group = Group("a")
    group.elect("a")

    def fails(_: Any) -> None:
        raise RuntimeError("callback")

    group.nodes["a"].submit({"v": 1, "kind": "register_producer"}, fails)
    with pytest.raises(RuntimeError):
        group.turn()
    with pytest.raises(RuntimeError):
        group.turn()
    assert group.nodes["a"].catalog.producer_names.id_last == 1


def double_vote() -> bool:
    """One of five voters has voted, and its vote comes twice. Returns whether that elects."""
    group = Group("abcde")
    group.nodes["a"].core._SyncObj__raftElectionDeadline = 0
    group.nodes["a"].tick()
    group.deliver(lambda m: m[1][0] == "b")
    vote = next(m for m in group.net if m[1][0] == "a" and m[2]["type"] == "response_vote")
    group.hand_over(vote)
    group.hand_over(vote)
    return group.nodes["a"].is_controller


def test_a_vote_counts_once() -> None:
    assert not double_vote()
    with mutated("votes_twice"):
        assert double_vote()


def one_that_needs_a_snapshot() -> Group:
    """a leads, and has compacted what c, which hears it again from now on, has not got."""
    group = Group("abc")
    group.elect("a")
    group.cut |= {("a", "c"), ("b", "c")}
    for number in range(5):
        group.submit("a", number)
        group.turn()
    group.nodes["a"].core.forceLogCompaction()
    for _ in range(3):
        group.turn()
    group.cut.clear()
    return group


def old_snapshot() -> tuple[set[str], set[str]]:
    """A snapshot that was sent to c comes again when c has acknowledged more. Returns its entries before, and after."""
    group = one_that_needs_a_snapshot()
    kept = []
    for _ in range(8):
        group.nodes["a"].tick()
        kept += [m for m in group.net if m[1][0] == "c" and m[2].get("serialized")]
        group.turn()
    assert kept
    for number in range(5, 9):
        group.submit("a", number)
        for _ in range(3):
            group.turn()
    group.net.clear()
    had = group.has("c")
    for message in kept:
        group.hand_over(message)
    return had, group.has("c")


def test_a_late_snapshot_takes_nothing_away() -> None:
    had, has = old_snapshot()
    assert len(had) == 9
    assert had == has
    with mutated("any_snapshot"):
        had, has = old_snapshot()
    assert had - has


def test_replies_of_an_earlier_term_do_not_count() -> None:
    """A follower's word counts for the log of the leader that asked. (The entries that it had then may be cut by
    now.)"""
    group = Group("abc")
    group.elect("a")
    group.cut |= {("a", "c"), ("c", "a")}
    group.submit("a", 1)
    group.turn()
    group.nodes["a"].tick()
    group.deliver(lambda m: m[1][0] == "b")
    late = next(m for m in group.net if m[2]["type"] == "next_node_idx")
    group.net.clear()
    group.elect("b")
    group.elect("a")
    core: Core = group.nodes["a"].core
    core._SyncObj__raftMatchIndex[Node("b@b")] = 0
    group.hand_over(late)
    assert core._SyncObj__raftMatchIndex[Node("b@b")] == 0
    with mutated("replies_of_any_term"):
        group.hand_over(late)
        assert core._SyncObj__raftMatchIndex[Node("b@b")] > 0
    core._SyncObj__raftMatchIndex[Node("b@b")] = 0
    group.hand_over((late[0], late[1], {**late[2], "term": core.raftCurrentTerm}))
    assert core._SyncObj__raftMatchIndex[Node("b@b")] > 0


def test_a_voter_that_lost_its_journal_has_no_vote_until_the_old_id_is_removed() -> None:
    group = Group("abc")
    group.elect("a")
    assert (group.submit("a", 1), group.turn(), group.turn())[0]
    group.disks["b"] = type(group.disks["b"])()
    group.disks["b"].makedirs("/raft")
    b = group.start("b")
    assert not b.is_voter
    assert b.node_id != "b@b"
    results: list[Any] = []
    group.nodes["a"].change_voters("add", b.node_id, results.append)
    group.turn()
    assert results[0]["error"]["reason"] == "not_ready", "the old id has its vote"
    group.nodes["a"].change_voters("rem", "b@b", results.append)
    for _ in range(3):
        group.turn()
    assert "ok" in results[1]
    group.nodes["a"].change_voters("add", b.node_id, results.append)
    for _ in range(3):
        group.turn()
    assert group.nodes["a"].voters() == ("a@a", b.node_id, "c@c")


def test_a_vote_is_not_counted_before_it_is_known_to_be_committed() -> None:
    """Else an operator takes the next disk while the new vote's own broker has not heard of it, and nobody is elected:
    who has the vote by one log is an observer by its own."""
    group = Group("abc")
    group.elect("a")
    group.turn()
    group.disks["b"] = type(group.disks["b"])()
    group.disks["b"].makedirs("/raft")
    b, results = group.start("b"), list[Any]()
    group.nodes["a"].change_voters("rem", "b@b", results.append)
    for _ in range(3):
        group.turn()
    group.cut.add(("a", "b"))
    group.nodes["a"].change_voters("add", b.node_id, results.append)
    group.nodes["a"].tick()
    group.deliver()  # to `c`, whose answer is under way
    c = group.nodes["c"]
    assert b.node_id in c.voters(), "by its log, and so it asks for its vote"
    assert (c.certain_voters(), b.is_voter) == (("a@a", "c@c"), False)
    me = Identity(broker_id="c", cluster_id="x", address="c", bind="c", named=())
    assert len(status.of(c, me, has_session=True, refused=0)["voters"]) == 2
    group.cut.clear()
    for _ in range(4):
        group.turn()
    assert c.certain_voters() == ("a@a", b.node_id, "c@c")


def test_one_change_of_voters_at_a_time() -> None:
    group = Group("abc")
    group.elect("a")
    group.turn()
    group.turn()
    group.cut |= {("b", "a"), ("c", "a")}
    results: list[Any] = []
    group.nodes["a"].change_voters("rem", "b@b", results.append)
    group.nodes["a"].change_voters("rem", "c@c", results.append)
    assert results[0]["error"]["reason"] == "not_ready"
    assert len(results) == 1, "the first is under way"


def test_a_vote_that_was_never_committed_does_not_end_in_terms_that_nobody_follows() -> None:
    """N5. (Seed 383: its own log said that it had a vote, nobody else's did, and it stood for election for ever.)"""
    group = Group("abc")
    group.elect("a")
    group.turn()
    group.disks["b"] = type(group.disks["b"])()
    group.disks["b"].makedirs("/raft")
    b = group.start("b")
    b.journal.setCurrentTerm(group.nodes["a"].core.raftCurrentTerm, None)
    b.core._SyncObj__raftCurrentTerm = group.nodes["a"].core.raftCurrentTerm
    for entry in (*group.nodes["a"].journal.entries[1:], (b'\x02["add", "%s"]' % b.node_id.encode(), 6, 1)):
        b.journal.add(*entry)  # the last of them is the word of a leader that has failed
    b.tick()
    assert b.is_voter
    b._check_role(0.0)
    term = b.core.raftCurrentTerm
    b.core._SyncObj__raftElectionDeadline = 0
    b.tick()
    assert b.core.raftCurrentTerm == term, "it does not stand"
    b._check_role(7.0)
    assert not b.is_voter, "it listens"
    b._check_role(12.0)
    assert b.is_voter, "and may vote again, in case that others count on it"


def test_the_catalog_does_not_go_back_when_a_vote_comes_or_goes() -> None:
    """N6. Another core takes the place of the one that there was, and begins with the snapshot."""
    group = Group("abc")
    group.elect("a")
    for number in range(3):
        group.submit("a", number)
        group.turn()
    for _ in range(3):
        group.turn()
    b = group.nodes["b"]
    had, last = group.has("b"), b.journal.entries[-1]
    assert len(had) == 3
    b.journal.add(b'\x02["rem", "b@b"]', last[1] + 1, last[2])
    b._check_role(1.0)
    assert not b.is_voter
    assert group.has("b") == had


def test_a_snapshot_that_cannot_be_put_back_ends_the_node() -> None:
    """A9. By itself pysyncobj logs that, and goes on with the old state beside the new log."""
    group = one_that_needs_a_snapshot()

    def refuses(_: Any) -> None:
        raise InvalidRequest("catalog version 99")

    group.nodes["c"].core._snapshots._put = refuses

    def turns() -> None:
        for _ in range(8):
            group.turn()

    with pytest.raises(InvalidRequest, match="version 99"):
        turns()


def test_an_observer_hears_a_leader_whom_its_snapshot_does_not_name() -> None:
    """It was started with that one's id, and the snapshot is of before."""
    group = Group("abc")
    group.disks["b"] = type(group.disks["b"])()
    group.disks["b"].makedirs("/raft")
    group.ids = ("a@a", "b@b", "c9@c")
    b = group.start("b")
    a = group.nodes["a"]
    prev, last = a.journal.entries[-2:]
    sent = encode_transfer(a.catalog.snapshot(), a.voters(), prev, last)
    assert b.core._snapshots._install(sent)
    b.core._SyncObj__loadDumpFile(True)
    assert {node.id for node in b.core.otherNodes} >= {"a@a", "c@c", "c9@c"}


@pytest.mark.parametrize("kind", ["register_producer", "barrier", "change_voters"])
def test_a_command_that_is_nested_too_deep_is_refused_and_ends_no_controller(kind: str) -> None:
    """It could be read where few calls are under way, and not where there are more: catalogs would differ."""
    group = Group("abc")
    group.elect("a")
    deep: Any = 0
    for _ in range(940):
        deep = {"deep": deep}
    command = {"v": 1, "kind": kind, "change": "add", "unknown": deep, "node_id": deep, "request_id": deep}
    group.net.clear()
    group.nodes["a"].core._on_message(Node("b@b"), {"type": "submit", "id": "1", "command": command})
    if kind != "barrier":  # of which nothing but its kind goes into the log
        [(_, _, told)] = group.net
        assert "error" in told["result"]
    assert b"deep" not in b"".join(command for command, _, _ in group.nodes["a"].journal.entries)
    for _ in range(6):
        group.turn()
    assert group.nodes["a"].is_controller
    later = group.submit("a", 1)
    for _ in range(6):
        group.turn()
    assert "ok" in later[0]
    assert group.has("a") == group.has("b") == {"p1"}


def with_a_tail() -> Group:
    """b follows a, and holds two entries at its end that a does not have."""
    group = Group("abc")
    group.elect("a")
    for number in range(3):
        group.submit("a", number)
    for _ in range(6):
        group.turn()
    journal = group.nodes["b"].journal
    for _ in range(2):
        journal.add(b"\x00{}", journal.entries[-1][1] + 1, journal.entries[-1][2])
    journal.sync()
    group.net.clear()
    return group


@pytest.mark.parametrize("is_with_entries", [False, True])
def test_a_message_proves_no_more_than_it_names(is_with_entries: bool) -> None:
    """A2, A3: what stands behind is another leader's, though this one has committed as much."""
    group = with_a_tail()
    b = group.nodes["b"]
    *_, before, prev, _, last = b.journal.entries
    at = before if is_with_entries else prev
    message = {
        "type": "append_entries",
        "cluster": "x",
        "term": b.core.raftCurrentTerm,
        "commit_index": last[1],
        "prevLogIdx": at[1],
        "prevLogTerm": at[2],
        "entries": [prev] if is_with_entries else [],
    }
    b.core._SyncObj__onMessageReceived(Node("a@a"), message)
    assert b.journal.commit_index == prev[1]
    assert len(b.journal.entries) == last[1]
    [(_, _, told)] = group.net
    assert (told["success"], told["next_node_idx"]) == (True, prev[1] + 1)


def test_messages_of_another_cluster_are_not_minded() -> None:
    """Its addresses may be those that this one had."""
    group = with_a_tail()
    b = group.nodes["b"]
    before = (b.core.raftCurrentTerm, b.journal.commit_index, list(b.journal.entries))
    append = {"type": "append_entries", "term": 99, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0, "entries": []}
    vote = {"type": "request_vote", "term": 99, "last_log_index": 99, "last_log_term": 99}
    for message in (append, vote):
        for cluster in ("y", None):
            b.core._SyncObj__onMessageReceived(Node("a@a"), {**message, "cluster": cluster})
    assert (b.core.raftCurrentTerm, b.journal.commit_index, list(b.journal.entries)) == before
    assert not group.net


def test_who_has_no_vote_elects_nobody_and_appends_nothing() -> None:
    """A broker that was removed, or an observer: it is connected, and believes what it does."""
    group = Group("abc")
    core = group.nodes["a"].core
    core._SyncObj__raftElectionDeadline = 0
    group.nodes["a"].tick()
    group.net.clear()
    term, last = core.raftCurrentTerm, group.nodes["a"].journal.entries[-1]
    stranger = Node("d@d")
    core._SyncObj__transport._onReadonlyNodeConnected(stranger)
    for message in (
        {"type": "response_vote", "term": term},
        {"type": "append_entries", "term": term + 9, "commit_index": 1, "prevLogIdx": last[1], "prevLogTerm": last[2]},
    ):
        core._SyncObj__onMessageReceived(stranger, {"cluster": "x", "entries": [], **message})
    assert not group.nodes["a"].is_controller
    assert core.raftCurrentTerm == term
    core._SyncObj__onMessageReceived(Node("b@b"), {"cluster": "x", "type": "response_vote", "term": term})
    assert group.nodes["a"].is_controller


def test_after_a_failure_nothing_is_said_or_taken() -> None:
    """A9: whatever failed, half a state may be there."""
    group = Group("abc")
    group.elect("a")
    group.net.clear()
    core = group.nodes["a"].core
    core.fail(RuntimeError("half a state"))
    assert core.outgoing({"type": "append_entries"}) is None
    told: list[Any] = []
    core.propose({"kind": "register_producer"}, lambda *result: told.append(result))
    assert told[0][0] is None
    core._SyncObj__sendAppendEntries()
    assert not group.net
    assert len(group.nodes["a"].journal.entries) == 5, "the first ones, and that of its term"


def test_there_are_five_voters_at_most() -> None:
    group = Group("abcde")
    group.elect("a")
    group.turn()
    results: list[Any] = []
    group.nodes["a"].change_voters("add", "f@f", results.append)
    assert results[0]["error"]["limit"] == 5


def test_the_journal_of_another_cluster_is_refused() -> None:
    group = Group("abc")
    group.nodes["a"].journal.close()
    with pytest.raises(InvalidRequest, match="is of cluster x, not y"):
        open_journal(group.disks["a"], PATH, new_id=lambda: "n@a", cluster_id="y")


def test_who_has_just_been_elected_refuses_nothing_for_good() -> None:
    """N7. Seen before: after both others were killed, a stream was said not to exist (`make chaos`, 96200)."""
    group = Group("ab")
    group.nodes["a"].core._SyncObj__raftElectionDeadline = 0
    group.nodes["a"].tick()
    group.deliver()
    group.deliver(lambda m: m[1][0] == "a")
    node = group.nodes["a"]
    assert (node.is_controller, node.has_begun) == (True, False)
    results: list[Any] = []
    node.submit({"v": 1, "kind": "delete_stream", "name": "nobody"}, results.append)
    for _ in range(4):
        group.turn()
    assert node.has_begun
    node.submit({"v": 1, "kind": "delete_stream", "name": "nobody"}, results.append)
    assert [each["error"]["reason"] for each in results] == ["not_ready", "unknown_stream"]
    assert [each["error"].get("again", False) for each in results] == [True, False]


def test_what_is_told_goes_to_all_voters_and_says_whether_a_controller_is_among_them() -> None:
    group, told = Group("abc"), list[tuple[str, Any]]()
    for name, node in group.nodes.items():
        node._on_note = lambda note, answer, name=name: told.append((name, note["n"]))  # type: ignore[misc]
    assert not group.nodes["b"].tell({"n": 1}), "nobody is the controller"
    group.elect("a")
    assert group.nodes["a"].tell({"n": 2})
    assert group.nodes["b"].tell({"n": 3})
    group.cut.add(("c", "a"))
    assert not group.nodes["c"].tell({"n": 4}), "it does not reach it"
    group.deliver()
    assert sorted(told) == [(name, n) for name in "abc" for n in (1, 2, 3, 4) if (name, n) != ("a", 4)]
