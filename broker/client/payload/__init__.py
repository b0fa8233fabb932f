"""Values of records as columns.

json_columns.py  JSON objects in the columns of a schema: the rules, and the schemas that are possible
_json.pyx        the decoder, compiled
kept.py          the schema that a stream keeps, as Arrow has it
decoding.py      record batches with the value decoded: which columns there are, what happens to a row that is no JSON
"""
