"""`nats.reply_prefixes` reaches the parser, and who is not answered is told of in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from broker.api.errors import InvalidSetting
from broker.config.configuration import load
from broker.intake.driver import IntakeDriver
from broker.node.partitions.sync import SyncPool
from tests.unit.ingest.twins import TWINS, builder
from tests.unit.ingest.wire import msg


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool(1)
    yield pool
    pool.close()


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.IMPLEMENTATION)
def test_only_the_prefixes_of_the_configuration_are_answered(
    twin: object, pool: SyncPool, caplog: pytest.LogCaptureFixture
) -> None:
    name = getattr(twin, "IMPLEMENTATION", "")
    settings = {"LIFTLOG_INTAKE_IMPLEMENTATION": name, "LIFTLOG_NATS_REPLY_PREFIXES": "_INBOX.,_R."}
    driver = IntakeDriver(load(None, settings), pool)
    into = builder(twin)  # type: ignore[arg-type]
    driver._intake.route(1, [into], partition_by="subject_suffix")
    driver._intake.feed(msg("a", b"x", reply="_R.1") + msg("a", b"y", reply="orders.new"), 1)
    acks = into.take().acks(7)
    assert b"_R.1" in acks
    assert b"orders.new" not in acks
    with caplog.at_level(logging.WARNING):
        driver._note_unanswered()
        driver._note_unanswered()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["intake.reply_not_answered count=1 reply_prefixes=['_INBOX.', '_R.']"]


@pytest.mark.parametrize("prefixes", ["", "x" * 61])
def test_prefixes_that_are_none_are_refused(prefixes: str) -> None:
    with pytest.raises(InvalidSetting):
        load(None, {"LIFTLOG_NATS_REPLY_PREFIXES": prefixes})
