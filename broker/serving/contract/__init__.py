"""The contract of the API: endpoints as a table, shapes, errors, and the OpenAPI document.

backend.py   All that serving knows of the broker behind it: Protocols, no code.
endpoint.py  What an endpoint is: one row of a table that the server routes by and the OpenAPI
             document is made of.
openapi.py   The contract as an OpenAPI 3.1 document, made of the same table that the server routes
             by.
problems.py  Every error as an RFC 9457 problem body, with the reason codes of `broker.api.errors`.
schemas.py   The shapes of JSON bodies: requests as dataclasses, and all of them as JSON Schema
             (2020-12), see `openapi.py`.
"""
