"""The check of a received message: `verify_batch`, or the same compiled.

The compiled one (_verified.pxi) knows the usual message only: uncompressed, of this format version, and right. Whatever
else there is it leaves to `verify_batch`, which finds what is wrong, or that nothing is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.batch import verify_batch
from broker.api.compiled import load_compiled

if TYPE_CHECKING:
    verified = verify_batch
else:
    verified = getattr(load_compiled("broker.client.reading._gathering"), "verified", verify_batch)
