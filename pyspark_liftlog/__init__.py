"""How Spark finds `format("liftlog")`: it imports every top-level module named `pyspark_*` and takes `DefaultSource`.

Importing this never raises: a module that does switches discovery off for every Python source on the
path, and the user is told only DATA_SOURCE_NOT_FOUND. If something that liftlog needs is missing or
broken, a stand-in of the same name is found instead, and says what is wrong when it is used.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(Exception):  # no pyspark, or not one with data sources: there is nothing to find
    from pyspark_liftlog._find import DefaultSource as DefaultSource
