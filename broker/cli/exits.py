"""How a command ends: one small set of exit codes. For people: docs/reference/cli.md."""

from __future__ import annotations

from typing import Final

from broker.api.errors import DeadlineExceeded, LiftlogError, NotReady, Unavailable

# 0 is a command that succeeded; 2 is click's, for a command line that it cannot take.
FAILED: Final = 1
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

# Nobody answered, or not in time: trying the same later may help, the call itself was not refused.
_UNREACHABLE: Final = (Unavailable, DeadlineExceeded, NotReady)


def code_of(error: LiftlogError) -> int:
    """The exit code that stands for an error of the tree."""
    return UNREACHABLE if isinstance(error, _UNREACHABLE) else FAILED
