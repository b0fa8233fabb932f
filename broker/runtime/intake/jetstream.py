"""Whether a JetStream stream captures the same subject: both would answer the publisher, who sees one of the two."""

from __future__ import annotations

import asyncio
import json
import logging

import nats.aio.client

from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.plain import parse_json
from broker.runtime.config.configuration import Config
from broker.runtime.config.nats_options import connect_options
from broker.runtime.intake.unbelieved import tell_of

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 1.0


async def jetstream_on(config: Config, subject: str, tell: Tell = tell_nobody) -> list[str]:
    """Names of the JetStream streams that capture `subject`; none where JetStream is off or does not answer.

    Asked over a connection of its own: the intake's parser keeps every message for the log.

    Args:
        tell: Told of a server that is not believed, as the intake tells (`driver.I5`).
    """
    client = nats.aio.client.Client()

    async def note(error: Exception) -> None:
        tell_of(client, error, tell)

    try:
        async with asyncio.timeout(ASK_TIMEOUT_S * 2):
            await client.connect(**connect_options(config.nats), allow_reconnect=False, error_cb=note)
            try:
                request = json.dumps({"subject": subject}).encode()
                answer = await client.request("$JS.API.STREAM.NAMES", request, timeout=ASK_TIMEOUT_S)
                return names_in(answer.data)
            finally:
                await client.close()
    except Exception as error:  # whatever it is (nkeys has errors of its own): the stream was made, this is advice
        log.debug("stream.jetstream_unknown subject=%s error=%r", subject, error)
        return []


def names_in(answer: bytes) -> list[str]:
    """The names in an answer of `$JS.API.STREAM.NAMES`, sorted; none in what is no such answer."""
    try:
        values = parse_json(answer)
    except ValueError:
        return []
    names = values.get("streams") if isinstance(values, dict) else None
    return sorted(name for name in names if isinstance(name, str)) if isinstance(names, list) else []
