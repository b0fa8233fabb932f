"""The text of /metrics against the library's own."""

from __future__ import annotations

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
