"""A catalog of a few brokers and partitions, commands that are late, early, repeated or nonsense, and who watches it.

The watcher knows one thing that no catalog can: who *may* have every committed record of a partition. It assumes the
worst of leaders: whatever can be committed is, at once. Then

- while the ISR has `min_insync_replicas` members, those and no others have it all;
- below that nothing is committed, so who had it all still does, until its log is lost.

Checked after each command:

W1  At most one broker has been the leader of an epoch (P1). It is in the ISR; its incarnation is its replica's present
    one.
W2  ISR and last ISR together are exactly those who have it all (P2): more would lose records, and so would fewer.
W3  Registrations, leader epochs and partition epochs grow, the latter by one and only with a change (P4).
W4  An `alter_isr` that was refused once, other than as `not_ready`, is refused for ever (C4).
W5  A refused command changes nothing, `judge` says the same as `apply` (M7), and `check` refuses the same (M11).
W6  A catalog that is restored, or to which the commands are given again, is the same.
W8  Partitions are added when the leader of each has stopped in its epoch, when all knew, and as of the same moment: no
    leadership of the stream has begun or ended since. Each has another epoch from then on (G1, G2, G4). A raised
    replication factor takes nobody away, and leaves the minimum as it is until all have joined (G3).
W7  Each folder that is to be deleted is on somebody's list, and a stream is forgotten with the last entry (C5, M6).
"""

from __future__ import annotations

import json
import random
from typing import Any

from broker.api.errors import LiftlogError
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.growth import stage_of
from broker.metadata.partition import PartitionState, Place

BROKERS = ("a", "b", "c", "d")
WEIGHTS = {"do_alter": 30, "do_opened": 12, "do_register": 8, "do_renew": 8, "do_remove": 1, "do_min_insync": 2}
CALM = {
    "do_alter": 30,
    "do_opened": 12,
    "do_renew": 12,
    "do_confirm_partitions": 40,
    "do_elect_first": 4,
    "do_add_partitions": 4,
    "do_raise": 2,
    "do_report": 4,
    "do_create": 2,
    "do_confirm": 2,
    "do_register": 2,
    "do_fail": 1,
}
PHASE = 40
"""So many steps are wild, and then as many calm: nothing would ever be finished in wild ones alone."""
Command = dict[str, Any]


