"""Records in requests and answers: Arrow streams and JSON lines, checked before they are used.

decode.py   bytes that a stranger sent, as checked record batches
framing.py  the frame of an Arrow stream, read before Arrow decodes it
ndjson.py   records as JSON lines
rows.py     decoded batches as rows of the record schema
"""
