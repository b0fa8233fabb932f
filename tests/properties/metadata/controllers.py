"""Brokers with sessions, and controllers that come and go, around the catalog and watcher of `cluster.py`.

Each broker counts its own session, and sends its heartbeats to whoever it takes for the controller. Controllers read
the catalog as it was a little ago. Their commands are committed later, or never; answers are late, or lost. A
controller that is deposed does not know it, and goes on:

- in a group as the caller has to keep it (`controller.py`), what it submits from then on is never committed, and what
  it had submitted is committed before its successor begins, or never;
- with `is_lax` it may be committed at any time later. Then W1 to W8 still hold.

Checked besides what `cluster.py` checks:

K1  Each duty has at most one command out at a time (H3).
K2  Nobody is failed whose session is open by its own count (S1, H1, H2), unless the group is lax. How long sessions are
    goes by the partitions that there are (S5): streams come and go.
K3  Once nothing goes wrong any more: who lives is live and has a session, and nobody else is; what can be led is led,
    by the preferred replica; internal streams have their replicas; and then nothing but renewals is submitted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from broker.metadata.catalog import Catalog
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.controller import Controller, HeartbeatArrived, Renewed, Submit, SubmitAnswered, TimePassed
from broker.metadata.session import Beat, Session
from tests.properties.metadata.cluster import BROKERS, Cluster, Command, by_stream

TICK_MS = 100


@dataclass
class Reign:
    """One controller."""

    controller: Controller
    view: Catalog
    out: dict[int, Command] = field(default_factory=dict)


class World:
    """See the module."""

    def __init__(self, rng: random.Random, *, is_lax: bool) -> None:
        self.rng = rng
        self.is_lax = is_lax
        self.cluster = Cluster()
        self.now_ms = 0
        self.sessions: dict[str, Session] = {}
        self.dead: set[str] = set()
        self.late: list[tuple[int, Reign, Submit]] = []  # when it is committed
        self.leftover: list[Submit] = []  # what a lax group had under way when it settled
        self.mail: list[tuple[int, str, Any]] = []  # when what comes to whom
        self.reigns: list[Reign] = []
        self.is_wild = True
        self.submitted: list[str] = []
        self.seen = {"failed": 0, "late": 0}
        for broker in BROKERS:
            self.register(broker)
        for name, internal in (("__offsets", True), ("s", False)):
            settings = {"settings": {"partitions": 2, "subject": None}, "created_us": 1, "internal": internal}
            named = {"name": name, "incarnation": f"i-{name}", "replication_factor": 1 if internal else 3}
            self.apply({"kind": "create_stream", **named, **settings})
        self.depose()

    @property
    def catalog(self) -> Catalog:
        return self.cluster.catalog

    def copied(self) -> Catalog:
        """The catalog as it is now, for who will read it later."""
        return Catalog(streams=dict(self.catalog.streams), cluster=self.catalog.cluster.copy())

    def apply(self, command: Command) -> None:
        self.cluster.apply({"v": 1, **command})

    def register(self, broker: str) -> None:
        own = [at for at, state in self.catalog.cluster.partitions.items() if broker in state.replicas]
        sound = [at for at in own if not self.is_wild or self.rng.random() < 0.9]
        named = {
            "incarnation": f"{self.now_ms}",
            "http": "h",
            "grpc": "g",
            "rack": broker,
            "feature_level_max": FEATURE_LEVEL,
        }
        self.apply({"kind": "register_broker", "broker_id": broker, **named, "sound": by_stream(sound)})
        self.sessions[broker] = Session(self.catalog.brokers[broker].registration, self.now_ms)

    def depose(self) -> None:
        """Another controller begins: what the former has submitted is committed now, or never, or who knows when."""
        kept = []
        for when, reign, submitted in self.late:
            if self.is_lax:
                kept.append((when + self.rng.randrange(3_000), reign, submitted))
            elif self.rng.random() < 0.5:
                self.commit(reign, submitted)
        self.late = kept
        self.reigns = self.reigns[-1:]
        self.reigns.append(Reign(Controller(self.now_ms), self.copied()))

    def commit(self, reign: Reign, submitted: Submit) -> None:
        command = submitted.command
        reign.out.pop(submitted.number, None)
        before = {broker: info.is_live for broker, info in self.catalog.brokers.items()}
        told = self.cluster.apply(command)
        if command["kind"] == "fail_broker" and before.get(command["broker_id"]):
            broker = command["broker_id"]
            if not self.catalog.brokers[broker].is_live:
                self.seen["failed"] += 1
                is_open = broker not in self.dead and self.sessions[broker].is_open(self.now_ms)
                of_lax = self.is_lax or any(submitted is each for each in self.leftover)
                assert of_lax or not is_open, f"K2: {broker}"
        result: Any = None
        if reign is self.reigns[-1] and not (self.is_wild and self.rng.random() < 0.1):
            result = told
        else:
            self.seen["late"] += 1
        self.mail.append((self.now_ms + self.rng.randrange(100), "answer", (reign, submitted.number, result)))

    def tick(self) -> None:
        self.now_ms += TICK_MS
        rng = self.rng
        if self.is_wild:
            self.trouble()
        due = [each for each in self.late if each[0] <= self.now_ms]
        self.late = [each for each in self.late if each[0] > self.now_ms]
        for _, reign, submitted in due:
            self.commit(reign, submitted)
        mail = [each for each in self.mail if each[0] <= self.now_ms]
        self.mail = [each for each in self.mail if each[0] > self.now_ms]
        for _, what, content in mail:
            if what == "answer":
                reign, number, result = content
                if reign in self.reigns:
                    reign.view = self.copied()
                    self.take(reign, SubmitAnswered(number=number, result=result))
            elif what == "beat":
                reign, event = content
                self.take(reign, event)
            else:
                self.sessions[content.broker].renewed(
                    content.registration, content.number, content.renewal, self.now_ms
                )
        for reign in self.reigns:
            if not self.is_wild or rng.random() < 0.5:
                reign.view = self.copied()
            if not (self.is_wild and rng.random() < 0.1):
                self.take(reign, TimePassed())
        for broker, session in self.sessions.items():
            if broker in self.dead:
                continue
            info = self.catalog.brokers[broker]
            if info.registration == session.registration and not (self.is_wild and self.now_ms // 1_000 % 3 == 0):
                session.applied(info.renewal, info.session_ms, self.now_ms)
            for effect in session.tick(self.now_ms):
                if isinstance(effect, Beat) and not (self.is_wild and rng.random() < 0.2):
                    reign = rng.choice(self.reigns) if self.is_wild else self.reigns[-1]
                    event = HeartbeatArrived(broker=broker, registration=effect.registration, number=effect.number)
                    delay = rng.choice((0, 50, 1_500)) if self.is_wild else 20
                    self.mail.append((self.now_ms + delay, "beat", (reign, event)))
        self.keep_up()

    def take(self, reign: Reign, event: Any) -> None:
        for effect in reign.controller.step(event, reign.view, self.now_ms):
            if isinstance(effect, Renewed):
                self.mail.append((self.now_ms + self.rng.randrange(150), "renewed", effect))
                continue
            command = effect.command
            duty = (command["kind"], command.get("broker_id"), command.get("name"))
            assert duty not in [(c["kind"], c.get("broker_id"), c.get("name")) for c in reign.out.values()], "K1"
            reign.out[effect.number] = command
            self.submitted.append(command["kind"])
            if reign is not self.reigns[-1] and not self.is_lax:
                self.mail.append((self.now_ms + 500, "answer", (reign, effect.number, None)))
                reign.out.pop(effect.number)
                continue
            delay = self.rng.choice((10, 100, 900)) if self.is_wild else 10
            self.late.append((self.now_ms + delay, reign, effect))

    def trouble(self) -> None:
        rng = self.rng
        chance = rng.random()
        broker = rng.choice(BROKERS)
        if chance < 0.02:
            self.depose()
        elif chance < 0.04:
            self.dead.add(broker)
        elif chance < 0.06 and broker in self.dead:
            self.dead.discard(broker)
            if rng.random() < 0.5:
                self.register(broker)
        elif chance < 0.07:
            self.register(broker)
        elif chance < 0.09:
            self.come_or_go()

    def come_or_go(self) -> None:
        """A stream is made or deleted: sessions become longer, or would become shorter."""
        if "t" in self.catalog.streams:
            self.apply({"kind": "delete_stream", "name": "t"})
            return
        settings = {"settings": {"partitions": self.rng.choice((1, 4, 8)), "subject": None}, "created_us": 1}
        self.apply(
            {
                "kind": "create_stream",
                "name": "t",
                "incarnation": f"t{self.now_ms}",
                "replication_factor": 2,
                **settings,
            }
        )

    def keep_up(self) -> None:
        """Do the work of brokers: they open what they have, and leaders let in who lives."""
        for broker in BROKERS:
            if broker not in self.dead and self.rng.random() < 0.3 and self.catalog.brokers[broker].is_live:
                states = sorted(self.catalog.cluster.partitions.items())
                own = [
                    [*at, s.step_outs_of(broker)] for at, s in states if broker in s.replicas and broker not in s.opened
                ]
                if own:
                    number = self.catalog.brokers[broker].registration
                    self.apply({"kind": "report_opened", "broker_id": broker, "registration": number, "replicas": own})
        for at, state in sorted(self.catalog.cluster.partitions.items()):
            behind = [b for b in state.opened if b not in state.isr and b not in self.dead]
            if state.leader is None or state.leader in self.dead or not behind or self.rng.random() < 0.7:
                continue
            info = self.catalog.brokers[behind[0]]
            epochs = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
            where = {"stream": at[0], "partition": at[1], "broker_id": state.leader}
            added = [info.broker_id, info.registration, state.step_outs_of(info.broker_id)]
            if info.is_live:
                self.apply({"kind": "alter_isr", **where, **epochs, "add": added})

    def settle(self) -> None:
        """K3."""
        if self.is_lax:
            self.leftover = [submitted for _, _, submitted in self.late]
        self.is_wild = self.is_lax = False
        if self.rng.random() < 0.5:
            self.depose()
        self.reigns = self.reigns[-1:]
        for _ in range(1_500):
            self.tick()
            if self.is_settled() and self.now_ms - self.reigns[-1].controller.began_ms > 60_000:
                break
        assert self.is_settled(), f"K3: {self.catalog.snapshot()}"
        self.submitted = []
        for _ in range(50):
            self.tick()
        assert set(self.submitted) == ({"renew_sessions"} if len(self.dead) < len(BROKERS) else set()), (
            f"K3: {self.submitted}"
        )
        self.cluster.finish()

    def is_settled(self) -> bool:
        for broker, info in self.catalog.brokers.items():
            lives = broker not in self.dead
            if info.is_live != lives or (lives and not self.sessions[broker].is_open(self.now_ms)):
                return False
        live = {broker for broker in BROKERS if broker not in self.dead}
        for (stream, _), state in self.catalog.cluster.partitions.items():
            if stream == "i-__offsets" and len(state.target or state.replicas) < min(3, len(live)):
                return False
            fit = [broker for broker in state.replicas if broker in live and broker in state.isr]
            is_misled = not state.target and state.replicas[0] in fit and state.leader != state.replicas[0]
            if state.has_led and fit and (state.leader is None or is_misled):
                return False
            if not state.has_led and len(fit) >= state.min_insync_replicas:
                return False
        return True
