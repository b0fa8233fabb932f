"""Chaos on three brokers, fault by fault; `make chaos MINUTES=60` is the long one. The rules that hold: `chaos`, D1 to
D5."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.api.schema import SCHEMA
from broker.api.stream import AUDIT_STREAM
from tests.cluster import chaos
from tests.cluster.__main__ import main
from tests.support.effort import seeded

NAMED = (
    "restart nats-server",
    "cut a leader off",
    "freeze the controller",
    "fill a leader's disk",
    "restart all in turns",
)


def test_nothing_acked_is_lost_whatever_happens_to_the_processes_of_three_brokers(tmp_path: Path) -> None:
    figures = chaos.run(tmp_path, seeded(1), only=NAMED)
    print(figures)
    assert figures.acks > len(NAMED) * chaos.PARTITIONS * chaos.ACKS_MIN
    assert figures.elsewhere > 0, "no follower was read from"
    assert set(figures.left_out) == {what for what, count in figures.faults.items() if count == 0}
    if figures.left_out:
        pytest.skip(f"all that was played held, but network namespaces are not allowed here: {figures.left_out}")


def fails(*_: Any, history: Path, **__: Any) -> Any:
    history.write_text("seen\n")
    raise AssertionError("D1")


def holds(*_: Any, history: Path, **__: Any) -> Any:
    history.write_text("seen\n")
    return "figures"


@pytest.mark.parametrize("run, code", [(holds, 0), (fails, 1)])
@pytest.mark.parametrize("given", [[], ["--history", "there/kept.jsonl"]])
def test_the_history_stays_whatever_comes_of_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Callable[..., Any],
    code: int,
    given: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chaos, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["--minutes", "1", "--seed", "7", *given]) == code
    kept = tmp_path / (given[1] if given else "chaos-history/seed-7.jsonl")
    assert kept.read_text() == "seen\n"
    assert str(kept) in capsys.readouterr().out.splitlines()[-1]


def rows(*offsets: int, value: str = "x") -> pa.Table:
    return pa.table({"offset": pa.array(offsets, pa.int64()), "value": pa.array([value] * len(offsets), pa.string())})


def test_replicas_that_differ_are_found() -> None:
    chaos.compare_rows(rows(0, 1, 2, 3), rows(2, 3), begin=2, is_compacted=False, what="the first segment is gone")
    chaos.compare_rows(rows(0, 1, 2), rows(), begin=3, is_compacted=False, what="all is gone")
    chaos.compare_rows(rows(0, 2, 3), rows(1, 3), begin=0, is_compacted=True, what="compacted")
    for one, other, begin, is_compacted in (
        (rows(0, 1, 2), rows(0, 1), 0, False),
        (rows(0, 1, 2), rows(), 0, False),
        (rows(0, 1, 2), rows(2), 1, False),
        (rows(0, 2), rows(0, 1, 2), 0, False),
        (rows(0, 1), rows(0, 1, value="y"), 0, False),
        (rows(0, 2, 3), rows(1, 3, value="y"), 0, True),
    ):
        with pytest.raises(AssertionError, match="differ"):
            chaos.compare_rows(one, other, begin, is_compacted, "D3")
        with pytest.raises(AssertionError, match="differ"):
            chaos.compare_rows(other, one, begin, is_compacted, "D3")


def replica(data: Path, stream: str, values: str, committed: int | None = None) -> None:
    """One that has a record for each letter, and knows so many to be committed; None: all."""
    folder = data / "streams" / stream / "i" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    count = len(values)
    columns = {"offset": range(count), "timestamp": [0] * count, "subject": [*values], "value": [*values]}
    given = {name: columns.get(name, [None] * count) for name in SCHEMA.names}
    table = pa.table({name: pa.array(given[name], SCHEMA.field(name).type) for name in given})
    with pa.ipc.new_stream(folder / "00000000000000000000.arrows", SCHEMA) as file:
        file.write_table(table.cast(SCHEMA))
    known = json.dumps({"high_watermark": len(values) if committed is None else committed})
    (folder / "checkpoint").write_text(f"{known} 00000000\n")


@pytest.mark.parametrize(
    "stream, held, committed, says",
    [
        (AUDIT_STREAM, ["xy", "xyzz", "xyz"], 2, None),
        (AUDIT_STREAM, ["xy", "xyzz", "xyz"], 3, "ends at 2, 3 was committed"),
        (AUDIT_STREAM, ["xy", "xy!z", "xyzz"], 2, "differ"),
        (AUDIT_STREAM, ["xy", "x!zz", "xyzz"], 2, "differ"),
        (AUDIT_STREAM, ["xyz!", "xy", "xyzz"], 2, "differ"),
        ("others", ["xyz", "xyz", "xyz"], 0, None),
        ("others", ["xy", "xyz", "xyz"], 0, "differ"),
    ],
)
def test_who_stops_sooner_has_the_beginning_of_what_brokers_write_to_the_end(
    tmp_path: Path, stream: str, held: list[str], committed: int, says: str | None
) -> None:
    folders = {broker: tmp_path / broker for broker in "abc"}
    for broker, values in zip("abc", held, strict=True):
        replica(folders[broker], stream, values)
    if says is None:
        chaos.compare(folders, {AUDIT_STREAM: committed})
        return
    with pytest.raises(AssertionError, match=f"^D3: .*{says}"):
        chaos.compare(folders, {AUDIT_STREAM: committed})


def test_a_replica_has_what_it_knows_to_be_committed(tmp_path: Path) -> None:
    replica(tmp_path / "a", AUDIT_STREAM, "xy", committed=3)
    with pytest.raises(AssertionError, match=r"^D3: .* of a ends at 2, 3 was committed"):
        chaos.compare({"a": tmp_path / "a"}, {})


def test_a_replica_without_records_begins_where_its_segment_does(tmp_path: Path) -> None:
    """A log of stages that was trimmed to its end, by who led it (seed 12)."""
    (tmp_path / "00000000000000000239.arrows").touch()
    assert chaos.begin_of(tmp_path) == 239


class Going:
    """Publishers and readers of whom one goes on only so far."""

    def __init__(self, stuck: int | str) -> None:
        self._counts = Counter({0: 0, 1: 0, 2: 0, "reader": 0})
        self._stuck = stuck

    @property
    def acks(self) -> Counter[int | str]:
        self._counts += Counter(each for each in (0, 1, 2, "reader") if each != self._stuck)
        return self._counts

    @property
    def answered(self) -> list[int]:
        return [self.acks["reader"]]

    def look(self) -> None:
        pass


@pytest.mark.parametrize("stuck, said", [(1, "partition 1: "), ("reader", "reader 0: "), ("nobody", "")])
def test_whatever_stands_still_is_named(monkeypatch: pytest.MonkeyPatch, stuck: int | str, said: str) -> None:
    going: Any = Going(stuck)
    run = chaos.Run(*[None] * 4, senders=going, pollers=going, disks={})  # type: ignore[arg-type]
    if not said:
        return run.go_on()
    monkeypatch.setattr(chaos, "GO_ON_S", 0.1)
    with pytest.raises(AssertionError, match=f"^D2: {said}"):
        run.go_on()
