"""See the package."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.groups import fencing
from broker.groups.fencing import CommitVerdict, GroupProgress
from broker.metadata.assignment import Partition
from broker.metadata.groups import Groups

GROUP: Final = "billing"
STEPS: Final = 2_500
REST_STEPS: Final = 4_000
MEMBERS: Final = 4
BROKERS: Final = 3
LATE: Final = 20
"""So many messages may come again."""
FENCE: Final = "fence"
RECORDS: Final = 60
"""In each partition; members read up to 3 at a time."""


class Violation(AssertionError):
    """Something that must hold does not. It has the story so far."""

    story: list[str]


class Record(NamedTuple):
    """Of the offset log. `start`: where its member had read on; that and `member` are for the checker alone.

    A reset or a removal is a record of FENCE.
    """

    partition: Partition
    epoch: int
    offset: int | None
    start: int | None
    member: str


@dataclass
class Held:
    """What a member does with a partition. `at`: None until it may read."""

    epoch: int
    at: int | None = None
    going_to: int | None = None
    is_revoked: bool = False
    is_stopped: bool = False


@dataclass
class Client:
    """One process of the group's application; `instance`: of a static member."""

    name: str
    instance: str = ""
    session: int | None = None
    seen: int = -1
    held: dict[Partition, Held] = field(default_factory=dict)


