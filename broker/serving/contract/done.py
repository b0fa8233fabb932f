"""Whether a change that this request has asked for is done.

Its answer may still fail, as this broker stops. That error must not say that nothing was changed
(`errors.may_be_done`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

change_done: Final[ContextVar[bool]] = ContextVar("change_done", default=False)
"""Of the request that this task works for."""
