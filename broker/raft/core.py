"""pysyncobj's Raft, mended where it is not safe. The only module that looks into it, with `snapshots.py` and
`wire.py`.

Messages pass through here in both directions, and what pysyncobj gets to see is only what it handles rightly:

    out   sync the journal ─► stamp with cluster and term ─► send
    in    of this cluster? from a voter? of this term? ─► strip what is held already ─► pysyncobj

Faults of pysyncobj 0.3.17 alone, and what stands against them (each is a mutant of `tests/sim/raft`):

A1  It never syncs. Every message promises something: an entry, a vote, a term. So the journal is synced before any
    is sent, and before anything is applied that only this disk has.
A2  It deletes from the first entry of an append on, also what it has acknowledged before. Entries that are held
    already are stripped; an append without news is turned into a heartbeat at the end of the log, answered as if it
    were not.
A3  A follower commits up to the end of its log, whether the leader has that. The commit index of a message counts
    up to the last entry that the message proves to be the same.
A4  Replies to appends carry no term. Ours do, and those of an earlier term are dropped.
A5  A late reset sends the leader back below what the follower has acknowledged. It is dropped.
A6  A vote that comes twice counts twice. Each voter counts once a term.
A7  Membership is unpickled, re-done when applied, and several changes may be under way. It is JSON, takes effect in
    the log alone, is counted from the journal at the start, and one at a time.
A8  It applies pickled calls of methods. A command is JSON here; whatever it does, it does not raise.
A9  An error half-way leaves it running on half a state: one in a snapshot that arrives is logged, and no more. Here it
    ends: `failure` is set, and nothing is sent any more.
A10  Where logs part it steps back by one entry for each round trip, and sends all that follows each time: a deposed
    leader with a tail of its own was without the group for a minute. Entries that stand against the leader's log are
    cut at once, and the answer says how far back the two may part: at the first entry of that term, or after the
    last one that is committed here.
A11  It takes a message apart as it comes: one without a term ends the process. One that does not have its shape
    (`messages.py`) ends the connection that it came by, and nothing else.
A12  It writes what it has not asked for room for: on a full disk it ends. A leader refuses a command for which its
    journal has no room, one that lets the catalog grow (`room.py`) before all others: those leave half of its room. A
    follower takes what fits, and the rest of
    the message for a heartbeat.
A13  It sends each command by itself, and that is an fsync of every voter. Here all that are put in the log between two
    ticks go out with the next one, in one message: many that come at once share their fsyncs. Not if it leads no more
    by then: they would go out as those of another's term.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import pysyncobj.syncobj as library
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.poller import POLL_EVENT_TYPE

from broker.api.errors import DiskFull, LiftlogError, StorageFailed
from broker.api.plain import parse_json
from broker.metadata.room import grows
from broker.raft.journal import Entry, Journal
from broker.raft.messages import MEMBERSHIP, NO_OP, REGULAR, membership, misfit
from broker.raft.snapshots import BadSnapshot, Snapshots
from broker.raft.votes import Votes

COMMAND_BYTES_MAX: Final = 8 << 20
"""A command that is longer is refused: it would be sent in pieces that pysyncobj puts together carelessly."""
ENTRY_BYTES: Final = 32
"""Most bytes of an entry's record besides its command."""
BATCH_BYTES: Final = 2 * COMMAND_BYTES_MAX
Callback = Callable[[Any, int], None]
_building = threading.Lock()


