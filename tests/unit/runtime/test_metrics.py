"""The text of /metrics against the library's own."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from broker.common import metrics

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


def test_the_broker_s_histograms_have_the_buckets_that_are_documented() -> None:
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    for name, first, last in (("liftlog_fsync_seconds", "0.0001", "5.0"), ("liftlog_batch_records", "1.0", "65536.0")):
        assert families[name].type == "histogram"
        limits = [sample.labels["le"] for sample in families[name].samples if sample.name == f"{name}_bucket"]
        assert (limits[0], limits[-2], limits[-1]) == (first, last, "+Inf")
