"""The shape of every message between voters: what it must be before Raft sees it.

A message that does not fit ends its connection and nothing else (`misfit`). Only what came through here may be taken
apart without another look; pysyncobj takes what it gets.

    append_entries   term, commit_index; and either prevLogIdx, prevLogTerm, entries [[command, index, term]],
                     or serialized: a piece of a snapshot, or nothing
    request_vote     term, last_log_index, last_log_term
    response_vote    term
    next_node_idx    term, next_node_idx, reset, success
    submit           id, command, until (optional)
    submitted        id, result
    note             note
    hello            the greeting of who takes no part, and its answer (`greeting.py`)

A type that is not known is passed over: a later release may send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.api.plain import is_offset, parse_json
from broker.api.validation import is_utf8

REGULAR, NO_OP, MEMBERSHIP = b"\x00", b"\x01", b"\x02"
"""The first byte of a command in the log."""
_ID_LENGTH: Final = 512
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _ID_LENGTH and is_utf8(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _ID_LENGTH and all(map(_is_text, value))


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and ("ok" in value or isinstance(value.get("error"), dict))


def _is_piece(value: Any) -> bool:
    if value is None:
        return True
    is_of_three = isinstance(value, (list, tuple)) and len(value) == 3
    return is_of_three and isinstance(value[0], (bytes, bytearray)) and all(map(_is_flag, value[1:]))


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _ID_LENGTH and all(_is_texts(each) for each in value)


def _is_until(value: Any) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [int, float]


FIELDS: Final[Mapping[str, Mapping[str, Check]]] = {
    "append_entries": {"term": is_offset, "commit_index": is_offset},
    "request_vote": {"term": is_offset, "last_log_index": is_offset, "last_log_term": is_offset},
    "response_vote": {"term": is_offset},
    "next_node_idx": {"term": is_offset, "next_node_idx": is_offset, "reset": _is_flag, "success": _is_flag},
    "submit": {"id": _is_text, "command": _is_object},
    "submitted": {"id": _is_text, "result": _is_result},
    "note": {"note": _is_object},
}
HELLO: Final[Mapping[str, Check]] = {
    "cluster": _is_text,
    "broker": _is_text,
    "node_id": _is_text,
    "group": _is_text,
    "named": _is_named,
    "is_forming": _is_flag,
}
HELLO_ANSWER: Final[Mapping[str, Check]] = {
    "state": _is_text,
    "node_id": _is_text,
    "group": _is_text,
    "first": _is_texts,
    "voters": _is_texts,
    "has_acted": _is_flag,
    "process": _is_text,
    "registration": is_offset,
}


def misfit(message: Any, *, is_node_id: Callable[[str], bool]) -> str | None:
    """Why a message of this group cannot be taken; None: it can.

    Args:
        is_node_id: Whether a text can be the id of a voter.
    """
    if not isinstance(message, dict):
        return "a message that is no object"
    kind = message.get("type")
    if not isinstance(kind, str):
        return "a message of no type"
    for key, fits in FIELDS.get(kind, {}).items():
        if not fits(message.get(key)):
            return f"{kind} without a sound {key}"
    if kind == "submit" and not (message.get("until") is None or _is_until(message["until"])):
        return "submit without a sound until"
    return _misfit_of_append(message, is_node_id) if kind == "append_entries" else None


def is_hello(message: Any, shape: Mapping[str, Check] = HELLO) -> bool:
    """Whether it is a greeting, or with `HELLO_ANSWER` an answer to one; a refusal is an answer of its own."""
    if not isinstance(message, dict) or message.get("type") != "hello":
        return False
    if shape is HELLO_ANSWER and isinstance(message.get("refusal"), str):
        return True
    return all(fits(message.get(key)) for key, fits in shape.items())


def _misfit_of_append(message: Mapping[str, Any], is_node_id: Callable[[str], bool]) -> str | None:
    if "prevLogIdx" not in message:
        return None if _is_piece(message.get("serialized")) else "append_entries without a sound piece of a snapshot"
    at = message["prevLogIdx"], message.get("prevLogTerm")
    entries = message.get("entries")
    if "prevLogTerm" not in message or (at != (None, None) and not all(map(is_offset, at))):
        return "append_entries without a sound place"
    if not isinstance(entries, list) or not all(_is_entry(each, is_node_id) for each in entries):
        return "append_entries without sound entries"
    return None


def _is_entry(value: Any, is_node_id: Callable[[str], bool]) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 3 or not all(map(is_offset, value[1:])):
        return False
    command = value[0]
    if not isinstance(command, (bytes, bytearray)):
        return False
    kind = bytes(command[:1])
    if kind == REGULAR:
        return command[1:2] == b"{"
    return kind == NO_OP or (kind == MEMBERSHIP and membership(bytes(command), is_node_id) is not None)


def membership(command: bytes, is_node_id: Callable[[str], bool] = lambda _: True) -> tuple[str, str] | None:
    """`add` or `rem`, and the id; None: it changes no membership."""
    if command[:1] != MEMBERSHIP:
        return None
    try:
        kind, node_id = parse_json(command[1:])
    except (ValueError, TypeError):
        return None
    fits = kind in ("add", "rem") and _is_text(node_id) and is_node_id(node_id)
    return (kind, node_id) if fits else None
