"""One broker's part in the Raft group: a voter, or an observer that follows without a vote.

    submit ─► leader here?  yes: judge ─► log ─► replicate ─► apply ─► result
                            no:  to the leader, which does that and answers
    read   ─► the same with a command that changes nothing, then wait until it is applied here

N1  A command is judged by the leader before it is logged; refused ones are not. Where it stands it is judged again.
N2  Each submission is answered once: with a result, or with an error that says whether it may have been done
    (`sent`).
N3  A voter whose journal is missing or damaged comes back under another id, as an observer. It asks for a vote only
    after the old id has been removed: with both, a majority could be one that has lost what was acknowledged.
N4  The leader of the group is the controller. A former one may believe so for another `fallback_s`, or longer (N9);
    `read` does not.
N5  A node that is a voter by its log alone, and does not know that this is committed, votes and does not stand for
    election: its terms would be higher than those of a group that does not know it. By turns it follows without a
    vote, so that it learns how its log should be.

N6  Within a process the catalog never goes back, whatever becomes of its vote.
N7  A leader that has just been elected may lack what was committed before: it refuses nothing for good until it has it.
N8  A timely command is carried out before its time is up, or never, wherever it lay meanwhile. The broker that asks
    counts by the controller's clock: it knows from stamps how much that is ahead of its own, by less than it is. A
    stamp is of one term, and no other controller takes the command.
N9  How long a leader, a majority or a connection may be silent grows with the partitions in this node's own catalog
    (`session.slower`): one command may concern all of them, and takes its time on each broker. The nodes need not agree
    on it; an election that begins too early or late breaks nothing. A turn of this node itself that takes long is
    nobody's silence: of each `_TURN_S` count. (A follower that is always slow still elects.)

A node is driven: `tick` from one thread, which is also the only one that calls anything else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pysyncobj import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node

from broker.api.errors import CorruptLog, DeadlineExceeded, InvalidRequest, LiftlogError, NotReady
from broker.metadata.catalog import Catalog
from broker.metadata.session import slower
from broker.metadata.voting import VOTERS_MAX
from broker.raft.core import BATCH_BYTES, Core, commands_in, first_entries
from broker.raft.journal import Base, Journal
from broker.storage.disk import FixedDisk

SUBMIT_TIMEOUT_S: Final = 5.0
BARRIER: Final = "barrier"
CHANGE_VOTERS: Final = "change_voters"
_CHECK_S: Final = 0.25
_TURN_S: Final = 0.25
_SILENCES: Final = ("raftMinTimeout", "raftMaxTimeout", "leaderFallbackTimeout", "connectionTimeout")
"""Settings of pysyncobj that N9 is about."""
PENDING_S: Final = 5.0
"""So long who may have a vote acts as if it had, and so long as if it had not, until it knows (N5)."""
Done = Callable[[Any], None]
"""Gets a result ({"ok": ...} or {"error": problem}), or a LiftlogError if there is none."""
Answer = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class Submission:
    """A submission that is under way. `index`: applied here once the log is applied up to there; 0: not known."""

    done: Done
    deadline_s: float
    result: Any = None
    index: int = 0


def configuration(
    *, secret: str | None = None, bind: str | None = None, fallback_s: float = 2.0, **others: Any
) -> SyncObjConf:
    """pysyncobj's settings: short times, no files, no threads of its own."""
    values = {
        "autoTick": False,
        "password": secret,
        "bindAddress": bind,
        "maxBindRetries": 1,
        "dynamicMembershipChange": True,
        "commandsWaitLeader": False,
        "appendEntriesUseBatch": False,
        "appendEntriesBatchSizeBytes": BATCH_BYTES,
        "raftMinTimeout": 0.5,
        "raftMaxTimeout": 1.0,
        "leaderFallbackTimeout": fallback_s,
        "connectionTimeout": 3.0,
        "connectionRetryTime": 0.25,
        "useFork": False,
    }
    return SyncObjConf(**{**values, **others})