class Core(SyncObj):  # type: ignore[misc]
    """One voter, or an observer without a vote.

    Args:
        journal: Opened; its base says who this is, its entries who the voters are.
        apply: Takes a command, returns its result. take, put: The state as JSON values, and back. check: Raises
            ValueError for JSON values that are no state.
        transport: A class of transports, guarded (`wire.guarded`).
        node: Makes nodes of ids.
        conf: Without files; those are ours.
        seeds: Voters that an observer asks beside those that its log names.
        is_voter: Otherwise it follows without a vote, whatever the log says.
        greeted: Answers who asks without taking part (`greeting.py`).
        refused: Told of connections that were cut, and of brokers that are not taken: from where or who, and why.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        apply: Callable[[Mapping[str, Any]], Any],
        take: Callable[[], Any],
        put: Callable[[Any], None],
        check: Callable[[Any], None] = lambda state: None,
        transport: type,
        node: Callable[[str], Node],
        conf: SyncObjConf,
        on_message: Callable[[Node, dict[str, Any]], None] | None = None,
        seeds: Sequence[str] = (),
        is_voter: bool = True,
        greeted: Callable[[dict[str, Any]], dict[str, Any]] = lambda hello: {},
        refused: Callable[[str, str], None] = lambda peer, why: None,
    ) -> None:
        self.journal, self._voting = journal, Votes(journal)
        self.greeted, self.refused = greeted, refused
        self.failure: BaseException | None = None
        self._apply = apply
        self._on_message = on_message
        self._node = node
        self.is_passive = False  # it does not stand for election
        self._is_putting = self._is_due = False  # A13
        self._next_told: int | None = None
        self._parts_at: int | None = None
        self._votes: set[tuple[int, str]] = set()
        self._check = check
        self._snapshots = Snapshots(
            journal, take=take, put=put, check=self._check_snapshot, voters_at=self.voters_at, others=self._others
        )
        me = journal.base.node_id
        last = journal.entries[-1][1] if journal.entries else 0
        voters = self.voters_at(last)
        is_voter = is_voter and me in voters
        self._seeds = () if is_voter else tuple(seeds)  # its log may be the beginning of one
        with _building:  # its two factories are replaced while it is built
            kept = library.createJournal, library.Serializer
            library.createJournal, library.Serializer = (lambda _: journal), (lambda *_: self._snapshots)
            try:
                super().__init__(
                    node(me) if is_voter else None,
                    self._others(),
                    conf=conf,
                    nodeClass=node,
                    transportClass=transport,
                )
            finally:
                library.createJournal, library.Serializer = kept
        if journal.base.snapshot is not None:
            self._SyncObj__loadDumpFile(False)

    # -- what is driven ---------------------------------------------------------------------------------------

    def tick(self, wait_s: float = 0.0) -> None:
        """Take what has come and what is due. Raises what made this voter fail, at once and ever after (A9)."""
        if self.failure is None:
            try:
                if self._is_due and self._isLeader():
                    self._SyncObj__sendAppendEntries()
                self._is_due = False
                if self.journal.is_crowded:
                    self.forceLogCompaction()
                if self.is_passive:
                    self._SyncObj__raftElectionDeadline = library.monotonicTime() + 1.0
                self.doTick(wait_s)
            except Exception as error:
                self.fail(error)
        if self.failure is not None:
            raise self.failure

    def expect_leader(self) -> None:
        """Wait for a leader, from now on, as long as the settings say by now."""
        self._SyncObj__raftElectionDeadline = library.monotonicTime() + self._SyncObj__generateRaftTimeout()

    def was_away(self, away_s: float) -> None:
        """Count so many seconds for no silence of a leader; after them it has the shortest time at most."""
        deadline_s: float = self._SyncObj__raftElectionDeadline
        soon_s = library.monotonicTime() + self.conf.raftMinTimeout
        self._SyncObj__raftElectionDeadline = max(deadline_s, min(deadline_s + away_s, soon_s))

    def catch_up(self) -> None:
        """Apply what this process has known to be committed, before anybody looks at the state."""
        try:
            self._SyncObj__applyLogEntries()
        except Exception as error:
            self.fail(error)

    def wake_on(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Have `tick` stop waiting, and call back, when something can be read there."""
        self._poller.subscribe(descriptor, lambda *_: callback(), POLL_EVENT_TYPE.READ)

    def destroy(self) -> None:
        """Let go of sockets and pipes. The journal stays."""
        self._doDestroy()
        notifier = self.__dict__.pop("_SyncObj__pipeNotifier", None)
        for end in ("R", "W"):
            if notifier is not None:
                os.close(getattr(notifier, f"_PipeNotifier__pipe{end}"))

    @property
    def has_begun(self) -> bool:
        """Whether this leads, and has applied the first entry of its term: it then knows all that was committed."""
        return bool(self._isLeader()) and self.raftLastApplied >= (self._SyncObj__noopIDx or 0)

    def fail(self, error: BaseException) -> None:
        """Say and do nothing any more (A9)."""
        if self.failure is None:
            self.failure = error

    def propose(self, command: Mapping[str, Any], callback: Callback) -> None:
        """Put a command into the log, if this is the leader; the callback gets its result, or a reason why not."""
        text = json.dumps(command, separators=(",", ":")).encode()
        if len(text) > COMMAND_BYTES_MAX:
            raise LiftlogError(f"a command of {len(text)} bytes; {COMMAND_BYTES_MAX} are allowed")
        if self._isLeader() and not self._makes_room(len(text), grows=grows(command)):
            raise DiskFull(
                "the disk of the controller is full, and its journal has no room for this command; what makes room"
                " (trim, delete, a shorter retention) still has"
            )
        self._put_in_log(REGULAR + text, callback)

    def change_voters(self, kind: str, node_id: str, callback: Callback) -> None:
        """Add (`add`) or remove (`rem`) a voter, if this is the leader and no other change is under way (A7)."""
        under_way = [entry for entry in self.journal.entries if entry[1] > self.raftLastApplied]
        if any(entry[0][:1] == MEMBERSHIP for entry in under_way):
            callback(None, FAIL_REASON.REQUEST_DENIED)
            return
        self._put_in_log(MEMBERSHIP + json.dumps([kind, node_id]).encode(), callback)

    def _put_in_log(self, command: bytes, callback: Callback) -> None:
        if self.failure is None and self._isLeader():
            self._applyCommand(command, callback)
            self._is_putting = True
            try:
                self._checkCommandsToApply()
            except Exception as error:
                self.fail(error)
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)
            finally:
                self._is_putting = False
        else:
            callback(None, FAIL_REASON.NOT_LEADER)

    def _makes_room(self, byte_count: int, *, grows: bool = False) -> bool:
        """`Journal.makes_room`, for an entry of so many bytes (A12)."""
        try:
            return self.journal.makes_room(byte_count + ENTRY_BYTES, grows=grows)
        except StorageFailed as error:
            self.fail(error)
            return True  # it fails

    def voters_at(self, index: int) -> tuple[str, ...]:
        """The ids of the voters as of an entry of the log (A7)."""
        return self._voting.at(index)

    def committed_voters(self) -> tuple[str, ...]:
        """The ids of those whose vote is known to be committed here; the first voters' is from the start."""
        first = max((entry[1] for entry in takewhile(lambda entry: entry[2] == 0, self.journal.entries)), default=0)
        return self.voters_at(max(first, self.raftLastApplied))

    def _others(self) -> list[Node]:
        """The nodes that it hears. An observer hears those too that it was started with: a snapshot names the voters of
        its own time, and the leader may have become one since."""
        me, last = self.journal.base.node_id, self.journal.entries[-1][1] if self.journal.entries else 0
        return [self._node(voter) for voter in sorted({*self.voters_at(last), *self._seeds}) if voter != me]

    def is_node_id(self, text: str) -> bool:
        """Whether a text can be the id of a voter: one that is none would end whoever makes a node of it."""
        try:
            self._node(text)
        except ValueError:
            return False
        return True

    def reaches(self, voter: str) -> bool:
        """Whether there is a connection with another one."""
        return bool(self.isNodeConnected(self._node(voter)))

    # -- out --------------------------------------------------------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:
        """A13."""
        self._is_due = self._is_putting
        if not self._is_putting:
            super()._SyncObj__sendAppendEntries()

    def outgoing(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The message to send instead; None: nothing."""
        if self.failure is not None:
            return None
        try:
            self.journal.sync()  # A1
        except StorageFailed as error:
            self.fail(error)
            return None
        message = {**message, "cluster": self.journal.base.cluster_id}
        if message["type"] == "next_node_idx":
            message["term"] = self.raftCurrentTerm  # A4
            if self._parts_at is not None:
                message |= {"success": False, "reset": True, "next_node_idx": self._parts_at}
            elif self._next_told is not None and message["success"]:
                message["next_node_idx"] = self._next_told
        return message

    # -- in ---------------------------------------------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: Node, message: Any) -> None:
        if self.failure is not None:
            return
        if isinstance(message, dict) and message.get("cluster") != self.journal.base.cluster_id:
            return
        if (why := misfit(message, is_node_id=self.is_node_id)) is not None:  # A11
            self._cut(node, why)
            return
        try:
            self._receive(node, message)
        except BadSnapshot as error:
            self._cut(node, f"a snapshot that cannot be read: {error}")
        except Exception as error:
            self.fail(error)

    def _cut(self, node: Node, why: str) -> None:
        self.refused(str(node.id), why)
        self._SyncObj__transport.cut(node)

    def _check_snapshot(self, state: Any, voters: tuple[Any, ...]) -> None:
        if not all(isinstance(voter, str) and self.is_node_id(voter) for voter in voters):
            raise ValueError(f"voters {voters!r:.200}")
        self._check(state)

    def _receive(self, node: Node, message: dict[str, Any]) -> None:
        is_voter = node in self.otherNodes
        match message.get("type"):
            case "append_entries" if is_voter:
                self._append(node, message)
            case "request_vote" if is_voter:
                self._deliver(node, message)
            case "response_vote" if is_voter and (message["term"], node.id) not in self._votes:
                if message["term"] == self.raftCurrentTerm:
                    self._votes = {vote for vote in self._votes if vote[0] == message["term"]}
                    self._votes.add((message["term"], node.id))  # A6
                    self._deliver(node, message)
            case "next_node_idx" if is_voter or node in self.readonlyNodes:
                self._reply(node, message)
            case "submit" | "submitted" | "note" if self._on_message is not None:
                self._on_message(node, message)

    def _deliver(self, node: Node, message: dict[str, Any]) -> None:
        super()._SyncObj__onMessageReceived(node, message)

    def _reply(self, node: Node, message: dict[str, Any]) -> None:
        match = self._SyncObj__raftMatchIndex.get(node)
        if not self._isLeader() or message["term"] != self.raftCurrentTerm or match is None:  # A4
            return
        end = self.journal.entries[-1][1] + 1
        if message["reset"] and not message["success"]:
            if message["next_node_idx"] <= match:  # A5
                self._SyncObj__lastResponseTime[node] = library.monotonicTime()
                return
            message = {**message, "next_node_idx": max(1, min(message["next_node_idx"], end))}
        elif message["next_node_idx"] > end:
            return
        self._deliver(node, message)

    def _append(self, node: Node, message: dict[str, Any]) -> None:
        journal = self.journal
        if message["term"] < self.raftCurrentTerm or "transmission" in message:
            return
        if "prevLogIdx" not in message:  # a piece of a snapshot proves nothing of this log (A3)
            self._deliver(node, {**message, "commit_index": journal.commit_index})
            return
        prev, term, entries = message["prevLogIdx"], message["prevLogTerm"], message["entries"]
        if prev is None or any(entry[1] != prev + 1 + i for i, entry in enumerate(entries)):
            return
        first, last = journal.entries[0], journal.entries[-1]
        own = journal.entry_at(prev)
        if own is not None and own[2] != term and prev > max(first[1], journal.commit_index):
            self._part(node, message, own)
            return
        if prev >= first[1] and (own is None or own[2] != term):
            self._deliver(node, message)  # answered with a reset, and nothing else
            return
        # A2: up to the first entry all is in the snapshot, and committed; what is held with the same term is the same.
        held = prev
        while entries and (entries[0][1] <= first[1] or _is_held(journal, entries[0])):
            held = entries[0][1]
            entries = entries[1:]
        while entries and not self._makes_room(sum(len(entry[0]) + ENTRY_BYTES for entry in entries)):  # A12
            entries = entries[: len(entries) // 2]
        if entries:
            at = journal.entry_at(held)
            assert at is not None, "the entry before the first new one is held"
            self._deliver(node, {**message, "prevLogIdx": at[1], "prevLogTerm": at[2], "entries": entries})
            return
        commit = min(message["commit_index"], max(held, journal.commit_index))  # A3
        self._next_told = held + 1
        try:
            at_end = {"prevLogIdx": last[1], "prevLogTerm": last[2], "entries": [], "commit_index": commit}
            self._deliver(node, {**message, **at_end})
        finally:
            self._next_told = None

    def _part(self, node: Node, message: dict[str, Any], own: Entry) -> None:
        """A10. The leader has another entry at the place of `own`: this one, and all after it, was never committed."""
        journal = self.journal
        kept = journal.entry_at(own[1] - 1)
        assert kept is not None, "the first entry is committed"
        began = next(entry[1] for entry in journal.entries if entry[2] == own[2])
        self._parts_at = max(began, journal.commit_index + 1)
        try:
            at = {"prevLogIdx": kept[1], "prevLogTerm": kept[2], "entries": [], "commit_index": journal.commit_index}
            self._deliver(node, {**message, **at})
        finally:
            self._parts_at = None

    # -- what pysyncobj calls ---------------------------------------------------------------------------------

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """A9."""
        super()._SyncObj__loadDumpFile(clearJournal)
        if self._snapshots.failure is not None:
            raise self._snapshots.failure
        assert self.raftLastApplied == self.journal.entries[1][1], "the snapshot was not loaded"

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        """A8. Membership has taken effect already (A7)."""
        if command[:1] != REGULAR:
            return None
        try:
            return self._apply(parse_json(command[1:]))
        except Exception as error:  # the same on every broker, as are the command and the state
            return {"error": LiftlogError(f"the command broke the catalog: {error!r}").to_problem()}

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> list[Any] | None:
        change = membership(command)
        return None if change is None else [*change, self._node(change[1])]


def first_entries(voters: Sequence[str], *, index: int = 1) -> list[Entry]:
    """Entries that the logs of the first voters begin with, so that each reader knows who they are (A7)."""
    add = [MEMBERSHIP + json.dumps(["add", voter]).encode() for voter in voters]
    return [(command, at, 0) for at, command in enumerate([NO_OP, *add], index)]


def voters_in(journal: Journal, index: int) -> tuple[str, ...]:
    """The ids of the voters as of an entry, by this log (A7)."""
    return Votes(journal).at(index)


def commands_in(journal: Journal) -> list[dict[str, Any]]:
    """The commands that follow a journal's snapshot, if it has one, committed or not."""
    after = journal.entries[0 if journal.base.snapshot is None else 2 :]
    return [parse_json(command[1:]) for command, _, _ in after if command[:1] == REGULAR]


def first_voters(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The voters that `first_entries` was given, as long as no snapshot has taken those entries in."""
    changes = [membership(command) for command, _, term in entries if term == 0]
    return tuple(change[1] for change in changes if change is not None)


def _is_held(journal: Journal, entry: Any) -> bool:
    own = journal.entry_at(entry[1])
    return own is not None and own[2] == entry[2]
