"""Rewriting: how fast key compaction goes through a log, and what coalescing leaves of a trickling one.

No broker: the log is opened in this process, unthrottled, on the disk that `--data` names. A broker does the same on a
thread beside the others, at `compaction.bytes_per_s`. `log_mb_s` is the size of the log by the time of one pass, which
reads it twice; `cpu_mb_s` by CPU time, which another load moves less. `lost` counts records that should be there
and are not.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Measures, Side, Target
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.storage import LogIdentity, LogSettings, OsDisk, PartitionLog, RowBatch
from broker.storage.rewrite.coalescing import CoalescingSettings, KnownSegments, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape

BATCH_ROWS = 8_000
NOW_US = 1 << 50
MAP_BYTES = 128 << 20
KEY_DIGITS = 10


def cases(*, tiny: bool) -> Sequence[Case]:
    records, keys = (40_000, 10_000) if tiny else (4_000_000, 1_000_000)
    trickled = 2_000 if tiny else 60_000
    return [
        Case(
            name="compaction-tiny" if tiny else "compaction-1Mkeys",
            metric="log_mb_s",
            unit="MB/s",
            parameters={"records": records, "keys": keys, "value_bytes": 100, "map_bytes": MAP_BYTES},
            open=lambda folder: _compaction(folder, records, keys),
            targets=(Target(of="log_mb_s", least=200.0),),
        ),
        Case(
            name="coalescing-tiny" if tiny else "coalescing-1-record-batches",
            metric="bytes_per_record",
            unit="B",
            parameters={"records": trickled, "value_bytes": 100},
            open=lambda folder: _coalescing(folder, trickled),
        ),
    ]


@contextmanager
def _compaction(folder: Path, records: int, keys: int) -> Iterator[Mapping[str, Side]]:
    def turn() -> Measures:
        rng = np.random.default_rng(1)
        newest: set[int] = set()
        log = _log(folder / "compacted", segment_bytes=64 << 20)
        for _ in range(records // BATCH_ROWS):
            chosen = rng.integers(0, keys, BATCH_ROWS)
            newest.update(chosen.tolist())
            log.append([_rows([b"k%0*d" % (KEY_DIGITS, key) for key in chosen.tolist()])], leader_epoch=1, now_us=0)
        size = _seal(log)
        settings = CompactionSettings(min_cleanable_dirty_percent=0)
        took_s, cpu_s = time.monotonic(), time.process_time()
        report = compact(log, settings, map_bytes=MAP_BYTES, now_us=NOW_US)
        took_s, cpu_s = time.monotonic() - took_s, time.process_time() - cpu_s
        assert report is not None
        left = records // BATCH_ROWS * BATCH_ROWS - report.records_gone
        log.close()
        shutil.rmtree(folder / "compacted")
        return {
            "log_mb_s": size / took_s / 1e6,
            "cpu_mb_s": size / cpu_s / 1e6,
            "log_mb": size / 1e6,
            "lost": float(len(newest) - left),
        }

    yield {"liftlog": turn}


@contextmanager
def _coalescing(folder: Path, records: int) -> Iterator[Mapping[str, Side]]:
    def side(compression: str | None) -> Callable[[], Measures]:
        def turn() -> Measures:
            rng = random.Random(1)
            log = _log(folder / "trickled", segment_bytes=16 << 20)
            batches = [_rows([None], [_order(rng)]) for _ in range(5_000)]
            for number in range(records):
                log.append([batches[number % len(batches)]], leader_epoch=1, now_us=0)
            before = _seal(log)
            memory: KnownSegments = {}
            shape = BatchShape(compression=compression or "none")
            settings = CoalescingSettings(min_age_ms=0, segment_bytes=16 << 20, shape=shape)
            took_s = time.monotonic()
            while compression is not None and coalesce(log, settings, memory, now_us=NOW_US) is not None:
                pass
            took_s = time.monotonic() - took_s
            stored, segments = log.state.byte_count, log.state.segment_count
            found = sum(
                pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA).num_rows for message in log.reader.batches(0)
            )
            log.close()
            shutil.rmtree(folder / "trickled")
            return {
                "bytes_per_record": stored / records,
                "segments": segments,
                "log_mb_s": before / took_s / 1e6 if compression is not None else 0.0,
                "lost": float(records - found),
            }

        return turn

    yield {"liftlog": side("none"), "liftlog-lz4": side("lz4"), "liftlog-zstd": side("zstd"), "as-appended": side(None)}


def _log(folder: Path, *, segment_bytes: int) -> PartitionLog:
    identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=0)
    return PartitionLog.create(OsDisk(), str(folder), identity, LogSettings(segment_bytes=segment_bytes), now_us=0)


def _seal(log: PartitionLog) -> int:
    log.state.advance_high_watermark(log.syncer.sync())
    log.roll_if_due(NOW_US)
    return log.state.byte_count


def _order(rng: random.Random) -> bytes:
    """About 100 bytes of JSON, half of them digits."""
    return b'{"order":%010d,"customer":%08d,"price":%d.%02d,"country":"%s","at":%013d,"state":"paid"}' % (
        rng.randrange(10**10),
        rng.randrange(10**8),
        rng.randrange(1000),
        rng.randrange(100),
        rng.choice([b"DE", b"FR", b"IT", b"PL"]),
        rng.randrange(10**13),
    )


def _rows(keys: Sequence[bytes | None], values: Sequence[bytes] = ()) -> RowBatch:
    n = len(keys)
    columns = [
        pa.array(np.arange(n), pa.timestamp("us", "UTC")),
        pa.array(["orders.created"] * n),
        pa.array(keys, pa.binary()),
        pa.array(values or [b"x" * 100] * n, pa.binary()),
        pa.nulls(n, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))
