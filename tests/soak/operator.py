"""The operator: at random moments it does to streams, disk, clock and processes what people and machines do to them.

Each operation is a method of `Operator` with a weight in `OPERATIONS`. It draws what it does from the seed before it
does it, tells the story, notes in the ledger what may be gone for it, and leaves everything open and well. Between two
operations it may wait until everybody has got on (`World.all_go_on`), so that what stops for good is noticed before a
restart heals it.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any

from broker.api.errors import LiftlogError
from tests.soak import chain
from tests.soak.world import World, begins_as, window_ms_of

IDS_FEW = 5_000
"""`dedup_ids_max` of a table that is full after seconds of bursts, but for a short window."""
KEPT: dict[str, list[Any]] = {
    "acks": ["all", "leader"],
    "linger_ms": [0, 1, 5, 50],
    "batch_bytes": [1 << 10, 4 << 10, 16 << 10, 1 << 20],
    "batch_records": [1, 7, 1_000, 65_536],
    "record_bytes_max": [400 << 10, 1 << 20, 8 << 20],
    "segment_bytes": [1 << 16, 1 << 16, 1 << 17, 1 << 20],
    "segment_age_ms": [1_000, 60_000, 86_400_000],
    "fsync_interval_ms": [1, 50, 1_000],
    "coalesce_min_batch_bytes": [0, 1 << 12, 1 << 16],
    "compression": ["none", "lz4", "zstd"],
    "delete_retention_ms": [0, 86_400_000],
    "min_compaction_lag_ms": [0, 2_000],
    "min_cleanable_dirty_percent": [0, 1, 50],
    "dedup_ids_max": [IDS_FEW, 100_000, 1 << 22],
    "subjects_max": [0, 100, 1 << 20],
    "payload_schema": ["item BIGINT", "item STRING, at TIMESTAMP", None],
    "envelopes": ["open", "keep"],
}
"""Settings that let go of nothing."""
EXPIRING: dict[str, list[Any]] = {
    "retention_ms": [3_000, 60_000, None],
    "retention_bytes": [1 << 18, 1 << 22, None],
    "retention_records": [200, 5_000, None],
}
WINDOWS_MS = [0, 1_000, 30_000, 120_000, 3_600_000]
"""`dedup_window_ms`, where there are ids: what a repeat may be told follows from it (`History.windows`)."""
SEGMENTS = r"\.arrows$"
SMALL_FILES = r"(?<!\.arrows)$"


class Operator:
    """See the module.

    Args:
        seed: Decides the sequence of operations.
        names: Operations to choose from; the others are passed over when their turn comes.
    """

    kept = KEPT
    stands_still_s: tuple[float, ...] = (0.05, 0.5, 2.0)
    operations: Mapping[str, tuple[float, Callable[[Any], None]]]
    """By name: how often, and how."""

    def __init__(self, world: World, seed: str, names: Collection[str]) -> None:
        self.names = names
        self.world = world
        self.rng = random.Random(f"{seed}/operator")
        self.ledger = world.ledger
        self.story = world.ledger.story
        self.client = world.client
        self.count = 0
        self._clock_ms = 0

    def run(self, until_s: float) -> None:
        """Operate until then. Raises what was met."""
        names, weights = list(self.operations), [weight for weight, _ in self.operations.values()]
        while time.monotonic() < until_s:
            (name,) = self.rng.choices(names, weights)
            pause_s, probes = self.rng.choice([0.0, 0.05, 0.3]), self.rng.random() < 0.5
            if name not in self.names:
                continue
            self.count += 1
            self.before(name)
            try:
                self.operations[name][1](self)
            except LiftlogError as error:
                self.story.tell(f"{name}: {error.reason}: {error}")
                if error.reason == "internal":
                    self.ledger.violate(f"{name}: an answer of 500: {error}")
            self.world.everywhere("clear")
            self.after(name)
            time.sleep(pause_s)
            self.world.look()
            if probes:
                self.world.all_go_on()
        self.story.tell("operator: done")

    def before(self, name: str) -> None:
        """Something is about to be done."""

    def after(self, name: str) -> None:
        """It was done, or has failed; no disk fails any more."""

    def faults(self, do: str, **values: Any) -> dict[str, int]:
        return self.world.faults.order(do, **values)

    def any_captured(self) -> str:
        return self.rng.choice(self.world.captured)

    def any_stream(self) -> str:
        return self.rng.choice([*self.world.captured, *self.world.written])

    # --- streams ---------------------------------------------------------------------------------------------

    def _some_settings(self, stream: str) -> dict[str, Any]:
        history = self.ledger.histories[stream]
        values = {
            key: self.rng.choice(self.kept[key]) for key in self.rng.sample(sorted(self.kept), self.rng.randint(1, 3))
        }
        if stream == "chain" and values.get("subjects_max") == 0:
            values["subjects_max"] = 1  # with 0 its publishers would be refused
        if history.may_compact:
            values["cleanup"] = self.rng.choice(["compact", "compact", "delete", "both"])
            history.may_expire |= values["cleanup"] == "both"  # from now on
        if history.windows and self.rng.random() < 0.2:
            values["dedup_window_ms"] = self.rng.choice(WINDOWS_MS)
        if history.windows and values.get("dedup_ids_max") == IDS_FEW:  # it must not be full for long
            values["dedup_window_ms"] = min(values.get("dedup_window_ms", 1_000), 1_000)
        elif values.get("dedup_window_ms", 0) > 1_000:
            values.setdefault("dedup_ids_max", 100_000)
        if history.may_expire and self.rng.random() < 0.5:
            key = self.rng.choice(sorted(EXPIRING))
            values[key] = self.rng.choice(EXPIRING[key])
        if history.is_loose and self.rng.random() < 0.5:
            values["fsync"] = self.rng.choice(["batch", "interval"])
        return values

    def alter(self) -> None:
        stream = self.any_stream()
        values = self._some_settings(stream)
        self.story.tell(f"alter {stream} {values}")
        with ExitStack() as stack:
            if "dedup_window_ms" in values:
                stack.enter_context(self.ledger.histories[stream].window_changes(values["dedup_window_ms"]))
            self.client.alter(stream, **values)

    def alter_often(self) -> None:
        stream = self.any_captured()
        self.story.tell(f"alter {stream} 30 times")
        for _ in range(30):
            self.client.alter(stream, linger_ms=self.rng.choice([0, 1, 5]), batch_bytes=self.rng.choice([4096, 16384]))

    def be_silent(self) -> None:
        """No acks for a while. Not by `reply_acks` where expectations are checked (`rules.R6`): it minds none."""
        stream, key = self.any_captured(), self.rng.choice(["acks", "reply_acks"])
        if stream == chain.STREAM:
            key = "acks"
        self.story.tell(f"alter {stream}: no acks by {key}")
        self.client.alter(stream, **({"acks": "none"} if key == "acks" else {"reply_acks": False}))
        time.sleep(0.2)
        self.client.alter(stream, acks="all", reply_acks=True)

    def add_partitions(self) -> None:
        now = len(self.client.describe("parts").partitions)
        if now >= 12:
            return
        self.story.tell(f"add-partitions parts {now + 1}")
        begun_s = time.monotonic()
        grown = self.ledger.histories["parts"].grown
        grown.append((begun_s, float("inf")))
        found = self.client.add_partitions("parts", now + 1)
        if found.settings["partitions"] > now:  # else it is under way
            grown[-1] = (begun_s, time.monotonic())

    def pause(self) -> None:
        stream, for_s = self.any_stream(), self.rng.choice([0.0, 0.3])
        self.story.tell(f"pause {stream} for {for_s} s")
        self.client.pause(stream)
        time.sleep(for_s)
        self.client.resume(stream)

    def read_only(self) -> None:
        stream, for_s = self.any_stream(), self.rng.choice([0.0, 0.3])
        self.story.tell(f"read-only {stream} for {for_s} s")
        self.client.set_read_only(stream)
        time.sleep(for_s)
        self.client.set_read_only(stream, False)

    def trim(self) -> None:
        stream, share = self.rng.choice(["brief", "parts", "loose"]), self.rng.choice([0.3, 0.9, 1.0])
        one = self.rng.choice(self.client.describe(stream).partitions)
        if one.log_start_offset is None or one.high_watermark is None:
            return  # nobody leads it just now
        before = int(one.log_start_offset + share * (one.high_watermark - one.log_start_offset))
        self.story.tell(f"trim {stream}/{one.partition} before {before}")
        trimmed = self.ledger.histories[stream].trimmed
        trimmed[one.partition] = max(before, trimmed.get(one.partition, 0))
        self.client.trim(stream, before=before, partitions=[one.partition])

    def make_anew(self) -> None:
        self.story.tell("delete brief, create it")
        self.client.delete_stream("brief", missing_ok=True)
        settings = begins_as("brief", len(self.world.brokers))
        self.client.create_stream("brief", **settings)
        self.ledger.histories["brief"].made_anew(window_ms_of(settings))

    def make_other(self) -> None:
        """Streams come and go beside the others; the second one captures what the first stream does."""
        self.story.tell("create and delete others")
        try:
            self.client.create_stream("other", subject="other")
            self.client.create_stream("copy", subject="ids", reply_acks=False, retention_records=10)
            time.sleep(self.rng.choice([0.0, 0.3]))
        finally:
            self.client.delete_stream("other", missing_ok=True)
            self.client.delete_stream("copy", missing_ok=True)

    def reset_consumer(self) -> None:
        stream = self.any_stream()
        self.story.tell(f"reset consumer c-reset of {stream}")
        self.client.commit("c-reset", {stream: {0: 0}})
        self.client.reset("c-reset", stream, self.rng.choice(["earliest", "latest"]))
        if self.rng.random() < 0.3:
            self.client.delete_consumer("c-reset")

    def compact(self) -> None:
        self.story.tell("compact keyed")
        self.client.alter(
            "keyed", cleanup="compact", min_cleanable_dirty_percent=0, segment_bytes=1 << 16, segment_age_ms=1_000
        )

    # --- the disk --------------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        room, for_s = self.rng.choice([0, 5_000, 1_500_000, 4_000_000]), self.rng.choice([0.3, 1.0])
        then = self.rng.choice(["wait", "trim", "alter"])
        self.story.tell(f"disk: {room} bytes are left for {for_s} s, {then}")
        self.faults("room", bytes=room)
        time.sleep(for_s)
        try:  # its answer may be lost
            if then == "trim":
                self.world.hasty.trim("brief", before="latest")
            elif then == "alter":
                self.world.hasty.alter("ids", linger_ms=1)
        finally:
            self.ledger.histories["brief"].trimmed |= dict.fromkeys(range(16), 1 << 62) if then == "trim" else {}

    def fail_writes(self) -> None:
        number = self.rng.choice([errno.EIO, errno.EIO, errno.ENOSPC])
        count, part = self.rng.choice([1, 1, 3, 10]), self.rng.random() < 0.4
        call = self.rng.choice(["write", "write", "extend", "truncate"])
        self.story.tell(f"disk: {count} {call} of segments fail, {os.strerror(number)}{', half done' if part else ''}")
        for _ in range(self.rng.choice([1, 4, 10])):
            self.faults("fail", call=call, match=SEGMENTS, count=count, number=number, part=part)
            time.sleep(0.1)

    def refuse_many(self) -> None:
        """No space for every other batch, while the table of ids grows: it is small, since the log has recovered."""
        times = self.rng.choice([2, 4, 6])
        self.story.tell(f"disk: an fsync of short fails, then every other write of it, {times} times")
        match = f"/short/.*{SEGMENTS}"
        self.ledger.harmed_s = time.monotonic()
        for _ in range(times):
            self.faults("fail", call="fsync", match=match)
            time.sleep(0.05)
            self.faults("fail", call="write", match=match, count=1 << 20, number=errno.ENOSPC, share=0.5)
            time.sleep(0.5)
            self.faults("clear")

    def fail_reads(self) -> None:
        """Reads fail for a while: of readers, compaction, coalescing, scrub, and of a log that recovers."""
        match, what = self.rng.choice([(SEGMENTS, "segments"), (SEGMENTS, "segments"), (SMALL_FILES, "small files")])
        count, share = self.rng.choice([1, 3, 100]), self.rng.choice([0.2, 1.0])
        recovers = self.rng.random() < 0.4
        then = "; an fsync fails" * recovers
        self.story.tell(f"disk: {count} reads of {what} fail, {share:.0%} of those{then}")
        self.ledger.harmed_s = time.monotonic()
        self.faults("fail", call="read", match=match, count=count, share=share)
        if recovers:
            self.faults("fail", call="fsync", match=f"/{self.any_stream()}/.*{SEGMENTS}")
        time.sleep(self.rng.choice([0.1, 0.5]))

    def fail_syncs(self) -> None:
        count, evict = self.rng.choice([1, 1, 3]), self.rng.random() < 0.7
        first, delay_s = self.rng.random() < 0.8, self.rng.choice([0.0, 0.1, 0.3, 0.5])
        stream = self.rng.choice([self.any_stream(), self.any_stream(), "http"])  # whose appends roll a segment each
        self.story.tell(f"disk: {count} fsyncs of {stream} fail after {delay_s} s{', pages gone at once' * evict}")
        self.ledger.harmed_s = time.monotonic()
        for _ in range(self.rng.choice([2, 4, 10])):
            match = f"/{stream}/.*{SEGMENTS}"
            self.faults("fail", call="fsync", match=match, count=count, evict=evict, tell_first=first, delay_s=delay_s)
            time.sleep(0.1)

    def fail_small_files(self) -> None:
        """Checkpoints, state files, stages, the catalog: whatever is no segment."""
        call = self.rng.choice(["write", "fsync", "open", "replace"])
        count, number = self.rng.choice([1, 5]), self.rng.choice([errno.EIO, errno.ENOSPC])
        then = self.rng.choice(["alter", "compact", "none", "make_anew"])
        self.story.tell(f"disk: {count} {call} of small files fail, {os.strerror(number)}; {then}")
        self.ledger.harmed_s = time.monotonic()
        self.faults("fail", call=call, match=SMALL_FILES, count=count, number=number, evict=True)
        time.sleep(0.05)
        if then != "none":
            getattr(self, then)()
        time.sleep(0.2)

    def evict(self) -> None:
        self.story.tell("disk: lost pages are gone")
        self.faults("evict")

    # --- processes and the clock -----------------------------------------------------------------------------

    def kill_broker(self) -> None:
        evicts = self.rng.random() < 0.5
        self.story.tell(f"kill -9 broker{', lost pages are gone' * evicts}")
        if evicts:
            self.faults("evict")
        self.world.broker.kill9()
        if self.rng.random() < 0.2:
            self.story.tell("and again, while it starts")
            self.world.broker.start(wait=False)
            time.sleep(self.rng.uniform(0.3, 1.0))
            self.world.broker.kill9()
        self._start()

    def cut_power(self) -> None:
        seed = self.rng.randrange(1 << 30)
        self.story.tell(f"power cut {seed}")
        self.ledger.harmed_s = time.monotonic()
        self.world.faults.power_cut(seed)
        self.world.broker.kill9()
        self._start()

    def restart_broker(self) -> None:
        self.story.tell("restart broker")
        code = self.world.broker.stop()
        if code != 0:
            self.ledger.violate(f"the broker ended with {code} on SIGTERM")
        self._start()

    def _start(self) -> None:
        self.world.broker.start()
        self.story.tell("broker is there")

    def kill_nats(self) -> None:
        self.story.tell("kill -9 nats-server")
        self.world.nats.kill9()
        time.sleep(self.rng.choice([0.0, 0.5]))
        self.world.nats.start()

    def freeze(self) -> None:
        which, for_s = self.rng.choice(["broker", "nats-server"]), self.rng.choice(self.stands_still_s)
        self.story.tell(f"freeze {which} for {for_s} s")
        process = self.world.broker.process if which == "broker" else self.world.nats.process
        assert process is not None
        os.kill(process.popen.pid, signal.SIGSTOP)
        time.sleep(for_s)
        os.kill(process.popen.pid, signal.SIGCONT)

    def move_clock(self) -> None:
        by_ms = self.rng.choice([-3_600_000, -30_000, -5_000, -200, 200, 3_000, 30_000, 3_600_000])
        self.story.tell(f"clock {by_ms:+} ms")
        self._clock_ms += by_ms
        self.ledger.clocks_set.append(time.monotonic())
        self.faults("clock", ahead_ms=self._clock_ms)
        if self.rng.random() < 0.5:
            self.kill_broker()  # what was stored just now comes again, by another clock


OPERATIONS: dict[str, tuple[float, Callable[[Operator], None]]] = {
    "alter": (10, Operator.alter),
    "alter_often": (5, Operator.alter_often),
    "be_silent": (1, Operator.be_silent),
    "add_partitions": (3, Operator.add_partitions),
    "pause": (4, Operator.pause),
    "read_only": (3, Operator.read_only),
    "trim": (4, Operator.trim),
    "make_anew": (3, Operator.make_anew),
    "make_other": (2, Operator.make_other),
    "reset_consumer": (2, Operator.reset_consumer),
    "compact": (2, Operator.compact),
    "fill_disk": (3, Operator.fill_disk),
    "fail_writes": (6, Operator.fail_writes),
    "refuse_many": (4, Operator.refuse_many),
    "fail_reads": (5, Operator.fail_reads),
    "fail_syncs": (12, Operator.fail_syncs),
    "fail_small_files": (4, Operator.fail_small_files),
    "evict": (3, Operator.evict),
    "kill_broker": (3, Operator.kill_broker),
    "cut_power": (3, Operator.cut_power),
    "restart_broker": (1, Operator.restart_broker),
    "kill_nats": (2, Operator.kill_nats),
    "freeze": (2, Operator.freeze),
    "move_clock": (3, Operator.move_clock),
}
"""Operations: how often each comes, and how it is done."""
Operator.operations = OPERATIONS
