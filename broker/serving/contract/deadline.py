"""When an answer is due. A change that is made later comes behind what its client has done since (`changes.X7`)."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Final

answer_due: Final[ContextVar[float]] = ContextVar("answer_due", default=math.inf)
"""By the monotonic clock in seconds, for the request that this task works for. After that its client has been told that
nobody knows."""
