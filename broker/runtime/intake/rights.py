"""What the NATS server does not let the broker's user do (docs/guides/operations.md, "Rights on the NATS server").

A server says so in an `-ERR` and goes on; when it does not let us subscribe, nothing else ever tells.

    Permissions Violation for Subscription to "orders.>" using queue "workers"
    Permissions Violation for Publish to "_INBOX.x"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import nats.errors

_VIOLATION: Final = re.compile(
    r'permissions violation for (publish|subscription) to "((?:[^"\\]|\\.)*)"(?: using queue "((?:[^"\\]|\\.)*)")?',
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class MissingRight(nats.errors.Error):
    """One that was told.

    Attributes:
        group: The queue group; empty: none.
    """

    does: Literal["publish", "subscribe"]
    subject: str
    group: str = ""

    def __str__(self) -> str:
        of = f"{self.subject!r}" + (f" with the queue group {self.group!r}" if self.group else "")
        return f"the NATS server does not let this broker {self.does} to {of}"


def refusal_in(text: str) -> MissingRight | None:
    """What an `-ERR` says of rights; None: it is about something else."""
    found = _VIOLATION.match(text)
    if found is None:
        return None
    does, subject, group = found.groups(default="")
    plain = (re.sub(r"\\(.)", r"\1", each) for each in (subject, group))  # as Go's %q has quoted them
    return MissingRight("publish" if does.lower() == "publish" else "subscribe", *plain)
