"""Expected sequences of subjects against a dictionary: each is held against the last record on its subject, whatever
becomes of the log, and who cannot be told is sent away.

Publishers expect right and wrong sequences, several in a batch, among messages that expect nothing. Others append over
HTTP, and commit groups. The log rolls, is trimmed, fails to write, loses an fsync, is killed, loses power, cannot write
its state files; the table is built at once, or in pieces beside all that. The model is the list of the records'
subjects.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.storage import tracking
from broker.storage.log import StoredGroup
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.lives import LifeOfALog, life
from tests.support.published import batch_from_nats, expecting, publish, with_id
from tests.support.simdisk import MODES, Mode

SUBJECTS_MAX = 8
SUBJECT = st.sampled_from([f"s.{i}" for i in range(5)] * 3 + [f"rare.{i}" for i in range(9)])
MESSAGE = st.tuples(SUBJECT, st.sampled_from(["plain", "right", "right", "low", "none", "high"]))


def batch_over_http(subjects: list[str], now_us: int) -> RowBatch:
    n = len(subjects)
    columns = [
        pa.array([now_us] * n, pa.timestamp("us", "UTC")),
        pa.array(subjects),
        pa.nulls(n, pa.binary()),
        pa.array([b""] * n, pa.binary()),
        pa.nulls(n, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


class SubjectsMachine(LifeOfALog):
    """See the module."""

    LARGE = ("broker.storage.remembered.SUBJECTS_KEPT_AT_ONCE", -1)

    def __init__(self) -> None:
        super().__init__(LogSettings(segment_bytes=6_000, dedup_window_ms=50, subjects_max=SUBJECTS_MAX))
        self.records: list[str] = []  # the subjects of all of the log
        self.ids = 0

    @property
    def live(self) -> bool:
        """Whether the last record of every subject is known at once."""
        memory = self.log.remembered.memory
        return memory is not None and memory.subjects is not None

    def last(self, subject: str) -> int:
        for offset in range(len(self.records) - 1, self.log.state.log_start_offset - 1, -1):
            if self.records[offset] == subject:
                return offset + 1
        return 0

    def expected(self, subject: str, kind: str) -> int:
        last = self.last(subject)
        return {"right": last, "low": max(0, last - 1), "none": 0, "high": last + 1}[kind]

    @rule(messages=st.lists(MESSAGE, min_size=1, max_size=5), at_once=st.booleans(), with_ids=st.booleans())
    def publish(self, messages: list[tuple[str, str]], at_once: bool, with_ids: bool) -> None:
        wanted = []
        headers = []
        for subject, kind in messages:
            self.ids += 1
            wanted.append(None if kind == "plain" else self.expected(subject, kind))
            own = expecting(wanted[-1]) if wanted[-1] is not None else ()
            headers.append((b"", own + (with_id(f"id-{self.ids}") if with_ids else ())))
        was_live = self.live
        with pytest.MonkeyPatch.context() as patch:
            if not at_once:
                patch.setattr(tracking, "BUILT_AT_ONCE_BYTES", -1)
            told = publish(self.log, headers, self.now_us, subjects=[subject for subject, _ in messages])
        for (subject, _), expected, answer in zip(messages, wanted, told, strict=True):
            last = self.last(subject)
            code = answer["error"]["err_code"] if "error" in answer else 0
            if code == 10163:
                assert not was_live
                assert not at_once or self.log.tracking.lacks_some
                assert expected is not None
            elif code == 10023:
                assert len(set(self.records)) >= SUBJECTS_MAX
                assert expected is not None
            elif expected is None or expected == last:
                assert (code, answer.get("seq")) == (0, len(self.records) + 1)
                self.records.append(subject)
            else:
                assert code == 10071
                assert answer["error"]["description"].startswith(f"wrong last sequence: {last} ")
        assert self.log.state.log_end_offset == len(self.records)

    @rule(subjects=st.lists(SUBJECT, min_size=1, max_size=3), is_group=st.booleans())
    def append_over_http(self, subjects: list[str], is_group: bool) -> None:
        batches = [batch_over_http([subject], self.now_us) for subject in subjects]
        if is_group:
            group = StoredGroup(batches=batches, batch_count=len(batches), byte_count=10_000)
            self.log.append_group(group, leader_epoch=0, now_us=self.now_us)
        else:
            self.log.append([batch_over_http(subjects, self.now_us)], leader_epoch=0, now_us=self.now_us)
        self.records += subjects

    @rule(piece=st.sampled_from([1, 1, 1 << 20]), left=st.sampled_from([-1, 1 << 20]))
    def build_a_piece(self, piece: int, left: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracking, "PIECE_BYTES", piece)
            patch.setattr(tracking, "BUILT_AT_ONCE_BYTES", left)
            assert self.log.tracking.build() == self.log.tracking.lacks_some

    @rule()
    def switch_off_and_on(self) -> None:
        self.log.remembered.update_settings(replace(self.settings, subjects_max=0))
        [answer] = publish(self.log, [(b"", expecting(0))], self.now_us)
        assert answer["error"]["err_code"] == 10003
        self.log.remembered.update_settings(self.settings)

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def lose_power(self, mode: Mode, seed: int) -> None:
        del self.records[self.after_power_loss(mode, seed) :]

    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]), subjects=st.lists(SUBJECT, min_size=1, max_size=3))
    def fail_to_write(self, kind: int, subjects: list[str]) -> None:
        """Nothing is appended, so nothing is the last."""
        records = [(b"x", expecting(self.last(subject))) for subject in subjects] + [(b"x", ())]
        batch = batch_from_nats(records, self.now_us, subjects=[*subjects, "s.0"])
        self.append_in_vain([batch], kind)

    @rule(subject=SUBJECT)
    def fail_to_sync(self, subject: str) -> None:
        self.publish([(subject, "right")], at_once=True, with_ids=False)
        self.sync_in_vain()

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.remembered.update_settings(replace(self.settings, subjects_max=100))
        while self.log.tracking.build():
            pass
        kinds = [(f"s.{i}", "high") for i in range(5)] + [(f"rare.{i}", "high") for i in range(9)]
        for _ in range(2):
            self.publish(kinds, at_once=True, with_ids=False)
            self.log.tracking.build()
        assert self.live
        self.check_stored("subject", self.records)


@pytest.mark.parametrize("lives", first_short([20, 60]))
def test_subjects(lives: int) -> None:
    run_state_machine_as_test(SubjectsMachine, settings=life(lives))
