"""Random rows of the record schema, by seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from broker.api.schema import SCHEMA


def random_rows(rng: random.Random, count: int, *, first_offset: int = 0) -> pa.RecordBatch:
    """`count` rows with every column at its own rate of nulls, from none to all."""
    null_rates = {name: rng.choice([0.0, 0.3, 1.0]) for name in ("key", "value", "headers", "reply")}

    def maybe(name: str, make: Callable[[], object]) -> object:
        return None if rng.random() < null_rates[name] else make()

    def text() -> str:
        return "".join(rng.choice("abcé.€") for _ in range(rng.randrange(0, 20)))

    def raw() -> bytes:
        return rng.randbytes(rng.randrange(0, 40))

    def header() -> dict[str, object]:
        return {"key": text(), "value": raw() if rng.random() < 0.9 else None}

    return pa.RecordBatch.from_pylist(
        [
            {
                "offset": first_offset + i,
                "timestamp": rng.randrange(0, 2**50),
                "subject": text(),
                "key": maybe("key", raw),
                "value": maybe("value", raw),
                "headers": maybe("headers", lambda: [header() for _ in range(rng.randrange(0, 3))]),
                "reply": maybe("reply", text),
            }
            for i in range(count)
        ],
        schema=SCHEMA,
    )
