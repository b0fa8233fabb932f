"""The published contract between the tiers: what every package may import.

schema.py   the record schema, its pinned bytes, the end-of-stream marker
batch.py    one record batch as bytes: field table, encode, verify, decode
encodable.py  what a log appends, before it has its place
compression.py  Arrow's buffer compression, undone within limits
errors.py   the error tree with its reason codes
stream.py   the settings of a stream: defaults, limits, validation
http.py     header names and media types of the HTTP API
plain.py    JSON that somebody else wrote, as values of the right types
compiled.py  a compiled module, where it belongs to the sources beside it
legible.py  a record's cells as JSON that people read
"""
