"""Exactly-once sinks: what may be staged, decided and finished. State machines only; no I/O, no clock, no threads.

    notes.py         what a partition's hidden log says of its stages, as records
    stages.py        the stages of one partition: stored, pinned, dropped, finished
    state.py         a sink and its last decision, as records of `__commits`
    ledger.py        all sinks: who may decide what
    destinations.py  where its batches went, and what has been made anew since
    silence.py       owners that have not been heard of
    restamp.py       a staged batch at its place in the partition's log

The drivers are broker.node.sinks.stages and broker.node.sinks.coordinator.
The protocol, state by state: docs/explain/sinks.md.
"""
