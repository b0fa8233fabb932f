"""The id of a producer and its counters: stamps by which the broker knows a repeated append.

    registered ──► id and epoch; every partition counts from 0
    stored ──► the partition's next number
    failed ──► nobody knows which numbers were used, so the next stamp begins anew; fenced, that was the end

N1  A number that may have been used is never used for other records: those would be taken for a repeat and dropped.
N2  Beginning anew under a name is another epoch, so what is still on its way from before is refused. Without a name it
    is another id, and what is still on its way may be stored after what follows: its futures say that nobody knows.
N3  One request at a time: not thread-safe.
"""

from __future__ import annotations

import logging

from broker.api.answers import ProducerIdentity
from broker.api.errors import LiftlogError, ProducerFenced
from broker.client.http.calls import Calls, path, understand
from broker.client.writing.append import Stamp

log = logging.getLogger(__name__)


def register(calls: Calls, name: str | None) -> tuple[int, int]:
    """An id and an epoch. Raises InvalidName, and what `Calls.json` raises."""
    value = calls.json("POST", path("producers"), {} if name is None else {"name": name})
    found = understand(ProducerIdentity, value, where="registering a producer")
    return found.producer_id, found.epoch


class Sequences:
    """See the module.

    Args:
        name: Name of the producer. None: it has none, and fences nobody.
    """

    def __init__(self, calls: Calls, name: str | None) -> None:
        self._calls = calls
        self._name = name
        self._identity: tuple[int, int] | None = None
        self._next: dict[int, int] = {}
        self._fenced: ProducerFenced | None = None

    def stamp(self, partition: int) -> Stamp:
        """The stamp of the next request.

        Raises:
            ProducerFenced: another producer of the name has registered.
            LiftlogError: it could not be registered; nothing was sent.
        """
        if self._fenced is not None:
            raise ProducerFenced(self._fenced.message, **{**self._fenced.fields, "sent": False})  # that was another's
        if self._identity is None:
            try:
                self._identity = register(self._calls, self._name)
            except LiftlogError as error:
                error.fields.pop("sent", None)  # that was the registration, no record
                raise
            self._next.clear()
            log.debug("producer.registered id=%d epoch=%d", *self._identity)
        return Stamp(*self._identity, self._next.get(partition, 0))

    def stored(self, partition: int) -> None:
        """The request of the last stamp is stored."""
        self._next[partition] = self._next.get(partition, 0) + 1

    def failed(self, error: BaseException) -> None:
        """The request of the last stamp failed, or its fate is not known (N1)."""
        self._identity = None
        if isinstance(error, ProducerFenced) and self._name is not None:
            self._fenced = error
