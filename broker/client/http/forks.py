"""Objects that begin anew in a forked child: locks that another thread may hold, connections of the parent."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Renewable(Protocol):
    """Something that a fork must not share."""

    def after_fork(self) -> None:
        """Called in the child, where no other thread runs."""


def renew_after_fork(one: Renewable) -> None:
    """Call its `after_fork` in every child that is forked while it lives."""
    _LIVING.add(one)


def _renew_all() -> None:
    for one in list(_LIVING):
        one.after_fork()


_LIVING: Final[weakref.WeakSet[Renewable]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_all)
