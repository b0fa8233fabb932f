"""The contract of the API: endpoints as a table, shapes, errors, and the OpenAPI document.

acts.py      whether an endpoint is an administrative act, and what is told of it
backend.py   what serving knows of the broker: Protocols
deadline.py  when the answer to a request is due
done.py      whether a change that was asked for is done
endpoint.py  one row of the table of endpoints, and its checks
openapi.py   the OpenAPI document, made of that table
problems.py  every error as an RFC 9457 problem
schemas.py   requests as dataclasses, and all shapes as JSON Schema
"""
