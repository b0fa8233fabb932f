"""Messages between replicas, made at random: each kind, each field at its edges."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any, Final, get_args

from broker.link.codec import BULK_BYTES_MAX, Answered, Asked, Bulk, Challenge, Hello, Proof, Said, Welcome
from broker.replication.messages import AskEnd, AskRange, AskState, Fetch, HeldRange, Records, Reply, State

KINDS: Final = (Fetch, AskEnd, AskState, AskRange, *get_args(Reply))
NUMBERS: Final = (0, 1, 127, 128, (1 << 31) - 1, 1 << 32, (1 << 62))


def made(cls: type, rng: random.Random, **values: Any) -> Any:
    """A message of this kind."""
    for field in fields(cls):
        if field.name in values:
            continue
        if field.name == "incarnation":
            values[field.name] = (rng.choice((-1, *NUMBERS)), rng.choice(NUMBERS))
        elif field.name == "follower":
            values[field.name] = rng.choice(("broker-1", "b", "ä" * 100))
        elif field.type == "bool":
            values[field.name] = rng.random() < 0.5
        else:
            may_be_unknown = field.name == "state_offset" or field.name.endswith("epoch")
            values[field.name] = rng.choice((-1, *NUMBERS) if may_be_unknown else NUMBERS)
    return cls(**values)


def said(cls: type, rng: random.Random) -> Said:
    """The same, as it travels, with bytes where they belong."""
    place = (f"{rng.getrandbits(128):032x}", rng.choice((0, 1, 999)))
    if cls in (Fetch, AskEnd, AskState, AskRange):
        return Asked(place, made(cls, rng), rng.random() < 0.5)
    if cls is Records and rng.random() < 0.3:
        return Answered(place, made(cls, rng), bulk=Bulk(rng.randbytes(32), rng.choice((1, BULK_BYTES_MAX)), 65_535))
    data = rng.randbytes(rng.choice((0, 1, 500))) if cls in (Records, State) else b""
    if cls is State:
        return Answered(place, made(cls, rng, length=len(data)), data)
    if cls is HeldRange:
        data = rng.randbytes(rng.choice((0, 500)))
        start = rng.choice(NUMBERS[:-1])
        return Answered(place, made(cls, rng, start=start, end=start + bool(data)), data)
    return Answered(place, made(cls, rng), data)


GREETINGS: Final[tuple[Said, ...]] = (
    Hello(1, "c" * 32, "broker-1", 7, "broker-0", bytes(range(32))),
    Challenge(bytes(range(32))),
    Proof(bytes(32)),
    Welcome(bytes(32)),
    Welcome(bytes(32), answers_ranges=True),
)
