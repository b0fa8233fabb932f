"""Pins: small texts under a name, kept in `__offsets` beside the consumers, and changed by one at a time.

    a reads version 7        b reads version 7
    a places "x" on 7  ─► 8  b places "y" on 7  ─► refused: here is 8, "x"

Tasks of one Spark batch that read a frame agree so on where it ends. Who places a text says which version it has seen.
The text of another one, who came first, is then the answer, and nothing is stored.

K1  A version that was answered is committed, and no other text ever has it.
K2  No consumer can be stored under the key of a pin: no part of a consumer's key is empty.

Format: docs/reference/storage.md, section "Offset stream".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from broker.api.plain import parse_json
from broker.api.validation import build

PIN_VERSION: Final = 1
_PREFIX: Final = b"//pin/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A text under a name.

    Attributes:
        version: Changes with each text, and only rises. 0: there is none.
        timestamp_us: When it was placed.
    """

    name: str
    text: str = ""
    version: int = 0
    timestamp_us: int = 0

    @property
    def key(self) -> bytes:
        """The record's key."""
        return _PREFIX + self.name.encode()

    def value(self) -> bytes:
        """The record's value."""
        fields = {"v": PIN_VERSION, "text": self.text, "version": self.version, "timestamp_us": self.timestamp_us}
        return json.dumps(fields, separators=(",", ":")).encode()

    def next(self, text: str, *, now_us: int) -> Pin:
        """The pin after this one. The clock is in its version, so that one that was forgotten has no successor with
        its version (K1)."""
        return Pin(name=self.name, text=text, version=max(now_us, self.version + 1), timestamp_us=now_us)


def decode_pin(key: bytes, value: bytes) -> Pin | None:
    """One record as a pin; None if it is none that this release understands."""
    if not key.startswith(_PREFIX):
        return None
    try:
        fields: dict[str, Any] = parse_json(value)
        if fields.pop("v") != PIN_VERSION:
            return None
        return build(Pin, {**fields, "name": key.removeprefix(_PREFIX).decode()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@dataclass(slots=True)
class PinTable:
    """The newest pin of each name."""

    _pins: dict[bytes, Pin] = field(default_factory=dict)

    def apply(self, batch: pa.RecordBatch) -> None:
        """Take in the records of one batch of the offset stream."""
        values = batch.column("value")
        for row, key in enumerate(batch.column("key").to_pylist()):
            if key is not None and key.startswith(_PREFIX):
                self._put(key, values[row].as_py())

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._pins.pop(key, None)
        elif pin := decode_pin(key, value):
            self._pins[key] = pin

    def get(self, name: str) -> Pin:
        """The newest; of version 0 if there is none."""
        none = Pin(name=name)
        return self._pins.get(none.key, none)

    def silent(self, before_us: int) -> list[str]:
        """Those that were placed before a time, sorted."""
        return sorted(pin.name for pin in self._pins.values() if pin.timestamp_us < before_us)