def by_stream(places: list[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for stream, number in sorted(places):
        found.setdefault(stream, []).append(number)
    return found


def refusal(catalog: Catalog, command: Command) -> Any:
    """The error with which `check` refuses a command."""
    try:
        catalog.check(command)
    except LiftlogError as error:
        return error.to_problem()
    return None


def alone(command: Command, result: dict[str, Any]) -> list[tuple[Command, dict[str, Any]]]:
    """Changes of in-sync replicas, each as a command of its own, with its result."""
    if command["kind"] == "alter_isr":
        return [(command, result)]
    if command["kind"] != "alter_isrs":
        return []
    found = []
    answers = (result.get("ok") or result["error"]).get("answers", ())  # none: it is refused as a whole
    said = {(stream, number): each for stream, number, each in answers}
    for key in ("add", "remove"):
        for stream, number, leader_epoch, partition_epoch, member, *incarnation in command[key] if said else ():
            of = {"v": 1, "kind": "alter_isr", "broker_id": command["broker_id"], "stream": stream, "partition": number}
            epochs = {"leader_epoch": leader_epoch, "partition_epoch": partition_epoch}
            change = {key: [member, *incarnation] if incarnation else member}
            found.append(({**of, **epochs, **change}, said[stream, number]))
    return found


def is_not_ready(said: dict[str, Any]) -> bool:
    return "error" in said and said["error"]["reason"] == "not_ready"


def added_by(command: Command, ok: dict[str, Any], at: Place) -> list[list[Any]]:
    """Whom a leader has added to the ISR of this partition, with the incarnation."""
    return [
        one["add"]
        for one, said in alone(command, {"ok": ok})
        if "add" in one and "error" not in said and at == (one["stream"], one["partition"])
    ]


class Cluster:
    """See the module."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.journal: list[Command] = [{"v": 1, "kind": "set_feature_level", "level": FEATURE_LEVEL}]
        self.catalog.apply(self.journal[0])
        self.leaders: dict[tuple[Place, int], str] = {}
        self.have_all: dict[Place, set[str]] = {}
        self.refused: list[Command] = []
        self.old: list[Command] = []
        self.streams = 0
        self.seen: dict[str, int] = {}
        self.confirmed: dict[str, dict[tuple[int, bool], set[Place]]] = {}
        self.steps = 0

    @property
    def cluster(self) -> Any:
        return self.catalog.cluster

    # -- what is done

    def step(self, rng: random.Random) -> None:
        """One command, drawn by `rng` from what means something now; or an old one again."""
        self.steps += 1
        if not self.is_calm and self.old and rng.random() < 0.15:
            command = rng.choice(self.old)
        else:
            kinds = [name for name in dir(self) if name.startswith("do_") and (not self.is_calm or name in CALM)]
            weights = [(CALM if self.is_calm else WEIGHTS).get(name, 4) for name in kinds]
            [kind] = rng.choices(kinds, weights)
            drawn = getattr(self, kind)(rng)
            if drawn is None:
                return
            command = {"v": 1, **drawn}
            self.old.append(command)
        self.apply(command)

    @property
    def is_calm(self) -> bool:
        return self.steps // PHASE % 2 == 1

    def off(self, rng: random.Random) -> int:
        """The error of a number that somebody names."""
        return 0 if self.is_calm else rng.choice((0,) * 9 + (-1, 1))

    def place(self, rng: random.Random) -> Place | None:
        places = sorted(self.cluster.partitions)
        return rng.choice(places) if places else None

    def registration(self, broker: str, rng: random.Random) -> int:
        info = self.cluster.brokers.get(broker)
        number = info.registration if info else 0
        return number + self.off(rng)

    def do_create(self, rng: random.Random) -> Command | None:
        if len(self.catalog.streams) >= 2:
            return None
        self.streams += 1
        return {
            "kind": "create_stream",
            "name": f"s{self.streams}",
            "incarnation": f"i{self.streams}",
            "created_us": 1,
            "settings": {"partitions": rng.randint(1, 2)},
            "replication_factor": (factor := rng.choice((1, 2, 3, 3))),
            "min_insync_replicas": rng.randint(1, factor),
        }

    def do_delete(self, rng: random.Random) -> Command | None:
        if not self.catalog.streams or rng.random() < 0.8:
            return None
        return {"kind": "delete_stream", "name": rng.choice(sorted(self.catalog.streams))}

    def do_add_partitions(self, rng: random.Random) -> Command | None:
        if not self.catalog.streams or rng.random() < 0.7:
            return None
        name = rng.choice(sorted(self.catalog.streams))
        return {"kind": "add_partitions", "name": name, "partitions": rng.randint(1, 4)}

    def do_confirm_partitions(self, rng: random.Random) -> Command | None:
        growing = [info for info in self.catalog.streams.values() if info.partitions_next]
        if not growing:
            return None
        info = rng.choice(growing)
        states = {at[1]: s for at, s in self.cluster.partitions.items() if at[0] == info.incarnation}
        broker = rng.choice(sorted({state.leader for state in states.values() if state.leader} or BROKERS))
        mine = [number for number, state in states.items() if state.leader == broker or rng.random() < 0.05]
        leaders = [[n, states[n].leader_epoch - (rng.random() < 0.05)] for n in mine if rng.random() < 0.9]
        command: Command = {
            "kind": "confirm_partitions",
            "name": info.name,
            "incarnation": info.incarnation,
            "partitions": info.partitions_next + self.off(rng),
            "broker_id": broker,
            "registration": max(0, self.registration(broker, rng)),
            "leaders": leaders,
            "as_of": max(0, max(state.leader_epoch for state in states.values()) + self.off(rng)),
        }
        stage = stage_of(self.cluster, info)
        if stage is not None and (stage.is_stopping or rng.random() < 0.05):
            command["gives_up" if rng.random() < 0.1 else "is_stopped"] = True
        return command

    def do_raise(self, rng: random.Random) -> Command | None:
        if not self.catalog.streams or rng.random() < 0.5:
            return None
        name, factor = rng.choice(sorted(self.catalog.streams)), rng.randint(1, 4)
        command: Command = {"kind": "raise_replication", "name": name, "replication_factor": factor}
        return command | ({"min_insync_replicas": rng.randint(1, factor)} if rng.random() < 0.5 else {})

    def do_register(self, rng: random.Random) -> Command:
        broker = rng.choice(BROKERS)
        own = sorted(at for at, s in self.cluster.partitions.items() if broker in s.replicas)
        sound = [at for at in own if self.is_calm or rng.random() < 0.85]
        command: Command = {
            "kind": "register_broker",
            "broker_id": broker,
            "incarnation": f"p{rng.randrange(1 << 30)}",
            "http": "h",
            "grpc": "g",
            "rack": broker,
            "sound": by_stream(sound),
            "behind": by_stream([at for at in sound if rng.random() < 0.1]),
            "feature_level_max": FEATURE_LEVEL,
        }
        if rng.random() < 0.5:
            info = self.cluster.brokers.get(broker)
            command["after"] = info.registration if info else 0
        if rng.random() < 0.1:
            command["epoch_seen"] = self.cluster.epoch_last + rng.randint(-3, 3)
        return command

    def do_renew(self, rng: random.Random) -> Command:
        brokers = [broker for broker in BROKERS if self.is_calm or rng.random() < 0.8]
        return {"kind": "renew_sessions", "renewals": {b: max(0, self.registration(b, rng)) for b in brokers}}

    def do_fail(self, rng: random.Random) -> Command:
        broker = rng.choice(BROKERS)
        info = self.cluster.brokers.get(broker)
        renewal = (info.renewal if info else 0) - rng.choice((0, 0, 0, 1))
        number = max(0, self.registration(broker, rng))
        return {"kind": "fail_broker", "broker_id": broker, "registration": number, "renewal": max(0, renewal)}

    def do_stop(self, rng: random.Random) -> Command:
        broker = rng.choice(BROKERS)
        return {"kind": "stop_broker", "broker_id": broker, "registration": max(0, self.registration(broker, rng))}

    def do_remove(self, rng: random.Random) -> Command:
        return {"kind": "remove_broker", "broker_id": rng.choice(BROKERS)}

    def replicas(self, broker: str, rng: random.Random) -> list[Any]:
        own = sorted(at for at, s in self.cluster.partitions.items() if broker in s.replicas)
        chosen = [at for at in own if self.is_calm or rng.random() < 0.6]
        return [[*at, self.cluster.partitions[at].step_outs_of(broker) + (rng.random() < 0.05)] for at in chosen]

    def do_opened(self, rng: random.Random) -> Command:
        broker = rng.choice(BROKERS)
        number = max(0, self.registration(broker, rng))
        replicas = self.replicas(broker, rng)
        return {"kind": "report_opened", "broker_id": broker, "registration": number, "replicas": replicas}

    def do_step_out(self, rng: random.Random) -> Command:
        broker = rng.choice(BROKERS)
        return {
            "kind": "step_out",
            "broker_id": broker,
            "registration": max(0, self.registration(broker, rng)),
            "replicas": self.replicas(broker, rng),
            "why": rng.choice(("fsync", "damage", "lost")),
        }

    def do_elect_first(self, rng: random.Random) -> Command:
        return {"kind": "elect_first", "partitions": by_stream(list(self.cluster.partitions))}

    def do_elect_preferred(self, rng: random.Random) -> Command:
        return {"kind": "elect_preferred", "partitions": by_stream(list(self.cluster.partitions))}

    def do_elect_unclean(self, rng: random.Random) -> Command | None:
        at = self.place(rng)
        if at is None or rng.random() < 0.7:
            return None
        stream, number = at
        return {"kind": "elect_unclean", "stream": stream, "partition": number, "broker_id": rng.choice(BROKERS)}

    def do_alter(self, rng: random.Random) -> Command | None:
        at = self.place(rng)
        if at is None:
            return None
        state = self.cluster.partitions[at]
        is_addition = rng.random() < 0.7
        fit = sorted(set(state.replicas) - set(state.isr)) if is_addition else state.isr
        member = rng.choice(fit if fit and rng.random() < 0.8 else BROKERS)
        info = self.cluster.brokers.get(member)
        command: Command = {
            "kind": "alter_isr",
            "stream": at[0],
            "partition": at[1],
            "broker_id": state.leader or rng.choice(BROKERS),
            "leader_epoch": max(0, state.leader_epoch + self.off(rng)),
            "partition_epoch": max(0, state.partition_epoch + self.off(rng)),
        }
        if is_addition:
            number = info.registration if info else 0
            incarnation = [max(0, number + self.off(rng)), state.step_outs_of(member)]
            return {**command, "add": [member, *incarnation]}
        return {**command, "remove": member}

    def do_alter_many(self, rng: random.Random) -> Command | None:
        """Changes of one leader, mostly."""
        drawn = [command for command in (self.do_alter(rng) for _ in range(4)) if command is not None]
        by_place = {(each["stream"], each["partition"]): each for each in drawn}
        if not by_place:
            return None
        rows = [(each, [*at, each["leader_epoch"], each["partition_epoch"]]) for at, each in by_place.items()]
        return {
            "kind": "alter_isrs",
            "broker_id": drawn[0]["broker_id"],
            "add": [[*row, *each["add"]] for each, row in rows if "add" in each],
            "remove": [[*row, each["remove"]] for each, row in rows if "remove" in each],
        }

    def do_report(self, rng: random.Random) -> Command | None:
        at = self.place(rng)
        if at is None:
            return None
        state = self.cluster.partitions[at]
        reporter = rng.choice(state.isr or BROKERS)
        return {
            "kind": "report_leader",
            "broker_id": reporter,
            "registration": max(0, self.registration(reporter, rng)),
            "stream": at[0],
            "partition": at[1],
            "leader_epoch": max(0, state.leader_epoch - rng.choice((0, 0, 0, 1))),
            "at_ms": rng.randrange(4_000),
            "window_ms": 2_000,
        }

    def do_reassign(self, rng: random.Random) -> Command | None:
        at = self.place(rng)
        if at is None or rng.random() < 0.5:
            return None
        target = rng.sample(BROKERS, rng.randint(1, 3))
        command: Command = {"kind": "reassign", "stream": at[0], "partition": at[1], "replicas": target}
        return command | ({"min_insync_replicas": rng.randint(1, len(target))} if rng.random() < 0.5 else {})

    def do_min_insync(self, rng: random.Random) -> Command | None:
        at = self.place(rng)
        if at is None or rng.random() < 0.5:
            return None
        return {"kind": "set_min_insync", "stream": at[0], "min_insync_replicas": rng.randint(1, 3)}

    def do_confirm(self, rng: random.Random) -> Command:
        broker = rng.choice(BROKERS)
        left = [at for at in sorted(self.cluster.leftovers.get(broker, ())) if rng.random() < 0.7]
        return {"kind": "confirm_deleted", "broker_id": broker, "partitions": by_stream(left)}

    # -- what is watched

    def apply(self, command: Command) -> dict[str, Any]:
        """The catalog's result."""
        before = self.catalog.snapshot()
        states = dict(self.cluster.partitions)
        counts = {name: info.settings.partitions for name, info in self.catalog.streams.items()}
        registrations = {b: info.registration for b, info in self.cluster.brokers.items()}
        epoch_last = self.cluster.epoch_last
        try:
            judged = {"ok": self.catalog.judge(command)}
        except LiftlogError as error:
            judged = {"error": error.to_problem()}
        assert refusal(self.catalog, command) == judged.get("error"), "M11"
        result = self.catalog.apply(command)
        assert judged == result, f"W5: {judged} was foretold"
        assert "would break" not in str(result), f"the catalog itself would be broken: {result}"
        json.dumps(result)
        if "error" in result:
            assert self.catalog.snapshot() == before, "W5"
            self.refused += [one for one, said in alone(command, result) if not is_not_ready(said)]
            return result
        assert command not in self.refused, "W4"
        self.journal.append(command)
        self.refused += [one for one, said in alone(command, result) if not is_not_ready(said)]  # from now on
        for late in self.refused[-20:]:
            assert "ok" not in Catalog.apply(self.twin(), late), f"W4: {late}"
        assert self.cluster.epoch_last >= epoch_last, "W3"
        for broker, info in self.cluster.brokers.items():
            assert info.registration >= self.seen.get(broker, 0), "W3"
            self.seen[broker] = info.registration
            is_own = command["kind"] == "register_broker" and command["broker_id"] == broker
            assert (registrations.get(broker) != info.registration) == is_own, "W3"
        for at, state in self.cluster.partitions.items():
            self.watch(command, result["ok"], at, states.get(at), state)
        self.watch_growth(command, states, counts)
        assert {*self.cluster.reports, *self.cluster.confirmed} <= self.cluster.partitions.keys(), "W7: left behind"
        for at in states.keys() - self.cluster.partitions.keys():
            for broker in states[at].replicas:
                assert at in self.cluster.leftovers[broker], "W7"
            self.have_all.pop(at, None)
        to_delete = {stream for left in self.cluster.leftovers.values() for stream, _ in left}
        live = {info.incarnation for info in self.catalog.streams.values()}
        assert set(self.catalog.deleted) == to_delete - live, "W7"
        return result

    def twin(self) -> Catalog:
        """A catalog to try a command on."""
        return Catalog(cluster=self.cluster.copy())

    def watch(
        self, command: Command, ok: dict[str, Any], at: Place, before: PartitionState | None, now: PartitionState
    ) -> None:
        if before is None:
            self.have_all[at] = set()
            return
        grew = now.partition_epoch - before.partition_epoch
        assert grew in (0, 1), "W3"
        assert grew or now == before, "W3"
        assert now.leader_epoch >= before.leader_epoch, "W3"
        if now.leader is not None:
            assert now.leader in now.isr, "W1"
            assert self.leaders.setdefault((at, now.leader_epoch), now.leader) == now.leader, "W1"
            assert now.leader_incarnation == self.cluster.replica_incarnation(now.leader, now), "W1"
            if now.leader_epoch != before.leader_epoch:
                assert self.cluster.brokers[now.leader].is_live, "W1"
        for broker in set(before.replicas) - set(now.replicas):
            assert at in self.cluster.leftovers[broker], "W7"
        if not now.has_led:
            assert not now.last_isr, "P3"
            return
        holders = self.have_all[at]
        lost = self.lost_by(command, ok, at, before)
        is_sole = holders == {lost} and self.is_behind(command, at)  # P9: nobody has more, so it may lead
        assert not is_sole or now.unclean_epoch > before.unclean_epoch, "P9"
        if not is_sole:
            holders -= {lost}
        for member, *incarnation in added_by(command, ok, at):
            assert tuple(incarnation) == self.cluster.replica_incarnation(member, before), "W1"
            assert self.cluster.brokers[member].is_live, "W1"
            holders.add(member)  # it has caught up: the leader says so
        is_first = not before.has_led
        assert not is_first or all(self.cluster.brokers[broker].is_live for broker in now.isr), "P3"
        if is_first or now.unclean_epoch != before.unclean_epoch:
            holders = set(now.isr)
        elif now.leader is not None and now.leader_epoch != before.leader_epoch:
            assert now.leader in holders, f"W2: {now.leader} leads, {sorted(holders)} have it all"
        holders &= set(now.replicas)
        if len(now.isr) >= now.min_insync_replicas:
            assert set(now.isr) <= holders, "W2"
            holders = set(now.isr)
        assert {*now.isr, *now.last_isr} == holders, f"W2: {sorted(holders)} have it all"
        self.have_all[at] = holders

    def watch_growth(self, command: Command, states: dict[Place, PartitionState], counts: dict[str, int]) -> None:
        """W8."""
        for incarnation in {at[0] for at in states.keys() | self.cluster.partitions.keys()}:
            now = {at: s for at, s in self.cluster.partitions.items() if at[0] == incarnation}
            was = {at: s for at, s in states.items() if at[0] == incarnation}
            if {at: s.leader_epoch for at, s in now.items()} != {at: s.leader_epoch for at, s in was.items()}:
                is_last = command["kind"] == "confirm_partitions" and command["incarnation"] == incarnation
                if not is_last:
                    self.confirmed.pop(incarnation, None)
        if command["kind"] == "confirm_partitions" and not command.get("gives_up"):
            known = self.confirmed.setdefault(command["incarnation"], {})
            is_stopped = command.get("is_stopped", False)
            for number, epoch in command["leaders"]:
                at = (command["incarnation"], number)
                if at in states and (states[at].leader, states[at].leader_epoch) == (command["broker_id"], epoch):
                    known.setdefault((command["as_of"], is_stopped), set()).add(at)
        for name, info in self.catalog.streams.items():
            numbers = {at[1] for at in self.cluster.partitions if at[0] == info.incarnation}
            assert numbers == set(range(info.partitions_next or info.settings.partitions)), "W8"
            if counts.get(name, info.settings.partitions) != info.settings.partitions:
                as_of, said = command["as_of"], self.confirmed.pop(info.incarnation)
                epochs = [state.leader_epoch for at, state in states.items() if at[0] == info.incarnation]
                assert as_of == max(epochs), "W8"
                stops = not self.cluster.is_of_one  # `growth.G6`
                for at in ((info.incarnation, number) for number in numbers):
                    assert states[at].leader is not None, "W8"
                    assert at in said[as_of, False] & said[as_of, stops], "W8"
                    assert self.cluster.partitions[at].leader == states[at].leader, "W8"
                    assert (self.cluster.partitions[at].leader_epoch > states[at].leader_epoch) == stops, "W8"
        if command["kind"] == "raise_replication":
            for at, before in states.items():
                now = self.cluster.partitions[at]
                kept = before.target or before.replicas
                assert (now.target or now.replicas)[: len(kept)] == kept, "W8"
                assert set(before.isr) <= set(now.isr), "W8"
                assert now.min_insync_replicas == before.min_insync_replicas or not now.has_led, "W8"

    def lost_by(self, command: Command, ok: dict[str, Any], at: Place, before: PartitionState) -> str | None:
        """The broker whose log of this partition goes with a command."""
        if command["kind"] == "register_broker":
            is_whole = at[1] in command["sound"].get(at[0], ()) and not self.is_behind(command, at)
            return None if is_whole else str(command["broker_id"])
        is_named = command["kind"] == "step_out" and any([*at] == each[:2] for each in ok["stepped_out"])
        return str(command["broker_id"]) if is_named and command["why"] != "fsync" else None

    def is_behind(self, command: Command, at: Place) -> bool:
        """Whether it registers a broker that lacks committed records at the end of a log which is there."""
        is_registration = command["kind"] == "register_broker"
        is_named = is_registration and at[1] in command.get("behind", {}).get(at[0], ())
        return is_named and at[1] in command["sound"][at[0]]

    def finish(self) -> None:
        """W6."""
        snapshot = self.catalog.snapshot()
        again = Catalog()
        for command in self.journal:
            again.apply(command)
        assert again.snapshot() == snapshot, "W6"
        restored = Catalog.restore(json.loads(json.dumps(snapshot)))
        assert restored.snapshot() == snapshot, "W6"
        for command in self.old[-20:]:
            assert restored.apply(command) == again.apply(command), "W6"
        assert restored.snapshot() == again.snapshot(), "W6"