def open_journal(
    disk: FixedDisk, path: str, *, new_id: Callable[[], str], cluster_id: str, room_bytes: int = 0
) -> tuple[Journal, bool]:
    """This broker's journal, and whether it was sound. One that is not is put aside, and with it the id (N3).

    Args:
        new_id: Makes the id of a new observer.
        room_bytes: As `Journal.open` takes it.
    Raises:
        InvalidRequest: it is of another cluster. StorageFailed, DiskFull: the disk refused.
    """
    if disk.exists(path):
        try:
            journal = Journal.open(disk, path, room_bytes=room_bytes)
        except CorruptLog:
            disk.rename(path, f"{path}.damaged")
            disk.sync_dir(path.rpartition("/")[0])
        else:
            if journal.base.cluster_id != cluster_id:
                raise InvalidRequest(f"{path} is of cluster {journal.base.cluster_id}, not {cluster_id}")
            return journal, True
    return Journal.create(disk, path, Base(node_id=new_id(), cluster_id=cluster_id), room_bytes=room_bytes), False


def form(disk: FixedDisk, path: str, *, node_id: str, voters: tuple[str, ...], cluster_id: str) -> Journal:
    """The journal of one of the first voters; each of them begins with the same `voters`, in the same order."""
    return Journal.create(disk, path, Base(node_id=node_id, cluster_id=cluster_id), first_entries(voters))


def catalog_in(journal: Journal) -> Catalog:
    """The catalog that a journal makes by itself: all that it has, whether or not it is known to be committed."""
    snapshot = journal.base.snapshot
    catalog = Catalog() if snapshot is None else Catalog.restore(snapshot)
    for command in commands_in(journal):
        if command.get("kind") != BARRIER:
            catalog.apply(command)
    return catalog


