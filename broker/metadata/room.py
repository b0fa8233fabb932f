"""Which commands are refused first where the disk of a catalog is full, whoever keeps it: a lone broker or a group.

A catalog without any room takes nothing that leads to room either. So what makes the catalog or the logs larger stops
while something is left for all else: who frees room, keeps others from taking it, or has to be there for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

GROWS: Final = frozenset(
    {
        *("create_stream", "add_partitions", "raise_replication", "raise_fence", "register_producer", "reassign"),
        "join_group",
    }
)
"""Kinds of commands that make the catalog or the logs larger."""


def grows(command: Mapping[str, Any]) -> bool:
    """Whether a command is one of these."""
    return command.get("kind") in GROWS
