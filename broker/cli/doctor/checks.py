"""The result of a check of `liftlog doctor`: its finding and, where that is not as it should be, what to do.

`wrong` keeps a broker from working or endangers records; `warning` makes it slow, or will be wrong later. The checks
change nothing: machine.py, folder.py, network.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

OK: Final = "ok"
WARNING: Final = "warning"
WRONG: Final = "wrong"
SKIPPED: Final = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: The check's.
        status: ok, warning, wrong or skipped.
        found: The finding in words.
        advice: Something to do about it; empty when there is nothing.
        values: The numbers behind it.
    """

    name: str
    status: str
    found: str
    advice: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def worst_of(checks: list[Check]) -> str:
    """wrong, warning or ok."""
    statuses = {check.status for check in checks}
    return next((status for status in (WRONG, WARNING) if status in statuses), OK)


def as_json(checks: list[Check], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**more, "status": worst_of(checks), "checks": [asdict(check) for check in checks]}
