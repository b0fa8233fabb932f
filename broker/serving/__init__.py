"""HTTP: the pull socket for records and the admin API.

app.py        the aiohttp application: one table of endpoints, middlewares, shutdown
connections.py  connections: how many, and how long a silent one is kept; what is no HTTP; closing.py how one is cut
backend.py    all that serving knows of the broker behind it
endpoint.py   what an endpoint is: method, path, query parameters, answers; validation before the handler
problems.py   every error as a problem body
body.py       request bodies: limits, JSON; fields.py its objects, key by key
records.py    GET records: Arrow by sendfile (sending.py), long poll (waiting.py)
ndjson.py     GET records for people
append.py     POST records; framing.py, decode.py, rows.py make rows of untrusted bytes
streams.py, changes.py, consumers.py, producers.py, sinks.py, watch.py, resolve.py, cluster.py   the other endpoints
meters.py     what it counts
openapi.py    the contract, generated from the same table; schemas.py the shapes in it
"""
