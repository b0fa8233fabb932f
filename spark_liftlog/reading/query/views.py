"""Heads that a query plans from: they tell of all its partitions, and agree with its position.

    HeadWatch ──► whole: no partition that nobody leads ──► agreeing: the streams that the query is in ──► planned from

S5  That a stream is another one, or gone, is believed once it was said for longer than a broker may be behind
    (asking_again.py). Until then nothing is planned, and the query stays in the incarnation where it is.
S6  A frozen query sees no heads but those it was frozen with, unless they contradict its position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from broker.api.errors import NotReady, UnknownPartition, UnknownStream
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.asking_again import AGAIN_S
from spark_liftlog.reading.cluster import DEADLINE_S, Cluster
from spark_liftlog.reading.offsets import Key, Offset
from spark_liftlog.reading.query.heads import HeadWatch
from spark_liftlog.reading.selection import Selection


class Views:
    """The heads of one query.

    Args:
        cluster: The brokers to ask.
        selection: The streams and partitions that are read.
    """

    def __init__(self, cluster: Cluster, selection: Selection) -> None:
        self._cluster = cluster
        self._selection = selection
        self._watch = HeadWatch(cluster, selection)
        self._frozen: Heads | None = None
        self._believed: set[Key | tuple[str, str | None]] = set()  # S5: what contradicts a position, and is believed

    @property
    def is_frozen(self) -> bool:
        """Whether nothing that is appended from now on is read."""
        return self._frozen is not None

    @property
    def believed_streams(self) -> Set[str]:
        """Streams of which a contradiction is believed (S5)."""
        return {stream for stream, _ in self._believed}

    def freeze(self) -> None:
        """Stay with what there is now (S6)."""
        self._frozen = self._whole(self._watch.fresh())

    def current(self) -> Heads:
        """The heads to plan from now."""
        return self._frozen or self._whole(self._watch.current())

    def after(self, heads: Heads, wait_s: float) -> Heads:
        """The heads that follow `heads`, which `current` has told; these if nothing comes in time, or can come."""
        return heads if self.is_frozen else self._whole(self._watch.after(heads, wait_s))

    def newer(self) -> Heads:
        """The heads to plan from, asked anew; for a frozen query, too."""
        heads = self._whole(self._watch.fresh())
        if self._frozen is not None:
            self._frozen = heads
        return heads

    def recent(self) -> Heads:
        """The heads that a broker has told of late, frozen or not."""
        return self._watch.recent()

    def beyond(self) -> Heads:
        """The heads as they are, whatever the query is frozen to: its lag is counted to them."""
        return self._watch.recent() if self._frozen is None else self._watch.current()

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._watch.close()

    def agreeing(self, start: Offset, heads: Heads, again: Callable[[], Heads]) -> Heads:
        """Heads that agree with the position, or go on contradicting it (S5).

        Args:
            again: `newer`, and whoever else has to know of newer heads.
        """
        asking = self._cluster.asking_again()
        while doubts := self._doubts(start, heads):
            self._believed &= doubts
            if doubts == self._believed:
                return heads
            if not asking.again():
                break
            heads = again()
        self._believed = doubts
        return heads

    def telling_of(self, key: Key, known: str) -> Heads | None:
        """Heads that tell of the partition, waited for while it is unavailable; None: it does not exist (any more).

        Args:
            known: The incarnation that is meant. The heads have it, unless the stream is another one (S5).
        """
        began = time.monotonic()
        heads = self._watch.recent() if self.is_read(key) else self.fresh(key)
        asking = self._cluster.asking_again()
        while (now := heads.incarnations.get(key[0])) != known or key not in heads.partitions:
            if key in heads.partitions:
                if (key[0], now) in self._believed or not asking.again():
                    self._believed.add((key[0], now))
                    return heads
            else:
                unsure = {} if (key[0], None) in self._believed else {key[0]: known}
                (found,) = self._cluster.resolve([(key, "earliest")], known=unsure)
                if isinstance(found.error, UnknownStream | UnknownPartition):
                    self._believed |= {(key[0], None)} if isinstance(found.error, UnknownStream) else set()
                    return None
                if time.monotonic() - began > DEADLINE_S:
                    raise found.error or NotReady(f"stream {key[0]!r} is there, but nobody leads partition {key[1]}")
                time.sleep(AGAIN_S)
            heads = self.fresh(key)
        return heads

    def fresh(self, key: Key) -> Heads:
        """Newer heads that tell of the partition, also of one that was still read when a batch was planned."""
        return self._watch.fresh() if self.is_read(key) else self._cluster.heads_now([key[0]])[1]

    def is_read(self, key: Key) -> bool:
        """Whether the query reads the partition now."""
        return self._selection.has(key[0]) and self._selection.takes(key)

    def _whole(self, heads: Heads) -> Heads:
        return self._cluster.whole(heads, self._watch.fresh) if heads.unknown else heads

    def _doubts(self, start: Offset, heads: Heads) -> set[Key | tuple[str, str | None]]:
        """Streams that are another one now, or none, with its incarnation; partitions that are not there."""
        selection = self._selection
        streams = {
            (stream, now)
            for stream, known in start.incarnations.items()
            if (now := heads.incarnations.get(stream)) != known and selection.has(stream)
        }
        gone = start.positions.keys() - heads.partitions.keys() - heads.unknown
        others = {stream for stream, _ in streams}
        return streams | {key for key in gone if self.is_read(key) and key[0] not in others}
