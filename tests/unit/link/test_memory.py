"""Goal: a deleted stream leaves nothing of itself in memory, on a leader or a follower, while the brokers go on.

Method: three linked brokers; partitions, logs and tables are watched by weak references, and no search for cycles is
made: what a table takes is not counted by one, so it would come late.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.link.outbox import Outbox
from broker.storage.segments.index import INDEX_CACHE
from tests.support.linked import Linked, linked
from tests.support.processes import eventually

STREAMS = 200
AT_ONCE = 20


@pytest.fixture
def no_search() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(cluster: Linked, name: str) -> Iterator[weakref.ref[Any]]:
    """Of all that takes memory for a stream, on each broker."""
    [at] = cluster.create(name)
    cluster.stored(at, b"x" * 100)
    for node in cluster.nodes.values():
        partition = node.partition(at)
        partition.log.remembered.known()
        held = partition, partition.replica, partition._core, partition.log.state, partition.log.remembered
        yield from map(weakref.ref, held)


def forget_moved(cluster: Linked) -> None:
    """As the cleaner does in each round."""
    for node in cluster.nodes.values():
        node.hub.take_moved()


@pytest.mark.long
@pytest.mark.slow
def test_nothing_stays_of_streams_that_are_made_and_deleted(tmp_path: Path, no_search: None) -> None:
    with linked(tmp_path) as cluster:
        cluster.start()
        cached = INDEX_CACHE.byte_count
        for first in range(0, STREAMS, AT_ONCE):
            names = [f"s{number}" for number in range(first, first + AT_ONCE)]
            refs = [ref for name in names for ref in watched(cluster, name)]
            for name in names:
                cluster.service.apply(kind="delete_stream", name=name)
            eventually(lambda: not any(n.replicas.replicas() for n in cluster.nodes.values()), what="all to be gone")
            forget_moved(cluster)
            eventually(lambda refs=refs: not any(ref() for ref in refs), what="their memory to be given back")  # type: ignore[misc]
        assert INDEX_CACHE.byte_count <= cached


@pytest.mark.slow
def test_nothing_stays_of_streams_that_are_deleted_as_connections_are_cut(tmp_path: Path, no_search: None) -> None:
    """The reader of a stream that was cut may be where it waits: it has the stream, and that its outbox."""
    with linked(tmp_path) as cluster:
        cluster.start()

        def cut() -> None:
            for relay in cluster.relays.values():
                relay.cut()

        refs = []
        for number in range(8):
            refs += watched(cluster, f"s{number}")
            if number % 3 == 1:
                cut()
        for number in range(8):
            cluster.service.apply(kind="delete_stream", name=f"s{number}")
        cut()
        eventually(lambda: not any(n.replicas.replicas() for n in cluster.nodes.values()), what="all to be gone")
        forget_moved(cluster)
        eventually(lambda: not any(ref() for ref in refs), what="their memory to be given back")


def test_an_outbox_keeps_nothing_of_what_it_has_forgotten() -> None:
    class Source:
        pass

    outbox: Outbox[Source] = Outbox(time.monotonic)
    refs = []
    for is_ready in (False, True):
        source = Source()
        refs.append(weakref.ref(source))
        outbox.later(source, 1e12)
        outbox.later(source, 2e12)
        if is_ready:
            outbox.ready(source)
        outbox.forget(source)
        del source
    assert [ref() for ref in refs] == [None, None]
    assert outbox.next(0) is None


def test_an_outbox_that_is_closed_keeps_nothing_and_takes_nothing() -> None:
    """The stream was cut. Its reader may wait for long, and has the outbox."""

    class Source:
        pass

    outbox: Outbox[Source] = Outbox(time.monotonic)
    sources = [Source() for _ in range(4)]
    refs = [weakref.ref(source) for source in sources]
    outbox.ready(sources[0])
    outbox.later(sources[1], 1e12)
    outbox.close()
    outbox.ready(sources[2])
    outbox.later(sources[3], 1e12)
    sources.clear()
    assert [ref() for ref in refs] == [None] * 4
    assert outbox.next(0) is None
