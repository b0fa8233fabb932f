"""Those who store, commit and expect amid faults, each in a stream of its own. The rules that have to hold:
`operators`, B3 to B7."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import nats
import nats.errors

from broker.api.errors import LiftlogError
from broker.client import Client
from tests.cluster.worker import PATIENT_S, PAUSE_S, Worker


class Trimmer(Worker):
    """A log is written and trimmed (B3)."""

    def prepare(self) -> None:
        self.patient.create_stream("trimmed-ops", replication_factor=3, min_insync_replicas=2, segment_bytes=1 << 16)
        self.acked: dict[int, bytes] = {}
        self.least = self.most = 0
        self._number = 0

    def step(self) -> None:
        if self.rng.random() < 0.7:
            value = b"%d" % self._number
            self._number += 1
            outcome, answer = self.attempt("append", lambda: self.any.append("trimmed-ops", 0, [{"value": value}]))
            if outcome == "done":
                self.acked[answer.first_offset] = value
        elif self.acked:
            before = self.rng.randint(max(self.least, max(self.acked) - 20), max(self.acked) + 1)
            outcome, answer = self.attempt("trim", lambda: self.any.trim("trimmed-ops", before=before))
            assert outcome != "refused", f"trim before {before}, up to {max(self.acked)} is acked: {answer}"
            if outcome in ("done", "in doubt"):
                self.most = max(self.most, before)
            if outcome == "done":
                self.least = max(self.least, before)
                assert answer == {0: answer[0]}, answer
                assert answer[0] >= self.least, f"B3: trimmed before {before}, begins at {answer}"

    def check(self) -> None:
        start = self.patient.describe("trimmed-ops").partitions[0].log_start_offset
        assert start is not None
        assert self.least <= start <= self.most, f"B3: begins at {start}, not in {self.least} to {self.most}"
        table = self.patient.read("trimmed-ops").to_table()
        stored = dict(zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True))
        for offset, value in self.acked.items():
            if offset >= start:
                assert stored.get(offset) == value, f"acked {value!r} at {offset}, where stands {stored.get(offset)!r}"


class Committer(Worker):
    """Offsets are committed and reset (B4)."""

    def prepare(self) -> None:
        self.patient.create_stream("committed-ops", replication_factor=3, min_insync_replicas=2)
        self.patient.append("committed-ops", 0, [{"value": b"x"}] * 1_000)
        self.may_be: set[int | None] = {None}

    def step(self) -> None:
        offset = self.rng.randrange(1_000)
        if self.rng.random() < 0.8:
            call = lambda: self.any.commit("ops", {"committed-ops": {0: offset}})  # noqa: E731
            self._done(offset, *self.attempt("commit", call))
        else:
            call = lambda: self.any.reset("ops", "committed-ops", offset)  # type: ignore[assignment,return-value]  # noqa: E731
            self._done(offset, *self.attempt("reset", call))
        if self.rng.random() < 0.3:
            outcome, answer = self.attempt("look", lambda: self._committed(self.any))
            if outcome == "done":
                assert answer in self.may_be, f"B4: {answer} is committed, and may only be {self.may_be}"

    def _done(self, offset: int, outcome: str, answer: Any) -> None:
        assert outcome != "refused", answer
        if outcome == "done":
            self.may_be = {offset}
        elif outcome == "in doubt":
            self.may_be = self.may_be | {offset}

    def _committed(self, client: Client) -> int | None:
        try:
            return client.consumer("ops").offsets("committed-ops").get(0)
        except LiftlogError as error:
            if error.reason == "unknown_consumer":
                return None
            raise

    def check(self) -> None:
        found = self._committed(self.patient)
        assert found in self.may_be, f"B4: {found} is committed, and may only be {self.may_be}"


class Producing(Worker):
    """An idempotent producer, which repeats by itself (B5)."""

    def prepare(self) -> None:
        self.patient.create_stream("produced-ops", replication_factor=3, min_insync_replicas=2)
        self._producer = self.patient.producer("produced-ops", partition=0, deadline_s=PATIENT_S)
        self.count = 0

    def step(self) -> None:
        sent = [self._producer.send(b"%d" % number) for number in range(self.count, self.count + 5)]
        self.count += len(sent)
        for each in sent:
            each.result(PATIENT_S)
        self.note("produce", "done")

    def check(self) -> None:
        self._producer.close()
        values = [int(value) for value in self.patient.read("produced-ops").to_table().column("value").to_pylist()]
        assert values == list(range(self.count)), "B5: records of a producer are lost, doubled or out of order"


class Keys(Worker):
    """Records with keys in a stream that is compacted (B7)."""

    def prepare(self) -> None:
        self.patient.create_stream(
            "keys-ops",
            replication_factor=3,
            min_insync_replicas=2,
            cleanup="compact",
            segment_bytes=1 << 16,
            segment_age_ms=1_000,
            min_cleanable_dirty_percent=1,
        )
        self.newest: dict[int, int] = {}
        self.doubted: set[tuple[int, int]] = set()
        self._number = 0

    def step(self) -> None:
        batch = [(self.rng.randrange(8), self._number + i) for i in range(20)]
        self._number += len(batch)
        records = [{"key": b"%d" % key, "value": b"%d" % number + bytes(200)} for key, number in batch]
        outcome, _ = self.attempt("put", lambda: self.any.append("keys-ops", 0, records))
        if outcome == "done":
            self.newest |= dict(batch)
        elif outcome == "in doubt":
            self.doubted |= set(batch)

    def check(self) -> None:
        table = self.patient.read("keys-ops").to_table()
        pairs = zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
        stored = [(int(key), int(value.rstrip(b"\0"))) for key, value in pairs]
        for key, number in self.newest.items():
            last = dict(stored).get(key)
            is_right = last == number or (key, last) in self.doubted
            assert is_right, f"B7: the newest of key {key} is {last}, and {number} was acknowledged"


class Expecting(Worker):
    """Publishes over NATS with ids, and with the sequence that it expects (B5, B6); repeats until it is answered."""

    def prepare(self) -> None:
        self.patient.create_stream("chain-ops", subject="chain-ops", replication_factor=3, min_insync_replicas=2)
        self.acked: dict[str, int] = {}
        self._number = self._last = 0

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:
            self.error = error

    async def _publish(self) -> None:
        client = await nats.connect(self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore)
        while not self._stop.is_set():
            await self._one(client)
            await asyncio.sleep(self.rng.uniform(0, PAUSE_S))
        await client.close()

    async def _one(self, client: Any) -> None:
        name, expects = f"m{self._number}", self.rng.random() < 0.5
        self._number += 1
        end_s = time.monotonic() + PATIENT_S
        while not self._stop.is_set():
            headers = {"Nats-Msg-Id": name}
            if expects:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(self._last)
            try:
                reply = await client.request("chain-ops", name.encode(), timeout=2.0, headers=headers)
                answer = json.loads(reply.data)
            except (nats.errors.Error, OSError, ValueError):
                self.note("expect" if expects else "id", "in doubt")
                assert time.monotonic() < end_s, f"{name} is not answered for {PATIENT_S} s"
                await asyncio.sleep(PAUSE_S)
                continue
            if "error" not in answer:
                self.acked[name] = answer["seq"] - 1
                self._last = max(self._last, answer["seq"])
                self.note("expect" if expects else "id", "done")
                return
            error = answer["error"]
            if error.get("err_code") == 10071:  # what it thought had failed was stored: it goes on from there
                self._last = int(error["description"].split("sequence: ")[1].split()[0].rstrip("."))
                self.note("expect", "refused")
                return
            assert time.monotonic() < end_s, f"{name}: {error}"
            await asyncio.sleep(PAUSE_S)

    def check(self) -> None:
        table = self.patient.read("chain-ops").to_table()
        columns = (table.column(name).to_pylist() for name in ("offset", "value", "headers"))
        stored, before = {}, 0
        for offset, value, headers in zip(*columns, strict=True):
            name = value.decode()
            assert name not in stored, f"B5: {name} is at {stored.get(name)} and {offset}"
            stored[name] = offset
            for pair in headers:
                if pair["key"] == "Nats-Expected-Last-Subject-Sequence":
                    assert int(pair["value"]) == before, (
                        f"B6: {name} at {offset} expected {pair['value']}, not {before}"
                    )
            before = offset + 1
        for name, offset in self.acked.items():
            assert stored.get(name) == offset, f"B5: {name} was acked at {offset}, and is at {stored.get(name)}"


async def ignore(error: Exception) -> None:
    """nats-py would log it."""
