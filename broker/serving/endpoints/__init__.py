"""The endpoints, a module for each part of the API.

append.py     POST records: an Arrow stream in, the offsets of its records out.
changes.py    What is changed of a stream while it runs: paused or read-only, trimmed, given more
              partitions.
cluster.py    What the broker says of itself: cluster, health, metrics, and a page that links them.
consumers.py  Consumers as JSON: who reads what, how far behind, commit, reset, forget.
producers.py  Idempotent producers: who appends may be told apart, so that a repeated append is
              stored once.
records.py    GET records: the stored bytes of a range of offsets, as one Arrow stream or as JSON
              lines.
resolve.py    Many positions at once: what a planner asks for before it reads hundreds of
              partitions.
sinks.py      Exactly-once sinks: open one, stage records for it, commit them as one batch.
streams.py    Streams as JSON: create, describe, list, alter, delete.
watch.py      One long poll over many partitions: what a reader of hundreds of them waits on instead
              of hundreds of polls.
"""