class RaftNode:
    """See the module.

    Args:
        journal: The voter's or observer's. seeds: Ids of voters, for an observer that knows nobody yet.
        transport, node: As `Core` takes them.
        clock: Monotonic, in seconds. It counts while the machine sleeps: so the stamps of other brokers hold (N8).
        life: Names this process and no other: an answer to a former one is not taken for one to this.
        on_applied: Called with each command that was applied, and with None when `catalog` is another one; never while
            it is put together anew. It must not raise.
        on_note: Gets what `note` was given on another broker, and a function that answers there.
        wakeup: The descriptor of an eventfd; `tick` stops waiting once it is written to.
        told: `greeted` and `refused`, as `Core` takes them.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        transport: type,
        node: Callable[[str], Node],
        conf: SyncObjConf,
        clock: Callable[[], float],
        life: str,
        seeds: tuple[str, ...] = (),
        on_applied: Callable[[Mapping[str, Any] | None], None] = lambda command: None,
        on_note: Callable[[dict[str, Any], Answer], None] = lambda note, answer: None,
        wakeup: int | None = None,
        **told: Any,
    ) -> None:
        self.journal = journal
        self._on_applied = on_applied
        self._on_note = on_note
        self._wakeup = wakeup
        self._is_building = True
        self._conf = conf
        self._silences_s: dict[str, float] = {each: getattr(conf, each) for each in _SILENCES}
        self.catalog = Catalog()
        self._restored: tuple[Any, Catalog] | None = None
        self._options: dict[str, Any] = {"transport": transport, "node": node, "conf": conf, "seeds": seeds, **told}
        self._clock = clock
        self._life = life
        self._waiting: dict[str, Submission] = {}
        self._stamp: tuple[int, float] | None = None  # a term, and how much its leader's clock is ahead, at least (N8)
        self._last_id = 0
        self._check_at_s = 0.0
        self._pending_since_s = clock()
        self.core = self._build()
        self._is_building = False

    def _build(self, *, is_voter: bool = True) -> Core:
        self.catalog = Catalog()
        core = Core(
            self.journal,
            is_voter=is_voter,
            apply=self._apply,
            take=lambda: self.catalog.snapshot(),
            put=self._put,
            check=self._check,
            on_message=self._on_message,
            **self._options,
        )
        if self._wakeup is not None:
            core.wake_on(self._wakeup, self._woken)
        if self._wait_longer() > 1.0:
            core.expect_leader()
        return core

    def _wait_longer(self) -> float:
        """N9. Returns how many times as long."""
        times = slower(len(self.catalog.cluster.partitions))
        for each, silence_s in self._silences_s.items():
            setattr(self._conf, each, times * silence_s)
        return times

    def _woken(self) -> None:
        if self._wakeup is not None:
            os.eventfd_read(self._wakeup)

    def _apply(self, command: Mapping[str, Any]) -> Any:
        if command.get("kind") == BARRIER:
            return {"ok": {"index": self.core.raftLastApplied + 1}}
        result = self.catalog.apply(command)
        self._applied(command)
        return result

    def _check(self, snapshot: Any) -> None:
        """Raise ValueError for what is no catalog, or can be no snapshot again; `_put` takes what was made of one."""
        try:
            restored = Catalog.restore(snapshot)
            json.dumps(restored.snapshot())
        except (LiftlogError, AttributeError, LookupError, TypeError, ArithmeticError) as error:
            raise ValueError(f"no catalog: {error!r:.200}") from error
        self._restored = snapshot, restored

    def _put(self, snapshot: Any) -> None:
        restored, self._restored = self._restored, None
        self.catalog = restored[1] if restored and restored[0] is snapshot else Catalog.restore(snapshot)
        self._applied(None)

    def _applied(self, command: Mapping[str, Any] | None) -> None:
        if not self._is_building:
            self._on_applied(command)

    # -- who is who -------------------------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        """Up to which index the catalog is applied."""
        return int(self.core.raftLastApplied)

    @property
    def node_id(self) -> str:
        """This broker's id in the group; another after its journal was lost."""
        return self.journal.base.node_id

    @property
    def is_voter(self) -> bool:
        """Whether it has a vote."""
        return self.core.selfNode is not None

    @property
    def is_controller(self) -> bool:
        """Whether it believes that it leads the group (N4)."""
        return self.core.failure is None and bool(self.core._isLeader())

    @property
    def controller(self) -> str | None:
        """The id of the controller, as far as it is known here."""
        leader = self.core._getLeader()
        return None if leader is None else str(leader.id)

    def voters(self) -> tuple[str, ...]:
        """The ids of the voters, by this broker's log."""
        return self.core.voters_at(self.journal.entries[-1][1])

    def certain_voters(self) -> tuple[str, ...]:
        """The ids whose vote is known here to be committed. One that is not yet may be unknown to its own broker."""
        return self.core.committed_voters()

    def reaches(self, voter: str) -> bool:
        """Whether there is a connection with it; with itself there always is."""
        return voter == self.node_id or bool(self.core.reaches(voter))

    # -- what is driven ---------------------------------------------------------------------------------------

    def tick(self, wait_s: float = 0.0) -> None:
        """Take what has come and what is due. Raises what made this node fail; it says nothing more then."""
        began_s = self._clock()
        try:
            self.core.tick(wait_s)
        except Exception:
            for number in list(self._waiting):
                self._answer(number, _unknown("the Raft journal failed"))
            raise
        now_s = self._clock()
        if (away_s := now_s - began_s - wait_s - _TURN_S) > 0:  # N9
            self._wait_longer()
            self.core.was_away(away_s)
        for number, waiting in list(self._waiting.items()):
            if waiting.index and self.core.raftLastApplied >= waiting.index:
                self._answer(number, waiting.result)
            elif now_s > waiting.deadline_s:
                self._answer(number, _unknown("no answer in time"))
        if now_s >= self._check_at_s:
            self._check_at_s = now_s + _CHECK_S
            self._check_role(now_s)
            self._wait_longer()

    def _check_role(self, now_s: float) -> None:
        """N5."""
        was_pending = self.core.is_passive
        has_vote = self.node_id in self.voters()
        self.core.is_passive = has_vote and self.node_id not in self.certain_voters()
        if not self.core.is_passive:
            self._pending_since_s = now_s
            if was_pending and has_vote:
                self.core.forceLogCompaction()  # from then on the journal begins with its vote
        turn = int((now_s - self._pending_since_s) / PENDING_S)
        if (has_vote and turn % 2 == 0) != self.is_voter:
            is_passive = self.core.is_passive
            self.core.destroy()
            self._is_building = True
            self.core = self._build(is_voter=has_vote and turn % 2 == 0)
            self.core.is_passive = is_passive
            self.core.catch_up()  # N6
            self._is_building = False
            self._applied(None)

    def close(self) -> None:
        """Say and take nothing any more."""
        self.core.destroy()
        self.journal.close()

    def submit(
        self, command: Mapping[str, Any], done: Done, *, timeout_s: float = SUBMIT_TIMEOUT_S, timely: bool = False
    ) -> None:
        """Have the group carry out a command; `done` is called once (N2), perhaps before this returns.

        Args:
            timely: Not after `timeout_s` (N8). It is refused while no clock is known.
        """
        self._last_id += 1
        number = f"{self._life}/{self._last_id}"
        deadline_s = self._clock() + timeout_s
        self._waiting[number] = Submission(done, deadline_s)
        leader = self.core._getLeader()
        message: dict[str, Any] = {"type": "submit", "id": number, "command": dict(command)}
        if timely and self._stamp is not None and self._stamp[0] == self.term:
            message["until"] = [self.term, self._stamp[1] + deadline_s]
        if timely and timeout_s <= 0:
            self._answer(number, NotReady("the command came too late, and was not carried out"))
        elif self.is_controller:
            self._lead(command, lambda result: self._arrived(number, result))
        elif leader is None:
            self._answer(number, NotReady("the cluster has no controller at the moment"))
        elif timely and "until" not in message:
            self._answer(number, NotReady("the clock of the controller is not known here yet"))
        elif not self._send(leader, message):
            self._answer(number, NotReady("the controller cannot be reached at the moment"))

    def read(self, done: Done, *, timeout_s: float = SUBMIT_TIMEOUT_S) -> None:
        """Call `done` once this broker's catalog has all that was acknowledged before this call."""
        self.submit({"kind": BARRIER}, done, timeout_s=timeout_s)

    def change_voters(self, change: str, node_id: str, done: Done) -> None:
        """Have a voter added (`add`) or removed (`rem`)."""
        self.submit({"kind": CHANGE_VOTERS, "change": change, "node_id": node_id}, done)

    def lead(self, command: Mapping[str, Any], done: Callable[[Mapping[str, Any] | None], None]) -> None:
        """As controller: put a command into this broker's own log, and never send it on. `done` is called once it is
        applied here, with its result; or with None: it is not known what becomes of it."""
        if not self.is_controller:
            done(None)
            return
        self._lead(command, lambda result: done(None if isinstance(result, LiftlogError) else result))

    def note(self, note: Mapping[str, Any]) -> bool:
        """Have the controller's `on_note` called, wherever that is; perhaps at once. A note may be lost in silence.

        Returns:
            Whether somebody is known who may be the controller.
        """
        leader = self.core._getLeader()
        if self.is_controller:
            self._on_note(dict(note), lambda answer: self._on_note(dict(answer), lambda _: None))
            return True
        return leader is not None and self._send(leader, {"type": "note", "note": dict(note)})

    def tell(self, note: Mapping[str, Any]) -> bool:
        """As `note`, for every voter, and this node. Nobody answers.

        Returns:
            Whether it is on its way to somebody who may be the controller.
        """
        self._on_note(dict(note), lambda answer: None)
        sent = {node for node in self.core.otherNodes if self._send(node, {"type": "note", "note": dict(note)})}
        return self.is_controller or self.core._getLeader() in sent

    def stamp(self) -> list[float]:
        """The term and the clock here, for `heed` on another broker (N8)."""
        return [self.term, self._clock()]

    def heed(self, stamp: Any) -> None:
        """Take the stamp of a controller; older than now, by as long as it was on its way. Not of a former one."""
        if _is_time(stamp) and (self._stamp is None or stamp[0] >= self._stamp[0]):
            self._stamp = stamp[0], stamp[1] - self._clock()

    @property
    def has_begun(self) -> bool:
        """Whether it leads, and its catalog has all that was committed in earlier terms."""
        return self.core.failure is None and self.core.has_begun

    @property
    def term(self) -> int:
        """Raft's, as this broker knows it."""
        return int(self.core.raftCurrentTerm)

    # -- the controller's side --------------------------------------------------------------------------------

    def _lead(self, command: Mapping[str, Any], tell: Done) -> None:
        kind = command.get("kind")
        try:
            if kind == CHANGE_VOTERS:
                self._change(command, tell)
                return
            if kind != BARRIER:
                known = self.catalog.answered(command)
                if known is not None:
                    tell(known)
                    return
                self._judge(command)
            else:
                command = {"kind": BARRIER}
            self.core.propose(command, lambda result, why: tell(_outcome(result, why)))
        except LiftlogError as error:
            tell({"error": error.to_problem()})

    def _judge(self, command: Mapping[str, Any]) -> None:
        """N1, N7."""
        try:
            self.catalog.check(command)
        except LiftlogError as error:
            if not self.has_begun:
                begun = "the controller has just begun: it does not know all that was committed yet"
                raise NotReady(begun, again=True) from None
            if command.get("kind") == "register_broker":
                broker = command.get("broker_id")
                self.core.refused(f"broker {broker[:100]}" if isinstance(broker, str) else "a broker", error.message)
            raise

    def _change(self, command: Mapping[str, Any], tell: Done) -> None:
        change, node_id, voters = command.get("change"), command.get("node_id"), self.voters()
        if change not in ("add", "rem") or not isinstance(node_id, str) or not self.core.is_node_id(node_id):
            raise InvalidRequest("malformed command: change is add or rem, node_id the id of a voter")
        if (node_id in voters) == (change == "add"):
            tell({"ok": {"voters": list(voters)}})
            return
        if change == "add":
            if len(voters) >= VOTERS_MAX:
                raise InvalidRequest(f"there are {len(voters)} voters, {VOTERS_MAX} are allowed", limit=VOTERS_MAX)
            address = node_id.partition("@")[2]
            if address and any(voter.partition("@")[2] == address for voter in voters):  # N3
                raise NotReady(f"another id at {address} still has a vote: remove it first")
        self.core.change_voters(change, node_id, lambda _, why: tell(_outcome({"ok": {}}, why)))

    def _on_message(self, node: Node, message: dict[str, Any]) -> None:
        number = message.get("id")
        if message["type"] == "note":
            if isinstance(note := message.get("note"), dict):
                self._on_note(note, lambda answer: self._send_note(node, answer))
            return
        if message["type"] == "submitted":
            if isinstance(number, str) and isinstance(message.get("result"), dict):
                self._arrived(number, message["result"])
            return
        command = message.get("command")
        if not isinstance(command, dict):
            return

        def tell(result: Any) -> None:
            if not isinstance(result, LiftlogError):
                self._send(node, {"type": "submitted", "id": number, "result": result})

        if self.is_controller and self._is_in_time(message.get("until")):
            self._lead(command, tell)
        elif self.is_controller:
            tell({"error": NotReady("the command came too late, and was not carried out", again=True).to_problem()})

    def _is_in_time(self, until: Any) -> bool:
        """N8."""
        return until is None or (_is_time(until) and until[0] == self.term and self._clock() <= until[1])

    def _send(self, node: Node, message: dict[str, Any]) -> bool:
        return bool(self.core._SyncObj__transport.send(node, message))

    def _send_note(self, node: Node, note: Mapping[str, Any]) -> None:
        self._send(node, {"type": "note", "note": dict(note)})

    # -- answers ----------------------------------------------------------------------------------------------

    def _arrived(self, number: str, result: Any) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        index = result["ok"].get("index") if isinstance(result, dict) and isinstance(result.get("ok"), dict) else None
        if isinstance(index, int) and index > self.core.raftLastApplied:
            waiting.index, waiting.result = index, result
        else:
            self._answer(number, result)

    def _answer(self, number: str, result: Any) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.done(result)


def _outcome(result: Any, why: int) -> Any:
    if why == FAIL_REASON.SUCCESS:
        return result
    if why in (FAIL_REASON.LEADER_CHANGED, FAIL_REASON.UNKNOWN_OUTCOME):
        return _unknown("the controller has changed")
    busy = NotReady("the controller has changed, or is busy with another change", again=True)
    return {"error": busy.to_problem()}


def _is_time(value: Any) -> bool:
    """Whether it is a term, and seconds of its leader's clock."""
    return isinstance(value, list) and [type(each) for each in value] == [int, float]


def _unknown(why: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"{why}: the command may have been carried out", sent=True)
