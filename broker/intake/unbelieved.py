"""Whose certificate a NATS client of this broker did not believe, if that is why it failed."""

from __future__ import annotations

import nats.aio.client

from broker.api.certificate_faults import Tell, Unbelieved
from broker.api.tls_files import unbelieved_in


def tell_of(client: nats.aio.client.Client, error: Exception, tell: Tell) -> Unbelieved | None:
    """Tell of the server that was tried last. Returns what is wrong; None: something else is."""
    found = unbelieved_in(error, is_called=True)
    if found is not None:
        tried = max(client._server_pool, key=lambda each: each.last_attempt or 0.0)
        tell(tried.uri.hostname or "", found)
    return found
