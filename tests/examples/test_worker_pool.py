"""The pool of workers does every job, also those of the worker that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import worker_pool
from tests.support.processes import BrokerProcess


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_every_job_is_done_and_few_again(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        counts = worker_pool.run(broker.address, 4_000)
        assert set(counts) == {b"%d" % job for job in range(4_000)}
        again = sum(counts.values()) - 4_000
        assert again <= 4_000 // worker_pool.PARTITIONS, "one batch, which is a partition at most"
    finally:
        broker.stop()
