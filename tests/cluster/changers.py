"""Those whose streams get more partitions, other replicas and whole batches amid faults. The rules: `operators`, B2 and
B8 to B10."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from typing import Any, Final

import nats
import nats.errors

from broker.api.errors import LiftlogError
from tests.cluster.users import ignore
from tests.cluster.worker import PAUSE_S, Worker
from tests.support.acks import place_of

MOST: Final = 12
ROWS: Final = 12


class Growing(Worker):
    """Partitions are added to a stream with keys, while messages with ids come over NATS (B8)."""

    stream = "grown-ops"

    def prepare(self) -> None:
        self.patient.create_stream(
            self.stream,
            subject=self.stream,
            partitions=1,
            partition_by="key",
            replication_factor=3,
            min_insync_replicas=2,
        )
        self.acked: dict[str, tuple[int, int]] = {}
        self.least = self.most = 1
        self._number = 0

    def _run(self) -> None:
        try:
            asyncio.run(self._go_on())
        except BaseException as error:
            self.error = error

    async def _go_on(self) -> None:
        client = await nats.connect(self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore)
        while not self._stop.is_set():
            adding = asyncio.create_task(asyncio.to_thread(self._add)) if self.rng.random() < 0.05 else None
            await self._publish(client)
            await asyncio.sleep(self.rng.uniform(0, PAUSE_S))
            while adding is not None and not adding.done():
                await self._publish(client)
                await asyncio.sleep(0)  # at the end nothing is published: the loop has to hear what was added
            if adding is not None:
                adding.result()
        await client.close()

    def _add(self) -> None:
        count = self.rng.randint(self.least, min(self.most + 2, MOST))
        outcome, answer = self.attempt("add partitions", lambda: self.any.add_partitions(self.stream, count))
        if outcome == "done":
            self.most = max(self.most, count)
            self.least = max(self.least, answer.settings["partitions"])
        elif outcome == "in doubt":
            self.most = max(self.most, count)

    async def _publish(self, client: Any) -> None:
        name = f"g{self._number}"
        self._number += 1
        headers = {"Nats-Msg-Id": name, "Liftlog-Key": f"k{self._number % 40}"}
        while not self._stop.is_set():
            try:
                reply = await client.request(self.stream, name.encode(), timeout=2.0, headers=headers)
                answer = json.loads(reply.data)
            except (nats.errors.Error, OSError, ValueError):
                self.note("keyed", "in doubt")
            else:
                if "error" not in answer:
                    self.acked[name] = place_of(answer)
                    self.note("keyed", "done")
                    return
                self.note("keyed", "not now")
            await asyncio.sleep(PAUSE_S)

    def check(self) -> None:
        counts = {client.describe(self.stream).settings["partitions"] for client in self.hasty}
        assert len(counts) == 1, f"B8: brokers disagree: {counts} partitions"
        assert self.least <= counts.pop() <= self.most, f"B8: {counts} partitions, not {self.least} to {self.most}"
        stored: dict[tuple[int, int], str] = {}
        for batch in self.patient.read(self.stream, columns=["partition", "offset", "value"]):
            rows = zip(*(batch.column(i).to_pylist() for i in range(batch.num_columns)), strict=True)
            named = [dict(zip(batch.schema.names, row, strict=True)) for row in rows]
            stored |= {(row["partition"], row["offset"]): row["value"].decode() for row in named}
        for name, place in self.acked.items():
            assert stored.get(place) == name, f"B8: {name} was acked at {place}, where stands {stored.get(place)}"
        twice = [each for each, count in Counter((p, name) for (p, _), name in stored.items()).items() if count > 1]
        assert not twice, f"B5: stored twice in one partition: {twice[:5]}"


class Moved(Worker):
    """A partition gets other replicas, and other leaders, while it is written to (B9)."""

    stream = "moved-ops"

    def prepare(self) -> None:
        self.ids = [broker.id for broker in self.patient.cluster().brokers]
        self.patient.create_stream(self.stream, replication_factor=2, min_insync_replicas=1)
        self._producer = self.patient.producer(self.stream, partition=0, deadline_s=120.0)
        self.count = 0

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.03:
            replicas = self.rng.sample(self.ids, self.rng.randint(2, 3))
            self.attempt("reassign", lambda: self.any.reassign(self.stream, replicas))
        elif what < 0.06:
            self.attempt("elect preferred", lambda: self.any.elect_preferred(self.stream))
        sent = [self._producer.send(b"%d" % number) for number in range(self.count, self.count + 5)]
        self.count += len(sent)
        for each in sent:
            each.result(120.0)
        self.note("write to what moves", "done")

    def check(self) -> None:
        self._producer.close()
        values = [int(value) for value in self.patient.read(self.stream).to_table().column("value").to_pylist()]
        assert values == list(range(self.count)), "B9: records of a partition that was moved are lost, doubled, mixed"


class Sinking(Worker):
    """Batches of a sink are staged and committed; what is not answered is staged again, by a new epoch (B10)."""

    stream = "sunk-ops"

    def prepare(self) -> None:
        self.patient.create_stream(self.stream, partitions=2, replication_factor=3, min_insync_replicas=2)
        self.decided: dict[int, int] = {}
        self._batch = self._attempt = 0
        self._sink: Any = None

    def step(self) -> None:
        try:
            if self._sink is None:
                client = self.patient if self.rng.random() < 0.2 else self.any
                self._sink = client.sink("ops")
                last = self._sink.open().last
                known = -1 if last is None else last.batch_id
                assert known >= self._batch - 1, f"B10: batch {self._batch - 1} was committed, the sink knows {known}"
            self._commit()
        except LiftlogError as error:
            self.note("commit a batch", "in doubt" if error.fields.get("sent") else "not now")
            self._sink = None

    def _commit(self) -> None:
        self._attempt += 1
        rows = [{"value": b"%d-%d-%d" % (self._batch, row, self._attempt)} for row in range(ROWS)]
        cut = self.rng.randint(1, ROWS - 1)
        stages = [self._sink.stage(part, self.stream, number) for number, part in enumerate((rows[:cut], rows[cut:]))]
        attributes = {"attempt": str(self._attempt)}
        answer = self._sink.commit(self._batch, stages, digest=str(self._batch), attributes=attributes)
        self.decided[self._batch] = int(answer.sink.last.attributes["attempt"])
        self.note("commit a batch", "done")
        self._batch += 1

    def check(self) -> None:
        rows: Counter[tuple[int, int]] = Counter()
        attempts: dict[int, set[int]] = defaultdict(set)
        for value in self.patient.read(self.stream).to_table().column("value").to_pylist():
            batch, row, attempt = map(int, value.split(b"-"))
            rows[batch, row] += 1
            attempts[batch].add(attempt)
        twice = [place for place, count in rows.items() if count > 1]
        assert not twice, f"B10: rows are there twice: {twice[:5]}"
        for batch, found in attempts.items():
            assert len(found) == 1, f"B10: batch {batch} is of the attempts {found}"
            assert sum(place[0] == batch for place in rows) == ROWS, f"B10: batch {batch} is not whole"
        for batch, attempt in self.decided.items():
            assert attempts.get(batch) == {attempt}, (
                f"B10: batch {batch}: {attempts.get(batch)}, {attempt} was answered"
            )
