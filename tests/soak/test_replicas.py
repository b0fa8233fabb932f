"""Goal: K9 finds each difference in the files of replicas, and minds nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.soak.ledger import History, Ledger, Story, Violation
from tests.soak.replicas import Range, check_replicas

BROKERS = ["a", "b", "c"]
WHOLE = dict.fromkeys(range(4, 10), b"v")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(Story(tmp_path / "story.txt"))
    made.histories = {"plain": History("plain"), "keyed": History("keyed", may_compact=True)}
    return made


def write(folder: Path, broker: str, stream: str, records: dict[int, bytes], *, cut: int) -> None:
    """A replica of two segments; the second begins at `cut`."""
    path = folder / broker / "data" / "streams" / stream / "one" / "0"
    path.mkdir(parents=True)
    for number in (0, cut):
        offsets = [offset for offset in records if (offset >= cut) == (number == cut)]
        table = pa.table(
            {
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.array(offsets, pa.timestamp("us", "UTC")),
                "key": pa.array([b"k"] * len(offsets), pa.binary()),
                "headers": pa.array([[("Soak-Id", b"x")]] * len(offsets), pa.map_(pa.string(), pa.binary())),
                "value": pa.array([records[offset] for offset in offsets], pa.binary()),
            }
        )
        with pa.OSFile(str(path / f"{number:020}.arrows"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)


def checked(folder: Path, ledger: Ledger, stream: str, *replicas: dict[int, bytes]) -> dict[str, int]:
    for number, (broker, records) in enumerate(zip(BROKERS, replicas, strict=True)):
        write(folder, broker, stream, records, cut=6 + number)
    return check_replicas(folder, BROKERS, ledger, [Range(stream, "one", 0, 5, 9)])


def test_segments_what_is_trimmed_and_what_is_not_committed_may_differ(tmp_path: Path, ledger: Ledger) -> None:
    other = {5: b"v", 6: b"v", 7: b"v", 8: b"v", 9: b"other"}
    assert checked(tmp_path, ledger, "plain", WHOLE, WHOLE, other) == {"records of replicas": 4}


@pytest.mark.parametrize("third", [WHOLE | {7: b"other"}, {o: v for o, v in WHOLE.items() if o != 8}])
def test_a_committed_record_that_differs_or_lacks_is_found(
    tmp_path: Path, ledger: Ledger, third: dict[int, bytes]
) -> None:
    with pytest.raises(Violation, match=r"K9: a and c differ in .* at 1 places"):
        checked(tmp_path, ledger, "plain", WHOLE, WHOLE, third)


def test_a_record_that_all_replicas_lack_is_found(tmp_path: Path, ledger: Ledger) -> None:
    less = {5: b"v", 7: b"v", 8: b"v"}
    with pytest.raises(Violation, match="K9: a has 3 records"):
        checked(tmp_path, ledger, "plain", less, less, less)


def test_replicas_compact_by_themselves_and_what_two_have_is_the_same(tmp_path: Path, ledger: Ledger) -> None:
    less = {5: b"v", 8: b"v"}
    checked(tmp_path / "good", ledger, "keyed", WHOLE, less, WHOLE)
    with pytest.raises(Violation, match="K9: a and b differ"):
        checked(tmp_path / "bad", ledger, "keyed", WHOLE, {5: b"other", 8: b"v"}, WHOLE)
