"""Goal: a loss of a disk is in the users' table of losses. Method: as in test_offsets.py; a bit of a log is flipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.client.client import connect
from broker.client.http.calls import Calls, path
from spark_liftlog.errors import LiftlogSparkError
from tests.cluster.test_faults import damage
from tests.spark.reading_tasks import latest, reading, records, rows_of
from tests.spark.streams import Stream
from tests.support.processes import BrokerProcess, eventually

QUIET = {"LIFTLOG_SCRUB_INTERVAL_MS": "0", "LIFTLOG_CLEANER_INTERVAL_MS": "50"}


def unled_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next description of a stream is that of a broker which cannot reach the leaders."""
    real, told = Calls.json, []

    def json(self: Calls, method: str, where: str, *body: Any, **options: Any) -> Any:
        answer = real(self, method, where, *body, **options)
        if where.startswith(path("streams")) and not told:
            told.append(where)
            unknown = dict.fromkeys(
                ("leader", "log_start_offset", "high_watermark", "log_end_offset", "bytes", "segments")
            )
            answer["partitions"] = [each | unknown | {"lost_ranges": []} for each in answer["partitions"]]
        return answer

    monkeypatch.setattr(Calls, "json", json)


def test_what_the_disk_lost_is_no_gap_of_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a range whose bytes have rotted: compaction leaves gaps as well, which are no loss."""
    broker = BrokerProcess(tmp_path / "broker", None, env=QUIET).start()
    try:
        with connect(broker.address) as client:
            stream = Stream.create(client, "rotten", partitions=1)
            for _ in range(20):
                stream.append(1)
            damage(tmp_path / "broker" / "data", "rotten")
            with reading(stream.address, stream="rotten", startingOffsets="earliest") as reader:
                end = latest(reader)
                with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_RECORDS_LOST: .*partition 0: records [0-9]+ to"):
                    rows_of(reader, None, end)
                unled_at_first(monkeypatch)
                with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_RECORDS_LOST: .*partition 0: records [0-9]+ to"):
                    rows_of(reader, None, end)
                monkeypatch.undo()
            ((start, stop),) = client.describe("rotten").partitions[0].lost_ranges
            with reading(stream.address, stream="rotten", startingOffsets="earliest", failOnDataLoss="false") as reader:
                assert rows_of(reader, None, latest(reader)) == records(stream, (0, 0, start), (0, stop, 20))
            keyed = Stream.create(
                client, "keyed", partitions=1, cleanup="compact", segment_bytes=65536, min_cleanable_dirty_percent=1
            )
            for n in range(100):
                client.append("keyed", 0, [{"key": b"k", "value": b"%d" % n * 1000}])
            eventually(lambda: client.read("keyed").to_table().num_rows < 100, what="compaction leaves gaps")
            with reading(stream.address, stream="keyed", startingOffsets="earliest") as reader:
                found = rows_of(reader, None, latest(reader))
            assert len(found) < 100
            assert found[-1] == (keyed.name, 0, 99)
    finally:
        broker.stop()
