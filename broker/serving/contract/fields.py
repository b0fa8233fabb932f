"""JSON objects of requests, checked key by key: every refusal names where, the value and what must hold."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from broker.api.errors import InvalidRequest
from broker.api.stream import NAME_BYTES_MAX

_REQUIRED: Final = object()
_SHOWN_MAX: Final = 100
INT64_MAX: Final = (1 << 63) - 1
INT32_MAX: Final = (1 << 31) - 1
LEADER_EPOCH_MAX: Final = (1 << 32) - 1


class Fields:
    """One JSON object.

    Args:
        value: What the client sent at `where`.
        where: Such as `offsets[3]`; empty for the body itself.
        known: The keys that it may have.
    Raises:
        InvalidRequest: no object, or an unknown key. The getters raise it too.
    """

    def __init__(self, value: Any, where: str, *known: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            self._refuse("", value, "must be a JSON object")
        for key in value:
            if key not in known:
                self._refuse(key, value[key], f"is unknown; there are {', '.join(known)}")
        self._value: dict[str, Any] = value

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def integer(self, key: str, *, least: int, greatest: int, default: Any = _REQUIRED) -> Any:
        """A whole number within limits."""
        value = self._get(key, default)
        if key not in self._value:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
            self._refuse(key, value, f"must be a whole number from {least} to {greatest}")
        return value

    def text(self, key: str, *, length_max: int, length_min: int = 0, default: Any = _REQUIRED) -> Any:
        """Printable text."""
        value = self._get(key, default)
        if key not in self._value:
            return value
        if not isinstance(value, str) or not length_min <= len(value) <= length_max or not value.isprintable():
            self._refuse(key, value, f"must be printable text of {length_min} to {length_max} characters")
        return value

    def stream(self) -> Any:
        """The name under `stream`."""
        return self.text("stream", length_min=1, length_max=NAME_BYTES_MAX)

    def items(self, key: str, *, count_max: int, default: Any = _REQUIRED) -> Any:
        """A list of 1 to `count_max` items."""
        value = self._get(key, default)
        if key not in self._value:
            return value
        if not isinstance(value, list) or not 1 <= len(value) <= count_max:
            count = f" of {len(value)} items" if isinstance(value, list) else ""
            self._refuse(key, value, f"must be a list of 1 to {count_max} items{count and ', not'}{count}")
        return value

    def any(self, key: str) -> Any:
        """Whatever is there."""
        return self._get(key, _REQUIRED)

    def _get(self, key: str, default: Any) -> Any:
        if key in self._value:
            return self._value[key]
        if default is _REQUIRED:
            raise InvalidRequest(f"{self._name(key)} is missing", field=self._name(key))
        return default

    def _name(self, key: str) -> str:
        return ".".join(part for part in (self._where, key) if part) or "the request body"

    def _refuse(self, key: str, value: Any, what: str) -> NoReturn:
        refuse(self._name(key[:_SHOWN_MAX]), value, what)


def refuse(name: str, value: Any, what: str) -> NoReturn:
    """Raise InvalidRequest for one value."""
    shown = repr(value)[:_SHOWN_MAX]
    raise InvalidRequest(f"{name}={shown}: {what}", field=name, value=shown)
