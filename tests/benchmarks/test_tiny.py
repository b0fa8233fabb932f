"""Goal: no benchmark rots. Method: each runs from end to end, on tiny inputs. The figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka, liftbridge
from benchmarks.__main__ import main


def run_tiny(workload: str, folder: Path, *more: str) -> list[dict[str, Any]]:
    """Run it as the command does; its lines."""
    results = folder / "results"
    arguments = [workload, "--tiny", "--repeats", "1", "--data", str(folder / "data"), "--results", str(results), *more]
    assert main(arguments) == 0
    assert list((folder / "data").iterdir()) == [], "it left files behind"
    return [json.loads(line) for line in (results / f"{workload}.jsonl").read_text().splitlines()]


def ours(line: dict[str, Any], side: str = "liftlog") -> dict[str, float]:
    return {name: measure["median"] for name, measure in line["sides"][side].items()}


def with_kafka_or_the_reason(line: dict[str, Any]) -> bool:
    return "liftlog/kafka" in line["ratios"] or kafka.HOME in line["skipped"]["kafka"]


def test_intake(tmp_path: Path) -> None:
    for line in run_tiny("intake", tmp_path):
        found = ours(line)
        assert found["stored"] == found["published"] == line["parameters"]["messages"]
        if "plain" in line["sides"]:
            assert ours(line, "plain")["stored"] == found["stored"]
            assert set(line["ratios"]) == {"liftlog/plain"}
        else:
            assert set(line["ratios"]) == {"liftlog/jetstream", "liftlog/drain", "liftlog/disk"}


def test_integrity(tmp_path: Path) -> None:
    for line in run_tiny("integrity", tmp_path):
        assert (ours(line)["lost"], ours(line)["equal"]) == (0, 1)


def test_acked(tmp_path: Path) -> None:
    for line in run_tiny("acked", tmp_path):
        if "liftlog" in line["skipped"]:
            assert "nats.go is not measured" in line["skipped"]["liftlog"]
            continue
        assert ours(line)["lost"] == 0
        assert "liftlog/jetstream" in line["ratios"]


def test_table(tmp_path: Path) -> None:
    (line,) = run_tiny("table", tmp_path)
    assert ours(line)["rows"] == line["parameters"]["keys"]
    assert ours(line, "read")["rows"] == line["parameters"]["records"]


def test_replicated(tmp_path: Path) -> None:
    for line in run_tiny("replicated", tmp_path):
        assert ours(line)["lost"] == 0
        assert ours(line)["acked"] > 0


def test_catching_up(tmp_path: Path) -> None:
    (line,) = run_tiny("catchup", tmp_path)
    for side in ("liftlog", "liftlog-loaded"):
        assert ours(line, side)["lost"] == 0
        assert ours(line, side)["mb"] > 5.0


def test_taking_over(tmp_path: Path) -> None:
    (line,) = run_tiny("takeover", tmp_path)
    assert ours(line)["lost"] == 0
    assert 0 < ours(line)["ids_read"] < line["parameters"]["ids"]


def test_fetch(tmp_path: Path) -> None:
    for line in run_tiny("fetch", tmp_path):
        assert ours(line)["bytes_per_record"] > line["parameters"]["value_bytes"]
        assert "liftlog/jetstream-nats-py" in line["ratios"]
        assert with_kafka_or_the_reason(line)


@pytest.mark.timeout(300)
def test_spark_read(tmp_path: Path) -> None:
    """Counts its rows by a batch query, then reads them as a stream."""
    (line,) = run_tiny("spark_read", tmp_path)
    assert ours(line)["micro_batches"] == 1
    assert "liftlog/memory" in line["ratios"]
    assert with_kafka_or_the_reason(line)


@pytest.mark.timeout(300)
def test_spark_write(tmp_path: Path) -> None:
    """A batch into every sink. Micro-batches and plans are left to `make bench`: each side of them starts a JVM."""
    (write,) = run_tiny("spark_write", tmp_path, "--only", "spark-write")
    assert ours(write)["lost"] == 0
    assert {"liftlog/append", "liftlog/null"} <= set(write["ratios"])
    assert with_kafka_or_the_reason(write)


@pytest.mark.parametrize(
    "workload,measure",
    [
        ("memory", "rss_mib"),
        ("idle", "rss_mib"),
        ("many", "rss_mib"),
        ("restart", "start_s"),
        ("background", "p99_ms"),
        ("commands", "ms"),
    ],
)
def test_footprint(workload: str, measure: str, tmp_path: Path) -> None:
    for line in run_tiny(workload, tmp_path):
        for side in line["sides"]:
            assert ours(line, side)[measure] > 0
            assert ours(line, side).get("lost", 0) == 0


def test_staged(tmp_path: Path) -> None:
    for line in run_tiny("staged", tmp_path):
        found = ours(line)
        assert found["lost"] == 0
        assert min(found["stage_s"], found["commit_s"]) > 0
        assert set(line["ratios"]) == {"liftlog/append"}


def test_payloads(tmp_path: Path) -> None:
    pytest.importorskip("broker.client.payload._json", reason="no compiler here")
    (line,) = run_tiny("payloads", tmp_path)
    assert {"liftlog/bytes", "liftlog/pyarrow.json"} == set(line["ratios"])
    assert ours(line)["rate"] > 0


def test_selected(tmp_path: Path) -> None:
    for line in run_tiny("selected", tmp_path):
        assert set(line["ratios"]) == {"liftlog/all"}
        assert ours(line)["mb"] * 10 < ours(line, "all")["mb"]


def test_projected(tmp_path: Path) -> None:
    (line,) = run_tiny("projected", tmp_path)
    assert set(line["ratios"]) == {"liftlog/all"}
    assert ours(line)["mb"] * 20 < ours(line, "all")["mb"]


def test_produce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_KAFKA_HOME", raising=False)
    (line,) = run_tiny("produce", tmp_path)
    assert ours(line)["lost"] == 0
    assert ours(line)["rate"] > 0


def test_rewrite(tmp_path: Path) -> None:
    compaction, coalescing = run_tiny("rewrite", tmp_path)
    assert ours(compaction)["lost"] == ours(coalescing)["lost"] == 0
    assert ours(compaction)["cpu_mb_s"] > 0
    assert ours(coalescing)["bytes_per_record"] * 4 < ours(coalescing, "as-appended")["bytes_per_record"]


def test_noisy(tmp_path: Path) -> None:
    (line,) = run_tiny("noisy", tmp_path)
    assert set(line["ratios"]) == {"liftlog/within", "liftlog/quiet"}
    assert ours(line)["served"] > 0


def test_encrypted(tmp_path: Path) -> None:
    lines = run_tiny("encrypted", tmp_path)
    assert [line["case"] for line in lines] == [
        "encrypted-intake-1024B",
        "encrypted-fetch-1024B",
        "encrypted-one-100B",
    ]
    assert all(set(line["ratios"]) == {"liftlog/plain"} for line in lines)


def test_liftbridge(tmp_path: Path) -> None:
    for line in run_tiny("liftbridge", tmp_path):
        if liftbridge.HOME in line["skipped"].get("liftbridge", ""):
            assert liftbridge.HOME in line["skipped"]["liftlog"]
            continue
        assert set(line["ratios"]) == {"liftlog/liftbridge"}
        assert ours(line)["rate"] > 0


def test_secured(tmp_path: Path) -> None:
    for line in run_tiny("secured", tmp_path):
        found = ours(line)
        assert found.get("p50_us", 1) > 0
        assert found.get("gb_per_s", 1) > 0
        assert found.get("lost", 0) == 0
        assert len(line["ratios"]) == 1


def test_groups(tmp_path: Path) -> None:
    (line,) = run_tiny("groups", tmp_path)
    assert ours(line)["lost"] == 0
    assert min(ours(line)[name] for name in ("p50_ms", "p99_ms", "all_p99_ms", "fill_cpu_ms", "rss_mib")) > 0
