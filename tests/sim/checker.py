"""The checker: watches from outside that the rules hold. It knows every log, every ack and the catalog at once, as
nobody inside does.

R1  one leader per (partition, epoch), in the life in which it was chosen
R2  within an epoch the high watermark never moves back; a consumer never sees an end below one it has seen
R3  a committed record is durable on every member of the ISR, and on as many replicas as must be in sync
R4  logs agree below the high watermark, batch for batch, byte for byte; where replicas write them anew, each is a legal
    compaction of what was committed (`rewritten.py`)
R5  what was acked under `all` is readable while a member of the ISR or of the last ISR has its disk
R6  once faults stop, the ISR is full again in bounded time, and nobody waits
R9  then each partition takes records again within 15 s, and nothing is asked of the catalog in the end (`cluster.py`)
R7  a stale leader cannot commit: whatever anybody commits fits R3 and R4 by the newest catalog
S2  what was fsynced is there after a power cut
S4  who takes itself for behind lacks something
S1  nobody is taken for dead who has a session by its own count    S3  who has none answers no client
S5  who is taken for dead leaves every ISR at once
KEPT  retention, by the settings that the leader has heard of, keeps as many committed records as they say
GROW  the records of one leader epoch are sorted by one count of partitions, none goes to a partition that is not
    counted yet, and none by the old count is acked under `all` once another is in force
MEND  what a replica copies from others is what was committed there (`mended.py`)
GONE  whoever was removed is nothing of any partition, has no session and acknowledges nothing, does not come back with
    its folder, and ends when it hears of it; nobody waits for what it had to delete; a power cut brings back no folder
    of which a broker has said that it is deleted
MOVE  a replica goes only when all that stay are in sync
CLOSED  nobody is at a log that is closed, and whoever has stopped has closed all
WELL  nobody steps out for a failed fsync whose log is well (of drivers)
TRIM  what a trim that was answered let go is not served again

R8, that the catalog loses no command, is the adapter's of Raft (`tests.sim.raft`). Here the catalogs of all brokers
must be equal wherever they are equally far (`metadata.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.api.stream import StreamSettings
from broker.metadata.info import StreamInfo
from broker.metadata.partition import PartitionState, Place
from broker.replication.events import Acks
from broker.replication.messages import Incarnation
from tests.sim.joining import OfMembers
from tests.sim.mended import OfMending
from tests.sim.metadata import place_of
from tests.sim.rewritten import OfRewrites, Rewritten, committed_rows, records_of
from tests.sim.stored import Stored, position_of, stored_of
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.batches import Batch
    from tests.sim.driven.node import Broker
    from tests.sim.driven.seen import Seen


@dataclass
class Known:
    """All that the checker knows of one partition.

    Attributes:
        at: Each committed batch, by its first offset.
        end: The greatest high watermark of anybody.
        is_lost: No member of the ISR or of the last ISR has its disk: nothing is promised any more.
        is_orphaned: The same before anything was committed: nothing is lost, and only an operator can choose a leader.
        unread_end: So far a leader has committed who could not read all of it.
        bad: Brokers whose disk does not have what it had.
        mendable: Those of `bad` where records alone are damaged.
        holed: Those of them that lack records which are whole elsewhere: all are there, if nobody gives up a log.
        cut: Those of `bad` whose log ended, when it was opened, before all that their disk did not have: the rest is
            whole.
        begun_anew: The partition epoch by which those began anew after that, or went on from before it. A
            leader that has not heard of it may commit by what they said before.
        spares: Brokers outside the ISR that have what is damaged there, as a scenario knows.
        unclean_epoch: The epoch of the last leader that an operator chose; what it lacked is given up, and counted in
            `given_up`.
        gone: Batches that were committed, and are given up, by their first offset. A leader of before who hears late
            what the catalog had decided in his time may commit it still: that is true of then, and nobody hears it from
            him.
    """

    at: dict[int, Stored] = field(default_factory=dict)
    end: int = 0
    unread_end: int = 0
    is_lost: bool = False
    is_orphaned: bool = False
    bad: set[str] = field(default_factory=set)
    mendable: set[str] = field(default_factory=set)
    holed: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    begun_anew: dict[str, int] = field(default_factory=dict)
    spares: set[str] = field(default_factory=set)
    leaders: dict[int, str] = field(default_factory=dict)
    high_watermarks: dict[int, int] = field(default_factory=dict)
    acked: list[tuple[bytes | None, int, bool]] = field(
        default_factory=list
    )  # value, offset, whether a repeat is known
    trim_asked: int = 0
    trimmed: int = 0
    last: Stored | None = None
    unclean_epoch: int = 0
    given_up: int = 0
    gone: dict[int, Stored] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # of partitions, by the epoch of the records sorted so
    chosen: dict[int, tuple[str | None, Incarnation]] = field(default_factory=dict)  # by leader epoch
    rewritten: Rewritten | None = None  # None: nobody writes these logs anew


class Checker(OfRewrites, OfMembers, OfMending):
    """See the module. `brokers` and `partitions` are set by the cluster."""

    def __init__(self, world: World) -> None:
        OfMembers.__init__(self)
        self.world = world
        self.known: dict[str, Known] = {}
        self.brokers: dict[str, Broker] = {}
        self.partitions: dict[str, PartitionState] = {}
        self._gone: dict[tuple[str, str], Seen] = {}

    def fail(self, what: str) -> None:
        self.world.note("CHECK", what)
        raise Violation(what)

    # -- what replicas do

    def leads(self, replica: Seen, epoch: int) -> None:
        known, who = self.known[replica.name], replica.broker.name
        if known.leaders.setdefault(epoch, who) != who:
            self.fail(f"R1: {replica.name}: {known.leaders[epoch]} and {who} lead epoch {epoch}")
        if known.is_lost or who in known.bad or epoch < self.partitions[replica.name].leader_epoch:
            return
        self._holds(replica, "R5", "leads", is_durable=False)

    def leads_in_its_life(self, replica: Seen, epoch: int, incarnation: Incarnation) -> None:
        """Whoever leads is the one whom the catalog has chosen for that epoch."""
        chosen, who = self.known[replica.name].chosen.get(epoch), replica.broker.name
        if chosen != (who, incarnation):
            self.fail(f"R1: {replica.name}: {who} leads epoch {epoch} as {incarnation}, and chosen is {chosen}")

    def commits(self, replica: Seen, end: int, *, since: int | None = None) -> None:
        """Anybody moves his high watermark. `since`: from there; None: it still stands there."""
        name, who, log = replica.name, replica.broker.name, replica.log
        known = self.known[name]
        assert log is not None
        if known.is_lost:
            return
        if replica.leads:
            epoch = replica.leader.epoch
            if end < known.high_watermarks.get(epoch, 0):
                self.fail(f"R2: {name}: the high watermark of epoch {epoch} moves back to {end}")
            known.high_watermarks[epoch] = end
        at, shadow = position_of(replica.shadow, log.state.high_watermark if since is None else since), replica.shadow
        is_of_before = replica.leads and replica.leader.epoch < known.unclean_epoch
        while at < len(shadow) and shadow[at].first < end:
            batch = shadow[at]
            there = known.at.get(batch.first)
            if is_of_before and there != batch and known.gone.get(batch.first) == batch:
                if replica.broker.has_session:
                    self.fail(f"R4: {name}: {who} commits {batch}, which is given up, and has a session")
                self.world.saw("what is given up is committed by a leader of before")
                return
            if there is None:
                if not replica.leads and batch.first >= known.unread_end:
                    self.fail(f"R4: {name}: {who} takes {batch} for committed, and nobody has committed it")
                if batch.first > known.end and who in known.bad:
                    self._as_others_hold_it(name, batch.first)
                    if batch.first > known.end:
                        break
                if batch.first != known.end and known.at:
                    self.fail(f"R4: {name}: {who} commits {batch}, and committed is up to {known.end}")
                known.at[batch.first] = known.last = batch
                known.end = batch.next
            elif there != batch:
                self.fail(f"R4: {name}: {who} commits {batch}, and committed there is {there}")
            at += 1
        if at and shadow[at - 1].next == end and not shadow[at - 1].ends_group and who not in known.bad:
            self.fail(f"R4: {name}: {who} commits up to {end}, within a commit group")
        if who in known.bad:
            known.unread_end = max(known.unread_end, end)
            if replica.leads:
                self._as_others_hold_it(name, end)
        elif end > known.end:
            self.fail(f"R4: {name}: {who} commits up to {end}, and has nothing there")
        if replica.leads:
            self.members_hold(name, self.partitions[name])
            self._enough_hold(replica, end)

    def _as_others_hold_it(self, name: str, end: int) -> None:
        """A leader has committed more than it can read: another member of the ISR, who has fsynced it, says what."""
        known = self.known[name]
        for who in self.partitions[name].isr:
            other = self.brokers[who].replicas.get(name)
            if who in known.bad - known.holed or other is None or other.durable_end < end:
                continue
            for batch in other.shadow:
                if known.end == batch.first < end:
                    known.at[batch.first] = known.last = batch
                    known.end = batch.next

    def cut(self, replica: Seen) -> None:
        self._member_holds(self.partitions[replica.name], replica, "has cut its log")
        self.is_marked(replica)

    def opened(self, replica: Seen) -> None:
        """A process has found a log."""
        name, log = replica.name, replica.log
        before = self._gone.pop((replica.broker.name, name), None)
        assert log is not None
        is_known = not (self.known[name].is_lost and self.known[name].rewritten)
        has_all = not replica.is_damaged and not (replica.is_behind and replica.broker.name in self.known[name].bad)
        if before is not None and not before.is_mid_change and has_all and is_known:
            found = set(replica.shadow)
            whole = [batch for batch in before.shadow if batch.next <= before.durable_end]
            while whole and not whole[-1].ends_group:
                whole.pop()  # an incomplete group goes with a torn tail, fsynced or not
            for batch in whole:
                if batch.first >= log.state.log_start_offset and batch not in found:
                    end = log.state.log_end_offset
                    self.fail(f"S2: {name}: {replica.broker.name} had fsynced {batch}; now it ends at {end}")
        self._is_behind(replica)
        self._member_holds(self.partitions[name], replica, "was opened")
        self.is_marked(replica)

    def _is_behind(self, replica: Seen) -> None:
        """S4. By now all of it has been read: what is not damaged is whole."""
        name, who, known = replica.name, replica.broker.name, self.known[replica.name]
        partition = self.partitions[name]
        if replica.is_behind and who in partition.isr and who not in known.bad and not known.is_lost:
            self.fail(f"S4: {name}: {who} takes itself for behind, and its disk has all that it had fsynced")
        if replica.is_behind and who in known.bad and not replica.is_damaged:
            known.cut.add(who)
            self._is_whole(name, known.cut - {*partition.isr, *partition.last_isr}, partition)

    def gone(self, replica: Seen) -> None:
        self._gone[replica.broker.name, replica.name] = replica

    def created(self, replica: Seen) -> None:
        """A new log, of a replica of which nothing is expected any more."""
        who, partition = replica.broker.name, self.partitions[replica.name]
        self._gone.pop((who, replica.name), None)
        known = self.known[replica.name]
        self._is_whole(replica.name, {who} & known.bad, partition)
        if who in partition.isr and known.end and not known.is_lost and partition.has_led:
            self.fail(f"R3: {replica.name}: {who} begins anew, and is in the ISR {partition.isr}")

    def _is_whole(self, name: str, brokers: set[str], partition: PartitionState) -> None:
        """Records that their disks did not have are not in their logs any more, and nobody expects them there."""
        known = self.known[name]
        for names in (known.bad, known.cut, known.mendable, known.holed):
            names.difference_update(brokers)
        known.begun_anew.update(dict.fromkeys(sorted(brokers), partition.partition_epoch))

    def damaged(self, replica: Seen) -> None:
        who, known = replica.broker.name, self.known[replica.name]
        if who not in known.holed:
            self.lose(who, replica.name, of_records=who not in known.bad or who in known.mendable)

    def lose(self, broker: str, name: str, *, of_records: bool = False) -> None:
        """A disk does not have what it had. `of_records`: there is nothing else that it lacks."""
        known = self.known[name]
        if of_records and (broker not in known.bad or broker in known.mendable):
            known.mendable.add(broker)
        else:
            known.mendable.discard(broker)
        known.bad.add(broker)
        known.cut.discard(broker)
        known.holed.discard(broker)
        self._gone.pop((broker, name), None)
        self._promise(name, self.partitions[name])

    def forget(self, broker: str) -> None:
        """Another one has this name from now on: nothing is expected on its disk."""
        for name, known in self.known.items():
            for names in (known.bad, known.cut, known.mendable, known.holed):
                names.discard(broker)
            self._gone.pop((broker, name), None)

    def _promise(self, name: str, partition: PartitionState) -> None:
        known = self.known[name]
        members = {*partition.isr, *partition.last_isr, *known.spares}
        if not partition.has_led or not members or not members <= known.bad - known.holed or known.is_lost:
            return
        if known.end == 0:
            known.is_orphaned = True
        else:
            known.is_lost = True
            self.world.saw("lost: every member's disk")
            self.world.note("CHECK", f"{name}: no member of the ISR or the last ISR has its disk any more")

    # -- the catalog

    def failed(self, name: str, registration: int, partitions: Mapping[Place, PartitionState]) -> None:
        """A broker is taken for dead. Its session is over by its own count, if all clocks run alike (`session.S1`). No
        commit waits for it from now on."""
        for (stream, number), state in partitions.items():
            if state.has_led and name in state.isr:
                self.fail(f"S5: {stream}/{number}: {name} is taken for dead, and is in the ISR {state.isr}")
        session = self.brokers[name].session
        if session is None or session.registration != registration or not self.clocks_are_even:
            return
        if self.brokers[name].has_session:
            self.fail(f"S1: {name} is taken for dead, and has a session")

    def changed(self, name: str, partition: PartitionState) -> None:
        """The catalog has changed a partition."""
        self.known[name].chosen[partition.leader_epoch] = partition.leader, partition.leader_incarnation
        if partition.unclean_epoch > self.known[name].unclean_epoch and partition.leader is not None:
            self._give_up(name, partition)
        self._is_whole(name, self.known[name].cut - {*partition.isr, *partition.last_isr}, partition)
        self._promise(name, partition)
        self.members_hold(name, partition)
        self.is_of_members(name, partition)
        self.is_moved_whole(name, partition)

    def _give_up(self, name: str, partition: PartitionState) -> None:
        """An operator has chosen who leads: what it does not have is lost, and nothing else is."""
        known, who = self.known[name], partition.leader or ""
        known.unclean_epoch = partition.unclean_epoch
        replica = self.brokers[who].replicas[name]
        has = {batch.first: batch for batch in replica.shadow}
        start = replica.log.state.log_start_offset if replica.log is not None else 0
        end = next((at for at, batch in sorted(known.at.items()) if at >= start and has.get(at) != batch), known.end)
        for batch in sorted((batch for at, batch in known.at.items() if start <= at < end), reverse=True):
            if batch.ends_group:
                break
            end = batch.first  # a leader cuts a group that it has in part
        lost = [at for at in known.at if at >= end]
        self.world.note("CHECK", f"{name}: {who} is chosen: [{end}, {known.end}) is given up")
        for at in lost:
            batch = known.gone[at] = known.at.pop(at)
            if known.rewritten is not None:
                known.rewritten.given_up[at] = batch
        known.given_up += known.end - end
        known.end = known.unread_end = end
        known.last = known.at[max(known.at)] if known.at else None
        known.trimmed, known.trim_asked = min(known.trimmed, start), max(min(known.trim_asked, end), start)
        kept = [acked for acked in known.acked if acked[1] < end]
        if len(kept) < len(known.acked):
            self.world.saw("acked records given up by an operator")
        known.acked = kept

    def emptied(self, replica: Seen, batches: Sequence[Stored]) -> None:
        """An operator has given up what these empty batches stand for: that is lost, and nothing else is."""
        known = self.known[replica.name]
        known.bad.discard(replica.broker.name)
        known.spares = set()
        for one in batches:
            self.world.note("CHECK", f"{replica.name}: [{one.first}, {one.next}) is given up")
            for at in [at for at in known.at if one.first <= at < one.next]:
                batch = known.gone[at] = known.at.pop(at)
                if known.rewritten is not None:
                    known.rewritten.given_up[at] = batch
            known.at[one.first] = one
            if known.rewritten is not None:
                known.rewritten.written[one] = ()
            known.given_up += one.next - one.first
            known.acked = [acked for acked in known.acked if not one.first <= acked[1] < one.next]
        known.last = known.at[max(known.at)]

    def members_hold(self, name: str, partition: PartitionState) -> None:
        for who in partition.isr:
            replica = self.brokers[who].replicas.get(name)
            if replica is not None:
                self._member_holds(partition, replica, "is a member of the ISR")

    def _member_holds(self, partition: PartitionState, replica: Seen, what: str) -> None:
        known, who = self.known[replica.name], replica.broker.name
        if who in partition.isr and partition.has_led and who not in known.bad and not known.is_lost:
            self._holds(replica, "R3", what, is_durable=True)

    def _enough_hold(self, replica: Seen, end: int) -> None:
        """A leader commits: as many replicas as must be in sync have it on their disks, or had."""
        name, state = replica.name, self.partitions[replica.name]
        known, least = self.known[name], state.min_insync_replicas
        if replica.state is not None:
            least = min(least, replica.state.min_insync_replicas)  # it may not have heard of another
        heard = -1 if replica.state is None else replica.state.partition_epoch
        having = known.bad | {who for who, epoch in known.begun_anew.items() if heard < epoch}
        for who in self.registered():
            other = self.brokers[who].replicas.get(name)
            if other is not None and other.durable_end >= end:
                having.add(who)
        if len(having) < least:
            self.fail(f"R3: {name}: {replica.broker.name} commits {end}, which {sorted(having)} hold of {least}")

    def _holds(self, replica: Seen, rule: str, what: str, *, is_durable: bool) -> None:
        """A replica has all that is committed. By its last batch: logs that have it have all before it (R4)."""
        known, who = self.known[replica.name], replica.broker.name
        last = known.last
        if last is None:
            return
        at = position_of(replica.shadow, last.first)
        mine = replica.shadow[at] if at < len(replica.shadow) else None
        log = replica.log
        start = log.state.log_start_offset if log is not None else 0
        if start >= known.end and known.trim_asked >= known.end:
            return
        if mine != last or (is_durable and replica.durable_end < known.end):
            end = replica.shadow[-1].next if replica.shadow else 0
            text = f"it has {mine}, ends at {end}, {replica.durable_end} of it durable"
            self.fail(f"{rule}: {replica.name}: {who} {what}, and committed is {last}; {text}")

    # -- clients

    def serves(self, replica: Seen, what: str) -> None:
        """A leader answers a client: only in a session (`session.S3`)."""
        if not replica.broker.has_session:
            self.fail(f"S3: {replica.name}: {replica.broker.name} answers {what} without a session")
        if place_of(replica.name) not in replica.broker.catalog.cluster.partitions:
            self.fail(f"{replica.name}: {replica.broker.name} answers {what} of a stream that it knows to be deleted")

    def acked(self, replica: Seen, first: int, end: int, acks: Acks, batches: Sequence[Batch]) -> None:
        known = self.known[replica.name]
        self.serves(replica, "a publish")
        self.acks_for_members(replica.name, replica.broker)
        if acks is not Acks.ALL:
            self.world.saw("acked by the leader")
            self.world.detail("clients", f"{replica.name}: {replica.broker.name} acks {{span}} as leader", first, end)
            if replica.log is not None and replica.log.state.durable_end < end and not known.is_lost:
                self.fail(f"R5: {replica.name}: acked [{first}, {end}) before it is durable on the leader")
            return
        self.world.saw("acked by all")
        self.world.detail("clients", f"{replica.name}: {replica.broker.name} acks {{span}} under all", first, end)
        if known.is_lost or replica.broker.name in known.bad:
            return
        if end > known.end:
            self.fail(f"R5: {replica.name}: acked [{first}, {end}), and committed is up to {known.end}")
        values = [(value, batch.producer_id > 0) for batch in batches for value in batch.values]
        known.acked += [(value, first + at, is_once) for at, (value, is_once) in enumerate(values)]

    def acked_each(self, replica: Seen, offsets: dict[bytes, int]) -> None:
        """Messages with ids: each was stored there, now or before; and is, once."""
        known = self.known[replica.name]
        self.serves(replica, "a publish")
        self.acks_for_members(replica.name, replica.broker)
        if known.is_lost or replica.broker.name in known.bad:
            return
        self.world.saw("acked by all")
        if offsets:
            text = f"{replica.name}: {replica.broker.name} acks records with ids in {{span}}"
            self.world.detail("clients", text, min(offsets.values()), max(offsets.values()) + 1)
        for value, offset in offsets.items():
            if offset >= known.end:
                self.fail(f"R5: {replica.name}: acked {offset}, and committed is up to {known.end}")
            known.acked.append((value, offset, True))

    def repeated(self, name: str, first: int, outcome: str, again: int) -> None:
        """A producer repeats its last group, which was acked at `first`: it is known there, or there is no answer."""
        partition = self.partitions[name]
        leader = self.brokers[partition.leader].replicas.get(name) if partition.leader else None
        notes = leader.log.state.recovery.notes if leader is not None and leader.log is not None else []
        if self.known[name].is_lost or self.known[name].unclean_epoch or any("state-" in note for note in notes):
            return  # where a state file rots the log tells, as far as it goes
        if outcome in ("UnknownProducer", "OutOfSequence", "ProducerFenced") or (
            outcome == "stored" and again != first
        ):
            self.fail(f"G4: {name}: a group that is at {first}, repeated: {outcome} {again}")
        if outcome == "stored":
            self.world.saw("old group known again")

    def trim_asked(self, replica: Seen, start: int) -> None:
        known = self.known[replica.name]
        known.trim_asked = max(known.trim_asked, start)

    def trimmed(self, replica: Seen, start: int) -> None:
        self.serves(replica, "a trim")
        known = self.known[replica.name]
        known.trimmed = max(known.trimmed, start)

    def altered(self, name: str, settings: StreamSettings) -> None:
        """The catalog has other settings of a stream."""
        self.world.saw("settings altered")
        rewritten = self.known[name].rewritten
        if rewritten is not None and settings.cleanup != "delete":
            rewritten.is_compacted = True

    def is_of(self, info: StreamInfo) -> None:
        """The catalog has a new stream, or other settings of one."""
        for name, known in self.known.items():
            if place_of(name)[0] == info.incarnation and known.rewritten is not None:
                known.rewritten.is_compacted |= info.settings.cleanup != "delete"

    def starts(self, replica: Seen) -> None:
        """A log start has moved."""
        known, log = self.known[replica.name], replica.log
        if log is not None and log.state.log_start_offset > known.trim_asked and not known.is_lost:
            start = log.state.log_start_offset
            self.fail(f"TRIM: {replica.name}: {replica.broker.name} starts at {start}, nobody asked for it")

    def has_read(self, name: str, who: str, epoch: int, batches: Sequence[Stored]) -> None:
        known = self.known[name]
        if known.is_lost:
            return
        for batch in batches:
            if known.at.get(batch.first) != batch:
                self.fail(f"R4: {name}: {who} read {batch} in epoch {epoch}, committed is {known.at.get(batch.first)}")

    # -- at the end

    def all_is_well(self, name: str) -> None:
        """Every replica has every committed record, byte for byte, or what a legal compaction leaves of them; every
        acked one is there, in order, once.
        """
        known, partition = self.known[name], self.partitions[name]
        is_orphaned = known.is_orphaned and all(self.brokers[who].is_scrapped for who in partition.electable)
        if known.is_lost or is_orphaned:
            return
        messages: dict[str, dict[int, bytes]] = {}
        for who in partition.replicas:
            replica = self.brokers[who].replicas[name]
            log = replica.log
            assert log is not None
            if log.state.high_watermark != known.end:
                self.fail(f"R6: {name}: {who} has high watermark {log.state.high_watermark}, committed is {known.end}")
            messages[who] = {
                stored_of(read).first: bytes(read) for read in self._all_of(replica, log.state.high_watermark)
            }
            if replica.is_damaged:
                self.fail(f"R4: {name}: {who} cannot read all of its log")
            if known.rewritten is not None:
                rows = {at: row for message in messages[who].values() for at, row in records_of(message)}
                self._is_legal(replica, rows, has_all=True)
        newest = max(min(found, default=known.end) for found in messages.values())
        leader = messages[partition.leader or ""]
        for who, found in messages.items():
            for first, message in found.items() if known.rewritten is None else ():
                if first >= newest and leader.get(first) != message:
                    self.fail(f"R4: {name}: {who} and {partition.leader} hold other bytes at {first}")
        self._acked_is_there(name, known, leader)

    def _acked_is_there(self, name: str, known: Known, leader: dict[int, bytes]) -> None:
        if known.rewritten is None:
            values = {at: value for message in leader.values() for at, (_, value) in records_of(message)}
        else:  # of these each log has what a legal compaction leaves
            values = {at: value for at, (_, value) in committed_rows(known).items()}
        log = self.brokers[self.partitions[name].leader or ""].replicas[name].log
        start = log.state.log_start_offset if log is not None else 0
        if start < known.trimmed:
            self.fail(f"TRIM: {name}: it begins at {start}, a trim to {known.trimmed} was answered")
        count = Counter(values.values())
        for value, offset, is_once in known.acked:
            if offset < max(start, known.trim_asked):
                continue
            if values.get(offset) != value:
                self.fail(f"R5: {name}: {_named(value)} was acked at {offset}, there is {_named(values.get(offset))}")
            if is_once and value is not None and count[value] > 1:
                at = sorted(at for at, other in values.items() if other == value)
                self.fail(
                    f"G4: {name}: {_named(value)} of an idempotent producer, or with an id, was acked at {offset}; "
                    f"it is there {count[value]} times, at {at}"
                )


def _named(value: bytes | None) -> str:
    """A value without what makes it long."""
    return "no value" if value is None else repr(value.rstrip(b"."))
