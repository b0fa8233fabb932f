"""Idempotent producers: ids, and the names that some of them have. Part of the catalog: no clock, all times are given.

    register ─► an id, epoch 0 ─► under its name the same id, the next epoch ─► unused for long, or deleted: forgotten
    note     ─► it is used (its broker says so now and then)

Invariants
D1  Ids grow from 1 and are never given out twice. Without a name the epoch is 0.
D2  Under a name the id stays and its epoch grows with each registration, which fences the earlier ones.
D3  A name that nobody has registered or used since a time that the command names is forgotten with the next
    registration. Times never run back here, whatever the clocks of brokers say.
D4  An id whose name was forgotten is refused from then on: nobody would fence it. The last `FORGOTTEN_MAX` are
    remembered. Its producer registers anew under its name, and is another one: what it sent before is no repeat.
D5  An id without a name says whose it is, where callers are judged: its last `TAG_BITS` are of the principal that has
    registered it. Under another's id nobody may append what its producer would then be told is there already.

        n << TAG_BITS | tag      n grows with each of them; ids below 1 << TAG_BITS are of before, and nobody's
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.api.errors import InvalidRequest, ProducerFenced, UnknownProducer

PRODUCER_NAMES_MAX: Final = 10_000
FORGOTTEN_MAX: Final = 10_000
TAG_BITS: Final = 24


def tag_of(principal: str) -> int:
    """The end of the ids that a principal registers (D5)."""
    return int.from_bytes(hashlib.sha256(principal.encode()).digest()[: TAG_BITS // 8])


def is_anothers(producer_id: int, principal: str) -> bool:
    """Whether an id without a name was registered by somebody else (D5)."""
    return producer_id >> TAG_BITS > 0 and producer_id % (1 << TAG_BITS) != tag_of(principal)


class NamedProducer(NamedTuple):
    """A producer that has a name.

    Attributes:
        used_ms: When it was last known to be used, milliseconds since 1970 UTC. 0: before such times were kept.
    """

    producer_id: int
    epoch: int
    used_ms: int = 0


@dataclass(slots=True)
class Producers:
    """See the module. `named`: by name, the longest unused first."""

    id_last: int = 0
    named: dict[str, NamedProducer] = field(default_factory=dict)
    forgotten: dict[int, None] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def copy(self) -> Producers:
        """Another one with the same content."""
        return Producers(self.id_last, dict(self.named), dict(self.forgotten), dict(self._names))

    def register(
        self, name: str | None, *, at_ms: int, forget_before_ms: int, tag: int | None = None
    ) -> tuple[int, int]:
        """An id and its epoch; `tag`: of whom it is, if it has no name (D5).

        Raises:
            InvalidRequest: there are too many names.
        """
        if name is None:
            tagged = (((self.id_last >> TAG_BITS) + 1) << TAG_BITS) + (tag or 0)
            self.id_last = self.id_last + 1 if tag is None else tagged
            return self.id_last, 0
        self._forget_before(forget_before_ms, but=name)
        known = self.named.get(name)
        if known is None and len(self.named) >= PRODUCER_NAMES_MAX:
            raise InvalidRequest(
                f"{PRODUCER_NAMES_MAX} producers have names, which is the limit", limit=PRODUCER_NAMES_MAX
            )
        if known is None:
            self.id_last += 1
            known = NamedProducer(self.id_last, -1)
        self._put(name, NamedProducer(known.producer_id, known.epoch + 1, self._now(at_ms)))
        return known.producer_id, known.epoch + 1

    def note(self, names: Iterable[str], *, at_ms: int) -> None:
        """They are used."""
        for name in names:
            if (known := self.named.get(name)) is not None:
                self._put(name, known._replace(used_ms=self._now(at_ms)))

    def forget(self, name: str) -> None:
        """Forget a name (D4). Raises UnknownProducer."""
        if name not in self.named:
            raise UnknownProducer(f"no producer is called {name!r}", name=name)
        self._drop(name)

    def knows(self, producer_id: int, epoch: int) -> bool:
        """Whether it was registered in this epoch, by all that this catalog has applied."""
        if not 1 <= producer_id <= self.id_last:
            return False
        return producer_id in self.forgotten or epoch <= self._epoch_of(producer_id)

    def check(self, producer_id: int, epoch: int) -> None:
        """Whether this is who registered last.

        Raises:
            UnknownProducer: nobody did, under this id or in this epoch; or D4.
            ProducerFenced: somebody has since.
        """
        if producer_id in self.forgotten:
            raise UnknownProducer(
                f"the name of producer {producer_id} was deleted, or not used for producers.name_expiry_ms: register"
                " anew",
                producer_id=producer_id,
            )
        if not self.knows(producer_id, epoch):
            raise UnknownProducer(
                f"producer {producer_id}, epoch {epoch} was never registered here", producer_id=producer_id
            )
        current = self._epoch_of(producer_id)
        if epoch < current:
            raise ProducerFenced(
                f"producer {producer_id} now has epoch {current}; epoch {epoch} is fenced",
                producer_id=producer_id,
                producer_epoch=current,
            )

    def name_of(self, producer_id: int) -> str | None:
        """Its name, if it has one."""
        return self._names.get(producer_id)

    def unnoted(self, producer_id: int, before_ms: int) -> str | None:
        """Its name, if it has one of which no use since a time is known."""
        name = self._names.get(producer_id)
        return name if name is not None and self.named[name].used_ms < before_ms else None

    def snapshot(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "producer_id_last": self.id_last,
            "producers": [[name, *self.named[name]] for name in sorted(self.named)],
            "producers_forgotten": list(self.forgotten),
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Producers:
        """What `snapshot` described; those of before have no times."""
        named = [(name, NamedProducer(*values)) for name, *values in snapshot["producers"]]
        named.sort(key=lambda each: each[1].used_ms)
        return cls(
            id_last=snapshot["producer_id_last"],
            named=dict(named),
            forgotten=dict.fromkeys(snapshot.get("producers_forgotten", ())),
            _names={producer.producer_id: name for name, producer in named},
        )

    def _epoch_of(self, producer_id: int) -> int:
        name = self._names.get(producer_id)
        return 0 if name is None else self.named[name].epoch

    def _now(self, at_ms: int) -> int:
        """D3."""
        newest = next(reversed(self.named.values()), None)
        return at_ms if newest is None else max(newest.used_ms, at_ms)

    def _put(self, name: str, producer: NamedProducer) -> None:
        self.named.pop(name, None)
        self.named[name] = producer
        self._names[producer.producer_id] = name

    def _drop(self, name: str) -> None:
        producer_id = self.named.pop(name).producer_id
        del self._names[producer_id]
        self.forgotten[producer_id] = None
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def _forget_before(self, before_ms: int, *, but: str) -> None:
        """D3. Those of before times were kept are counted as used now."""
        old = []
        for name, producer in self.named.items():
            if producer.used_ms >= before_ms:
                break
            if name != but:
                old.append((name, producer))
        for name, producer in sorted(old, key=lambda each: each[1].producer_id):  # on all brokers alike
            if producer.used_ms:
                self._drop(name)
            else:
                self._put(name, producer._replace(used_ms=self._now(before_ms)))
