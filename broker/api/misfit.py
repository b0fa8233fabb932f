"""The refusal of a validator: where the value stands, what it is, and what must hold."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

from broker.api.plain import is_int64

SHOWN_MAX: Final = 100
"""An error shows at most this many characters of a refused value."""
NOTHING: Final = object()
"""In the place of a value that is missing."""


class Misfit(ValueError):
    """A value that is not what was declared.

    Attributes:
        what: The rule that must hold: "must be ...".
        value: The value that was there.
        path: Keys and numbers that lead to it, from the inside out.
        limit: (least, greatest), or the words that are allowed.
        nearest: The key that may be meant, if a key is unknown.
        hint: Advice, if a key is unknown.
    """

    def __init__(self, what: str, value: Any = NOTHING, *path: str, limit: Any = None) -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.path: list[str | int] = list(path)
        self.limit = limit
        self.nearest: str | None = None
        self.hint = ""

    @property
    def where(self) -> str:
        """Such as `offsets[3].partition`; empty: the value itself."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step[:SHOWN_MAX]}" for step in reversed(self.path))
        return "".join(steps).removeprefix(".")

    @property
    def shown(self) -> str:
        """The value as far as an error shows it."""
        return "" if self.value is NOTHING else show(self.value)

    @property
    def fact(self) -> Any:
        """The value as a field of an error, which is JSON: short and of one piece."""
        if self.value is None or isinstance(self.value, bool) or is_int64(self.value):
            return self.value
        is_short = isinstance(self.value, str) and len(self.value) <= SHOWN_MAX and self.value.isprintable()
        return self.value if is_short else self.shown

    def text(self, whole: str = "the value") -> str:
        """Where, value and what must hold; `whole`: the name of the value itself."""
        name = self.where or whole
        return f"{name} {self.what}" if self.value is NOTHING else f"{name}={self.shown}: {self.what}"

    def __str__(self) -> str:
        return self.text()


def show(value: Any) -> str:
    """A value as an error shows it: never long, and never an error of its own."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple | dict) and len(value) > SHOWN_MAX:
        return f"<{len(value)} items>"
    try:
        return repr(value)[:SHOWN_MAX]
    except ValueError:  # a number of more digits than Python writes
        return "<a huge number>"


def unknown(key: Any, value: Any, known: Iterable[str]) -> Misfit:
    """The refusal of a key that is not declared; it names the nearest that is."""
    known = list(known)
    nearest = next(iter(difflib.get_close_matches(str(key)[:SHOWN_MAX], known, n=1)), None)
    hint = f"did you mean {nearest!r}?" if nearest else f"there are {', '.join(known) or 'none'}"
    misfit = Misfit(f"is unknown; {hint}", value, str(key))
    misfit.nearest, misfit.hint = nearest, hint
    return misfit
