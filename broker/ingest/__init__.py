"""NATS bytes in, record batches and acks out. No sockets, no loop, no clock.

    bytes of one connection ──► Intake ──► Builder (per partition) ──take──► PendingBatch
                                  │                                            ├─ compose ─► message for the log
                                  └─ refusals: answers to refused messages     └─ acks ────► answers for publishers

rules.py        what decides whether a message is stored, skipped or refused; names and limits
control.py      control lines of the protocol; errors.py what is none
answers.py      the JSON that publishers get: JetStream's PubAck and errors
envelope.py     Liftbridge's envelope, which a payload may be
settling.py     what becomes of a message with an id or expectations, at the append
pure.py         Intake in Python; pure_batch.py: Builder and PendingBatch; pure_fate.py: the rules. The specification
                that runs
settings.py     what both twins refuse of their caller
_intake.pyx     the same, compiled: no Python object per message. Optional; same results, byte for byte

The compiled twin is used where it was built, else the pure one; `load` (and the setting
`intake.implementation`, which comes to it) chooses otherwise.

Design: docs/adr (parser seam, ack shape).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Final

from broker.api.compiled import load_compiled
from broker.ingest.errors import IntakeProtocolError

IMPLEMENTATIONS: Final = ("auto", "compiled", "pure")


def load(implementation: str = "auto") -> ModuleType:
    """The module with `Builder`, `Intake` and `PendingBatch`; its `IMPLEMENTATION` says which it is.

    Args:
        implementation: `compiled`, `pure`, or `auto`: compiled where it was built.
    Raises:
        ImportError: `compiled` was asked for and was not built here.
        ValueError: no such implementation.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    if implementation != "pure":
        compiled = load_compiled("broker.ingest._intake")
        if compiled is not None:
            return compiled
        if implementation == "compiled":
            raise ImportError("the compiled intake was not built here: install with a C compiler")
    return importlib.import_module("broker.ingest.pure")


_chosen = load()
IMPLEMENTATION: Final[str] = _chosen.IMPLEMENTATION

if TYPE_CHECKING:
    from broker.ingest.pure import Builder, Intake, PendingBatch
else:
    Builder = _chosen.Builder
    Intake = _chosen.Intake
    PendingBatch = _chosen.PendingBatch

__all__ = ["IMPLEMENTATION", "Builder", "Intake", "IntakeProtocolError", "PendingBatch", "load"]
