"""Fields of a command, checked. A command from a journal or from another broker may hold anything.

Each function raises InvalidRequest, which names the field, for a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.api.errors import InvalidRequest
from broker.api.plain import is_int64
from broker.api.validation import is_utf8
from broker.metadata.partition import Place

EPOCH_MARGIN: Final = 1_000_000
EPOCH_MAX: Final = (1 << 32) - 1 - 2 * EPOCH_MARGIN
"""Above it no log's leader epoch is believed: the next one would not fit (the HTTP API has epochs of 32 bits), and no
broker could register any more. Some are left for a rescue (`rescue.Q1`), and for afterwards."""


DEPTH_MAX: Final = 32
"""Whether a JSON text that is nested some hundred times can be read depends on how deep its reader stands in its own
calls: of two brokers one would carry the command out, and the other would not."""


def check_depth(command: Mapping[str, Any]) -> None:
    """Refuse what is nested deeper than any command is."""
    boxes: list[Any] = [command]
    for _ in range(DEPTH_MAX):
        inner = (box.values() if isinstance(box, Mapping) else box for box in boxes)
        boxes = [each for values in inner for each in values if isinstance(each, (dict, list))]
        if not boxes:
            return
    raise InvalidRequest(f"malformed command: nested more than {DEPTH_MAX} times", limit=DEPTH_MAX)


def text(command: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A Unicode text; without a default it is required and not empty."""
    value = command.get(key, default)
    if not isinstance(value, str) or (default is None and not value) or not is_utf8(value):
        raise _unfit(key, value, "a text")
    return value


def whole(command: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 0) -> int:
    """A whole number of 64 bits, at least `least`."""
    value = command.get(key, default)
    if not is_int64(value) or value < least:
        raise _unfit(key, value, f"a whole number from {least}")
    return int(value)


def epoch_seen(command: Mapping[str, Any]) -> int:
    """`epoch_seen`, the greatest leader epoch that somebody's logs hold; -1 if it is not there."""
    return checked_epoch(whole(command, "epoch_seen", -1, least=-1))


def checked_epoch(epoch: int) -> int:
    """A leader epoch that a log holds."""
    if epoch > EPOCH_MAX:
        raise InvalidRequest(f"leader epoch {epoch}: none can be given out above it", limit=EPOCH_MAX)
    return epoch


def flag(command: Mapping[str, Any], key: str) -> bool:
    """True or false; false if it is not there."""
    value = command.get(key, False)
    if not isinstance(value, bool):
        raise _unfit(key, value, "true or false")
    return value


def names(command: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Texts, each once, in their order; at least one."""
    value = command.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise _unfit(key, value, "a list of names")
    if len(set(value)) < len(value):
        raise _unfit(key, value, "a list of names, each once")
    return tuple(value)


def place(command: Mapping[str, Any]) -> Place:
    """`stream` (the stream's incarnation) and `partition`."""
    return text(command, "stream"), whole(command, "partition")


def places(command: Mapping[str, Any], key: str) -> frozenset[Place]:
    """Partitions by incarnation of their stream: {incarnation: [number, ...]}; none if it is not there."""
    value = command.get(key, {})
    fits = isinstance(value, Mapping) and all(
        isinstance(incarnation, str) and isinstance(numbers, list) and all(is_int64(number) for number in numbers)
        for incarnation, numbers in value.items()
    )
    if not fits:
        raise _unfit(key, value, "an object of lists of partitions")
    return frozenset((incarnation, number) for incarnation, numbers in value.items() for number in numbers)


def replicas(command: Mapping[str, Any], key: str) -> dict[Place, int]:
    """Replicas: [[incarnation of the stream, partition, step-outs], ...]; at least one, each partition once."""
    value = rows(command, key, str, int, int)
    found = {(stream, number): step_outs for stream, number, step_outs in value}
    if not value or len(found) < len(value):
        raise _unfit(key, value, "a list of partitions, each once")
    return found


def rows(command: Mapping[str, Any], key: str, *types: type) -> list[tuple[Any, ...]]:
    """Lists of so many values each: texts, and whole numbers of 64 bits."""
    value = command.get(key)
    fits = isinstance(value, list) and all(
        isinstance(each, list)
        and len(each) == len(types)
        and all(is_int64(v) if kind is int else isinstance(v, kind) for v, kind in zip(each, types, strict=True))
        for each in value
    )
    if not fits or value is None:
        raise _unfit(key, value, f"a list of lists of {', '.join(kind.__name__ for kind in types)}")
    return [tuple(each) for each in value]


def numbered(command: Mapping[str, Any], key: str) -> dict[str, int]:
    """Whole numbers by name."""
    value = command.get(key)
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and is_int64(v) for k, v in value.items()):
        raise _unfit(key, value, "an object of whole numbers")
    return dict(value)


def _unfit(key: str, value: Any, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"malformed command: {key} is {value!r:.100}, not {wanted}", key=key)
