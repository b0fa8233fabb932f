"""The checks of messages, and what a message of some columns begins with: compiled where there was a compiler.

`_checked.pyx` has them; `batch.py` and `columns.py` have what they stand for. Both say the same of any bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.batch import verify_batch
from broker.api.columns import begun, verify_known, verify_projected
from broker.api.compiled import load_compiled

__all__ = ["begun", "verified", "verified_known", "verified_projected"]

_compiled = load_compiled("broker.api._checked")
if TYPE_CHECKING:
    verified, verified_known, verified_projected = verify_batch, verify_known, verify_projected
else:
    verified = getattr(_compiled, "verified", verify_batch)
    verified_known = getattr(_compiled, "verified_known", verify_known)
    verified_projected = getattr(_compiled, "verified_projected", verify_projected)
    begun = getattr(_compiled, "begun", begun)
