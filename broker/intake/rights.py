"""What the NATS server does not let the broker's user do (docs/guides/operations.md, "Rights on the NATS server").

A server says so in an `-ERR` and goes on; when it does not let us subscribe, nothing else ever tells.

    Permissions Violation for Subscription to "orders.>" using queue "workers"
    Permissions Violation for Publish to "_INBOX.x"
    maximum subscriptions exceeded
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
_TOO_MANY: Final = "maximum subscriptions exceeded"


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


@dataclass(frozen=True, slots=True)
class TooManySubscriptions(nats.errors.Error):
    """The server has taken as many as a connection may have, and not the newest one. It does not name that."""

    def __str__(self) -> str:
        return "the NATS server takes no more subscriptions of this broker (max_subscriptions)"


def refusal_in(text: str) -> MissingRight | TooManySubscriptions | None:
    """What an `-ERR` after which the server goes on says; None: it is about something else."""
    found = _VIOLATION.match(text)
    if found is None:
        return TooManySubscriptions() if text.lower() == _TOO_MANY else None
    does, subject, group = found.groups(default="")
    plain = (re.sub(r"\\(.)", r"\1", each) for each in (subject, group))  # as Go's %q has quoted them
    return MissingRight("publish" if does.lower() == "publish" else "subscribe", *plain)
