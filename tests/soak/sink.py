"""A query that stages batches and commits them, as Spark does: after an error it opens its sink anew and replays the
batch that was not acknowledged, its rows spread otherwise."""

from __future__ import annotations

import time

from broker.api.errors import LiftlogError
from broker.client import Client
from tests.soak.ledger import Message
from tests.soak.producer import HttpWriter, as_rows

ROWS = 24


class SinkWriter(HttpWriter):
    """Commits batch after batch to two partitions. `ledger.batches`: batch -> (attempt, rows) of what was answered."""

    _batch = 0
    _attempt = 0
    deadline_s = 3.0

    def write(self, client: Client) -> None:
        sink = client.sink("query")
        last = sink.open().last
        if self._batch and (last is None or last.batch_id < self._batch - 1):
            self.ledger.violate(f"sink: batch {self._batch - 1} was committed, the sink knows {last}")
        while not self.is_stopped:
            begun_s = time.monotonic()
            self._attempt += 1
            shares: dict[int, list[Message]] = {}
            for row in range(ROWS):
                message = Message(
                    f"sink-{self._batch}-{row}-{self._attempt}", self.stream, self.rng.choice((0, 100, 5_000))
                )
                shares.setdefault(self.rng.randrange(3), []).append(self.ledger.new(message))
            stages = [sink.stage(as_rows(rows), self.stream, self.rng.randrange(2)) for rows in shares.values()]
            attributes = {"checkpoint": "/soak", "attempt": str(self._attempt)}
            answer = sink.commit(self._batch, stages, digest=str(self._batch), attributes=attributes)
            assert answer.sink.last is not None
            decided = int(answer.sink.last.attributes["attempt"])
            if answer.outcome == "committed" and decided != self._attempt:
                raise LiftlogError(f"sink: attempt {self._attempt} was committed as {decided}")
            self.ledger.batches[self._batch] = (decided, ROWS)
            self._batch += 1
            self.ledger.note_progress(self.stream, begun_s)
            self.wait()
