"""A streaming query, in the process that Spark runs its source in. Nothing here knows Spark.

    heads ─► views ─► driver: losses, admission ─► the next end           ranges ─► what is between two ends

driver.py     Where a query stands, and where its next batch ends: what `stream_reader.py` asks.
heads.py      The ends of what can be read, always at hand: one long poll in the background,
              answers from memory.
views.py      Heads that a batch may be planned from: they tell of all partitions, and agree with
              the query's position.
pause.py      How long a question waits for news when there is none.
changes.py    Options that are others than when the checkpoint was written: refused, or told.
losses.py     Positions are compared with the log, and a loss is named, or survived.
admission.py  How much of what there is goes into the next batch: the limits, together.
ranges.py     Which records a batch has, also one of an earlier run that is planned again.
"""
