"""The endpoints, a module for each part of the API.

append.py     POST records
audit.py      what other brokers tell the leader of `__audit`
auth.py       who asks; tokens and grants
producers.py  ids and names of idempotent producers
bundles.py    parts of stages of many partitions in one request
changes.py    pause, resume, read-only, trim, add partitions
cluster.py    the cluster, health, metrics, and a page of links
consumers.py  consumers: describe, commit, reset, forget
fences.py     which writer holds a partition
groups.py     consumer groups: join, poll, begin, commit; describe, reset, forget
heads.py      the heads of partitions that other brokers lead, for those who watch here
operator.py   partitions moved, leaders elected, brokers drained and removed, by hand
pins.py       small texts under a name, replaced by who has seen the last one: read, place
records.py    GET records, as one Arrow stream or as JSON lines
resolve.py    many positions at once, as offsets
sinks.py      sinks: open, stage, commit, reset
streams.py    streams: create, describe, list, alter, delete
watch.py      one long poll over many partitions
"""
