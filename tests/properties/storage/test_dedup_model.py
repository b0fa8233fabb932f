"""Message ids against a list: in its window each is stored once, whatever becomes of the log, and every repeat is told
where.

Publishers repeat ids, also within a batch, and after their window. Others append over HTTP, with ids of their own. The
log rolls, is trimmed, fails to write, loses an fsync, is killed, loses power, cannot write its state files. The model
is the list of the records that are in the log, and what a table would know that had seen them one by one.
"""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.storage.memory import ids as dedup
from broker.storage.memory.ids import IdTable
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from tests.support.acks import offset_of
from tests.support.effort import first_short
from tests.support.lives import LifeOfALog, life
from tests.support.published import batch_from_nats, publish, with_id
from tests.support.simdisk import MODES, Mode

WINDOW_MS = 50
IDS_MAX = 12
ID = st.sampled_from(["", "a", "b", "c", "d", *(f"id-{i}" for i in range(20))])


def batch_over_http(ids: list[str], now_us: int) -> RowBatch:
    n = len(ids)
    headers = [[{"key": "Nats-Msg-Id", "value": text.encode()}] if text else None for text in ids]
    columns = [
        pa.array([now_us] * n, pa.timestamp("us", "UTC")),
        pa.array(["s"] * n),
        pa.nulls(n, pa.binary()),
        pa.array([text.encode() for text in ids], pa.binary()),
        pa.array(headers, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


class IdsMachine(LifeOfALog):
    """See the module."""

    LARGE = ("broker.storage.remembered.IDS_KEPT_AT_ONCE", 0)

    def __init__(self) -> None:
        super().__init__(LogSettings(segment_bytes=6_000, dedup_window_ms=WINDOW_MS, dedup_ids_max=IDS_MAX))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(dedup, "CAPACITY_MIN", 2)  # it grows all the time
        self.records: list[tuple[str, int]] = []  # id, time: all of the log
        self.known: dict[str, tuple[int, int]] = {}  # id -> offset, time
        self.table: IdTable | None = None
        self.read_us = 0

    @property
    def since_us(self) -> int:
        return self.now_us - WINDOW_MS * 1_000

    def may_know(self, time_us: int) -> bool:
        """A table that is read anew may take what is not known for longer for new (`ages.A2`)."""
        table = self.log.remembered.known().ids
        if table is not self.table:
            self.table, self.read_us = table, self.now_us
        return max(time_us, self.read_us) > self.since_us

    def take(self, text: str, time_us: int) -> None:
        if text:
            self.known[text] = (len(self.records), time_us)
        self.records.append((text, time_us))

    @rule(ids=st.lists(ID, min_size=1, max_size=4))
    def publish(self, ids: list[str]) -> None:
        may = {text for text, (_, time_us) in self.known.items() if self.may_know(time_us)}
        told = publish(self.log, [(text.encode(), with_id(text)) for text in ids], self.now_us)
        for text, answer in zip(ids, told, strict=True):
            known = self.known.get(text)
            if known is not None and (known[1] > self.since_us or (text in may and answer.get("duplicate"))):
                assert (answer.get("duplicate"), offset_of(answer)) == (True, known[0])
            elif "error" in answer:
                assert answer["error"]["err_code"] == 10167
                assert text
                assert len(self.log.remembered.known().ids) >= IDS_MAX
            else:
                assert (answer.get("duplicate", False), offset_of(answer)) == (False, len(self.records))
                self.take(text, self.now_us)
                may.discard(text)
        assert self.log.state.log_end_offset == len(self.records)

    @rule(ids=st.lists(ID, min_size=1, max_size=3))
    def append_over_http(self, ids: list[str]) -> None:
        if len(self.log.remembered.known().ids) > IDS_MAX:
            ids = [""]  # they count beyond the bound, so it cannot be shown to hold
        result = self.log.append([batch_over_http(ids, self.now_us)], leader_epoch=0, now_us=self.now_us)
        assert result.first_offset == len(self.records)
        for text in ids:
            self.take(text, self.now_us)

    @rule(data=st.data())
    def expect_the_sequence(self, data: st.DataObject) -> None:
        expected = data.draw(st.integers(max(0, len(self.records) - 1), len(self.records) + 1))
        [answer] = publish(self.log, [(b"", (("Nats-Expected-Last-Sequence", str(expected)),))], self.now_us)
        if expected == len(self.records):
            assert answer["seq"] == expected + 1
            self.take("", self.now_us)
        else:
            assert answer["error"]["description"].startswith(f"wrong last sequence: {len(self.records)} ")

    @rule(text=ID)
    def expect_the_id(self, text: str) -> None:
        if not text:
            return
        last = self.records[-1][0] if self.records else ""
        [answer] = publish(self.log, [(b"", (("Nats-Expected-Last-Msg-Id", text),))], self.now_us)
        if text == last:
            assert offset_of(answer) == len(self.records)
            self.take("", self.now_us)
        else:
            assert answer["error"]["description"].startswith(f"wrong last msg ID: {last} ")

    @rule(ms=st.sampled_from([1, 20, WINDOW_MS - 1, WINDOW_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_us += ms * 1_000

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def lose_power(self, mode: Mode, seed: int) -> None:
        end = self.after_power_loss(mode, seed)
        kept, self.records, self.known = self.records[:end], [], {}
        for text, time_us in kept:
            self.take(text, time_us)

    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]), ids=st.lists(ID, min_size=1, max_size=3))
    def fail_to_write(self, kind: int, ids: list[str]) -> None:
        """M2. Nothing is appended, so a repeat is not one."""
        batch = batch_from_nats([(b"x", with_id(text)) for text in ids] + [(b"x", ())], self.now_us)
        self.append_in_vain([batch], kind)

    @rule(text=ID)
    def fail_to_sync(self, text: str) -> None:
        self.publish([text])
        self.sync_in_vain()

    def teardown(self) -> None:
        self.patch.undo()
        if not hasattr(self, "log"):
            return
        table = self.log.remembered.known().ids
        for text, (offset, time_us) in self.known.items():
            found = table.find(text.encode(), self.since_us)
            assert found == (offset if time_us > self.since_us else -1) or (found == offset and self.may_know(time_us))
        self.check_stored("value", [text.encode() for text, _ in self.records])


@pytest.mark.parametrize("lives", first_short([20, 60]))
def test_ids(lives: int) -> None:
    run_state_machine_as_test(IdsMachine, settings=life(lives))
