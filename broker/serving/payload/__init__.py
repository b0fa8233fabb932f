"""Records in requests and answers: Arrow streams and JSON lines, checked before they are used.

decode.py   Bytes that a stranger sent, as record batches that are safe to compute with.
framing.py  The frame of an Arrow stream that a stranger sent, read before Arrow decodes anything of
            it.
ndjson.py   Records for people: one JSON object per line.
rows.py     Decoded batches of a client as rows of the record schema, checked as strictly as what
            comes from NATS.
"""
