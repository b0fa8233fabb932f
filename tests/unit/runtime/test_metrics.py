"""The text of /metrics against the library's own."""

from __future__ import annotations

import threading

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker.runtime import metrics

SAMPLES: list[metrics.Sample] = [
    ("liftlog_up", "1 once the broker has started", (), (), 1.0),
    ("liftlog_bytes_in_total", "Bytes \\ \nappended", ("stream", "partition"), ("a", "0"), 123456789012),
    ("liftlog_queue", "Between two of one family", ("what",), ('q"\\\nz',), 2.5),
    ("liftlog_bytes_in_total", "Bytes \\ \nappended", ("stream", "partition"), ("a", "1"), 0),
]


def test_every_sample_is_read_back_as_it_was_given() -> None:
    """Names, help, labels and values survive what must be escaped; each family stands once, in one piece."""
    families = list(text_string_to_metric_families(metrics.render(SAMPLES).decode()))
    ours = {family.name: family for family in families if family.name.removesuffix("_total") in NAMES}
    assert len(ours) == len(NAMES)
    found = [
        (sample.name, family.documentation, tuple(sample.labels), tuple(sample.labels.values()), sample.value)
        for family in ours.values()
        for sample in family.samples
    ]
    assert sorted(found) == sorted(SAMPLES)
    assert ours["liftlog_up"].type == "gauge"
    assert ours["liftlog_bytes_in"].type == "counter"


NAMES = {"liftlog_up", "liftlog_bytes_in", "liftlog_queue"}

BUCKETS = (0.0001, 0.00025, 1, 4, 65536)


def text_of(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("h_created ")]


@pytest.mark.parametrize("values", [[], [0.0001], [0, 1, 1.5, 4, 5, 65536, 65536.5, 1e9, 0.1, 0.2, 0.3]])
def test_a_histogram_reads_as_the_library_s_own(values: list[float]) -> None:
    """Names, types, help, buckets, sums and the order of lines; but for when each of the two was made."""
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    own = prometheus_client.Histogram("h", "Some \\ \n text", registry=theirs, buckets=BUCKETS)
    made = metrics.Histogram("h", "Some \\ \n text", registry=ours, buckets=BUCKETS)
    for value in values:
        own.observe(value)
        made.observe(value)
    assert text_of(ours) == text_of(theirs)
    assert len(generate_latest(ours).splitlines()) == len(generate_latest(theirs).splitlines())


def test_when_a_histogram_began_is_left_out_where_the_library_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, shown in (("True", False), ("0", True)):
        monkeypatch.setenv("PROMETHEUS_DISABLE_CREATED_SERIES", told)
        registry = CollectorRegistry()
        metrics.Histogram("h", "text", registry=registry, buckets=BUCKETS)
        assert ("h_created" in generate_latest(registry).decode()) is shown


def test_a_histogram_counts_what_several_threads_observe() -> None:
    registry = CollectorRegistry()
    made = metrics.Histogram("h", "text", registry=registry, buckets=BUCKETS)
    threads = [threading.Thread(target=lambda: [made.observe(1) for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.get_sample_value("h_count") == registry.get_sample_value("h_sum") == 20_000


def test_the_broker_s_histograms_have_the_buckets_that_are_documented() -> None:
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    for name, first, last in (("liftlog_fsync_seconds", "0.0001", "5.0"), ("liftlog_batch_records", "1.0", "65536.0")):
        assert families[name].type == "histogram"
        limits = [sample.labels["le"] for sample in families[name].samples if sample.name == f"{name}_bucket"]
        assert (limits[0], limits[-2], limits[-1]) == (first, last, "+Inf")
