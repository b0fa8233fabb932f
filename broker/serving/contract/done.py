"""What has become of the change that this request asks for.

What ends the request may not be what the change comes to: this broker stops, or its caller's token is revoked. The
error must not say then that nothing was changed (`errors.may_be_done`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final


class Change:
    """See the module. One per request; what works for it in tasks of its own tells the same one.

    Attributes:
        has_begun: It goes on whatever becomes of the request.
        is_done: It, or a part of it.
    """

    __slots__ = ("has_begun", "is_done")

    def __init__(self) -> None:
        self.has_begun = False
        self.is_done = False


change_now: Final[ContextVar[Change | None]] = ContextVar("change", default=None)
"""Of the request that this task works for."""