class World:
    """One group on three brokers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.has_resets = seed % 4 == 3  # else the offsets of a group outlive it
        self.story: list[str] = []
        self.saw: Counter[str] = Counter()
        self.catalog = Groups()
        self.states: list[Groups] = [self.catalog.copy()]
        self.applied = [0] * BROKERS
        self.counts = {"orders": 3, "bills": 2}
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.late: list[tuple[str, dict[str, Any]]] = []
        self.log: list[Record] = []
        self.committed = 0
        self.leader = 0
        self.waiting: list[tuple[int, str, dict[str, Any]]] = []  # to be answered when so much is committed
        self.answered: list[tuple[Partition, int, int]] = []  # with the epoch
        self.begun: Counter[Partition] = Counter()  # the newest epoch that a member was told it has begun
        self.made = 0
        self.clients = [self._client(number) for number in range(MEMBERS)]
        self.former: list[Client] = []  # whose places others have taken, and who do not know it
        self.is_calm = False

    def _client(self, number: int) -> Client:
        self.made += 1
        return Client(f"m{number}.{self.made}", f"static{number}" if number < 2 else "")

    # -- the catalog -------------------------------------------------------------------------------------------

    def _changed(self, what: str) -> None:
        self.states.append(self.catalog.copy())
        self.say(f"catalog {len(self.states) - 1}: {what}")
        self._check_readers()

    def on_join(self, *, client: str, instance: str, streams: tuple[str, ...]) -> None:
        session = self.catalog.join(GROUP, client, streams, timeout_ms=1, counts=self.counts, instance=instance)
        self._changed(f"{client} joins, session {session}")
        self.send("joined", client=client, session=session)

    def on_end(self, *, client: str, session: int) -> None:
        if self.catalog.end(GROUP, {client: session}, self.counts):
            self._changed(f"{client} ends")

    def on_release(self, *, client: str, released: dict[Partition, int]) -> None:
        self.catalog.release(GROUP, client, released)
        self._changed(f"{client} releases {released}")

    def on_look(self, *, client: str, session: int, broker: int) -> None:
        at = self.applied[broker]
        group = self.states[at].named.get(GROUP)
        member = None if group is None else group.members.get(client)
        grants = group.of(client) if group is not None and member is not None and member.session == session else None
        is_known = self.states[at].last >= session
        if grants is not None or is_known:
            self.send("view", client=client, session=session, at=at, grants=grants)

    # -- the offset log ----------------------------------------------------------------------------------------

    def newest(self, partition: Partition) -> GroupProgress:
        found = [record for record in self.log if record.partition == partition]
        return GroupProgress(found[-1].epoch, found[-1].offset) if found else GroupProgress()

    def on_begin(self, *, client: str, partition: Partition, epoch: int) -> None:
        newest, known = self.newest(partition), self.states[self.applied[self.leader]]
        group = known.named.get(GROUP)
        grant = None if group is None else group.grants.get(partition)
        verdict = fencing.judge_begin(newest, client, epoch, None if grant is None else grant[:2], known.last)
        self.saw[f"begin {verdict.value}"] += 1
        if verdict is CommitVerdict.APPEND:
            self.log.append(Record(partition, epoch, newest.at(0).offset, newest.offset, client))
        self._answer(verdict, "begun", client=client, partition=partition, epoch=epoch, offset=newest.at(0).offset)

    def on_fence(self, *, epoch: int, offset: int | None) -> None:
        for partition in sorted({record.partition for record in self.log}):
            newest = self.newest(partition)
            verdict = fencing.judge_fence(newest, epoch)
            self.saw[f"fence {verdict.value}"] += 1
            if verdict is CommitVerdict.APPEND:
                self.log.append(Record(partition, epoch, offset, newest.offset, FENCE))

    def on_commit(self, *, client: str, partition: Partition, epoch: int, offset: int, start: int) -> None:
        verdict = fencing.judge_commit(self.newest(partition), epoch, start, offset)
        self.saw[f"commit {verdict.value}"] += 1
        if verdict is CommitVerdict.APPEND:
            self.log.append(Record(partition, epoch, offset, start, client))
            if epoch < self.begun[partition]:
                self.fail(f"V5: {self.log[-1]}, after {self.begun[partition]} had begun")
        self._answer(verdict, "stored", client=client, partition=partition, epoch=epoch, offset=offset)

    def _answer(self, verdict: CommitVerdict, kind: str, **fields: Any) -> None:
        if verdict is CommitVerdict.FENCED:
            self.send("fenced", **{name: fields[name] for name in ("client", "partition", "epoch")})
        elif verdict is not CommitVerdict.NOT_READY:
            self.waiting.append((len(self.log), kind, fields))
            self._tell()

    def _tell(self) -> None:
        due = [each for each in self.waiting if each[0] <= self.committed]
        self.waiting = [each for each in self.waiting if each[0] > self.committed]
        for _, kind, fields in due:
            if kind == "begun":
                self.begun[fields["partition"]] = max(self.begun[fields["partition"]], fields["epoch"])
            if kind == "stored":
                self.answered.append((fields["partition"], fields["offset"], fields["epoch"]))
            self.send(kind, **fields)

    def commit_more(self) -> None:
        self.committed += self.rng.randint(0, len(self.log) - self.committed)
        self._tell()

    def fail_over(self) -> None:
        kept = self.rng.randint(self.committed, len(self.log))
        self.saw["records lost"] += len(self.log) - kept
        del self.log[kept:]
        self.waiting = []
        self.leader = self.rng.randrange(BROKERS)
        self.say(f"broker {self.leader} leads offsets, with {kept}")

    # -- members -----------------------------------------------------------------------------------------------

    def send(self, kind: str, **fields: Any) -> None:
        self.messages.append((kind, fields))

    def deliver(self) -> None:
        is_late = not self.is_calm and self.rng.random() < 0.5
        at = self.rng.randrange(len(self.messages)) if is_late else 0
        kind, fields = self.messages[at]
        luck = 1.0 if self.is_calm else self.rng.random()
        del self.messages[at]
        if luck < 0.1 or (kind == "release" and luck < 0.5):  # it comes again, perhaps much later
            self.late = [*self.late, (kind, fields)][-LATE:]
        if 0.1 <= luck < 0.15:
            return
        if len(self.messages) > 60:
            del self.messages[self.rng.randrange(len(self.messages))]
        self.say(f"  {kind} {fields}")
        if hasattr(self, f"on_{kind}"):
            getattr(self, f"on_{kind}")(**fields)
            return
        everybody = [*self.clients, *self.former]
        client = next((each for each in everybody if each.name == fields["client"]), None)
        if client is not None:
            getattr(self, f"_hear_{kind}")(client, **{name: fields[name] for name in fields if name != "client"})

    def _hear_joined(self, client: Client, session: int) -> None:
        if client.session is None:
            client.session, client.held = session, {}

    def _hear_view(self, client: Client, session: int, at: int, grants: dict[Partition, Any] | None) -> None:
        if client.session != session or at < client.seen:  # an older one, of a broker that is behind
            return
        client.seen = at
        if grants is None:
            self.saw["member is gone"] += 1
            client.session, client.held = None, {}
            return
        for partition, held in list(client.held.items()):
            if partition not in grants or grants[partition].epoch != held.epoch:
                del client.held[partition]
        for partition, grant in grants.items():
            held = client.held.setdefault(partition, Held(grant.epoch))
            held.is_revoked = grant.is_revoked
            held.is_stopped = held.is_stopped or (grant.is_revoked and held.at is None)

    def _hear_begun(self, client: Client, partition: Partition, epoch: int, offset: int) -> None:
        held = client.held.get(partition)
        if held is not None and held.epoch == epoch and held.at is None and not held.is_stopped:
            held.at = offset
            self.saw["begun"] += 1
            self._check_readers()

    def _hear_stored(self, client: Client, partition: Partition, epoch: int, offset: int) -> None:
        held = client.held.get(partition)
        if held is not None and (held.epoch, held.going_to) == (epoch, offset):
            held.at, held.going_to = offset, None

    def _hear_fenced(self, client: Client, partition: Partition, epoch: int) -> None:
        held = client.held.get(partition)
        if held is not None and held.epoch == epoch:
            self.saw["fenced"] += 1
            del client.held[partition]

    def act(self, client: Client) -> None:
        """What a member does next: all of it may be done again."""
        if client.session is None:
            self.send("join", client=client.name, instance=client.instance, streams=self._streams(client))
            return
        choice = self.rng.randrange(4)
        if choice == 0 or not client.held:
            self.send("look", client=client.name, session=client.session, broker=self.rng.randrange(BROKERS))
            return
        partition, held = self.rng.choice(sorted(client.held.items()))
        asked = {"client": client.name, "partition": partition, "epoch": held.epoch}
        if held.is_stopped:
            self.send("release", client=client.name, released={partition: held.epoch})
        elif held.at is None:
            self.send("begin", **asked)
        elif held.going_to is not None:
            self.send("commit", **asked, offset=held.going_to, start=held.at)
        elif held.is_revoked:
            held.is_stopped = True
        elif held.at < RECORDS:
            held.going_to = min(RECORDS, held.at + self.rng.randint(1, 3))

    def _streams(self, client: Client) -> tuple[str, ...]:
        return ("orders",) if client.name.startswith("m3") else ("orders", "bills")

    # -- a run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.is_calm, self.former = True, []
        self.say("all faults end")
        self._come_to_rest()
        self.check_log()

    def step(self) -> None:
        luck = self.rng.random()
        if luck < 0.3:
            self.act(self.rng.choice([*self.clients, *self.former]))
        elif luck < 0.82:
            if self.late and self.rng.random() < 0.03:
                self.messages.insert(0, self.late.pop(self.rng.randrange(len(self.late))))
            if self.messages:
                self.deliver()
        elif luck < 0.88:
            self._apply()
        elif luck < 0.974:
            self.commit_more()
        elif luck < 0.98:
            self.fail_over()
        elif luck < 0.996:
            self._someone_ends()
        elif luck < 0.999:
            self._partitions_change()
        else:
            self._everybody_ends()
        self.check_log()

    def _apply(self) -> None:
        broker = self.rng.randrange(BROKERS)
        self.applied[broker] = self.rng.randint(self.applied[broker], len(self.states) - 1)

    def _someone_ends(self) -> None:
        number = self.rng.randrange(MEMBERS)
        client = self.clients[number]
        how = self.rng.choice(["dies", "expires", "leaves"])
        self.saw[how] += 1
        self.say(f"{client.name} {how}")
        if how == "expires":  # and does not know it
            group = self.catalog.named.get(GROUP)
            member = None if group is None else group.members.get(client.name)
            if member is not None:
                self.send("end", client=client.name, session=member.session)
                self.on_end(client=client.name, session=member.session)
            return
        if client.session is not None and how == "leaves":
            self.send("end", client=client.name, session=client.session)
        self.clients[number] = self._client(number)
        if client.instance and how == "dies":
            self.saw["place taken"] += 1
            self.former = [*self.former, client][-2:]
            return
        group = self.catalog.named.get(GROUP)
        member = None if group is None else group.members.get(client.name)
        if member is not None:  # it expires some time
            self.send("end", client=client.name, session=member.session)

    def _everybody_ends(self) -> None:
        group = self.catalog.named.get(GROUP)
        for name, member in [] if group is None else sorted(group.members.items()):
            self.on_end(client=name, session=member.session)
        if GROUP in self.catalog.named:
            is_reset = self.has_resets and self.rng.random() < 0.5
            epoch = self.catalog.fence(GROUP, forget=not is_reset)
            self.saw["reset" if is_reset else "forgotten"] += 1
            self._changed(f"the group is {'reset' if is_reset else 'forgotten'} under {epoch}")
            if self.has_resets:
                self.send("fence", epoch=epoch, offset=self.rng.randrange(RECORDS) if is_reset else None)

    def _partitions_change(self) -> None:
        if self.counts["bills"] < 5:
            self.counts = {**self.counts, "bills": self.counts["bills"] + 1}
            self.catalog.fit(self.counts)
            self._changed(f"there are {self.counts}")

    def _come_to_rest(self) -> None:
        """V4: nobody fails any more, and who is not there any more expires."""
        for step in range(REST_STEPS):
            self.applied = [len(self.states) - 1] * BROKERS
            self.committed = len(self.log)
            self._tell()
            while self.messages:
                self.deliver()
            group = self.catalog.named.get(GROUP)
            for name, member in [] if group is None else sorted(group.members.items()):
                if all(client.name != name for client in self.clients):
                    self.on_end(client=name, session=member.session)
            for client in self.clients:
                self.act(client)
            if step % 20 == 0 and self._is_at_rest():
                return
        self.fail(f"V4: not at rest after {REST_STEPS} steps")

    def _is_at_rest(self) -> bool:
        group = self.catalog.named.get(GROUP)
        everything = {(name, number) for name, count in self.counts.items() for number in range(count)}
        if group is None or set(group.grants) != everything:
            return False
        if {partition: grant.member for partition, grant in group.grants.items()} != group.target:
            return False
        if any(self.newest(partition).at(0).offset < RECORDS for partition in everything):
            return False
        loads = Counter(grant.member for grant in group.grants.values())
        both = [loads[client.name] for client in self.clients if len(self._streams(client)) == 2]
        if max(both) - min(both) > 1:
            self.fail(f"V4: uneven, {loads}")
        return True

    # -- what must hold ----------------------------------------------------------------------------------------

    def check_log(self) -> None:
        newest: dict[Partition, Record] = {}
        for record in self.log:
            before = newest.get(record.partition, Record(record.partition, 0, None, None, ""))
            if record.start != before.offset:
                self.fail(f"V1: {record} after {before}")
            if record.epoch < before.epoch or (record.epoch == before.epoch and record.member != before.member):
                self.fail(f"V5: {record} after {before}")
            newest[record.partition] = record
        fenced = {record.partition: record.epoch for record in self.log if record.member == FENCE}
        for partition, offset, epoch in self.answered:
            if fenced.get(partition, 0) < epoch and (newest[partition].offset or 0) < offset:
                self.fail(f"V2: {offset} of {partition} was answered, and the log is at {newest[partition]}")

    def _check_readers(self) -> None:
        group = self.catalog.named.get(GROUP)
        reading: dict[Partition, str] = {}
        for client in self.clients:
            member = None if group is None else group.members.get(client.name)
            if member is None or member.session != client.session:
                continue
            for partition, held in client.held.items():
                if held.at is None or held.is_stopped:
                    continue
                if partition in reading:
                    self.fail(f"V3: {reading[partition]} and {client.name} read {partition}")
                reading[partition] = client.name

    def say(self, what: str) -> None:
        self.story.append(what)

    def fail(self, what: str) -> None:
        violation = Violation(what)
        violation.story = self.story
        raise violation


def run(seed: int) -> World:
    """One run. Raises Violation."""
    world = World(seed)
    world.run()
    return world
