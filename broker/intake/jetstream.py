"""Whether a JetStream stream captures the same subject: both would answer the publisher, who sees one of the two."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final

import nats.aio.client

from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.plain import parse_json
from broker.config.configuration import Config
from broker.config.nats_options import connect_options
from broker.intake.unbelieved import tell_of
from broker.metadata.info import StreamInfo
from broker.metadata.overlap import subjects_of

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 1.0
INBOX: Final = "_INBOX.liftlog"
"""Where the answer comes: no broker needs the right to hear the answers of others."""


async def overlap_with(config: Config, info: StreamInfo, tell: Tell = tell_nobody) -> list[str]:
    """A sentence for the creator of a stream if JetStream answers its publishers, too. Arguments: as `jetstream_on`."""
    subjects = subjects_of(info.settings)
    others = await jetstream_on(config, subjects[0], tell) if subjects and info.reply_acks_effective else []
    if not others:
        return []
    log.warning("stream.jetstream_overlap stream=%s jetstream=%s", info.name, ",".join(others))
    return [f"JetStream captures {subjects[0]!r} too ({', '.join(others)}): publishers get two answers and see one"]


async def jetstream_on(config: Config, subject: str, tell: Tell = tell_nobody) -> list[str]:
    """Names of the JetStream streams that capture `subject`; none where JetStream is off or does not answer.

    Asked over a connection of its own: the intake's parser keeps every message for the log.

    Args:
        tell: Told of a server that is not believed, as the intake tells (`driver.I5`).
    """
    client = nats.aio.client.Client()
    refused: list[str] = []

    async def note(error: Exception) -> None:
        tell_of(client, error, tell)
        if "permissions violation" in str(error):
            refused.append(str(error))

    try:
        async with asyncio.timeout(ASK_TIMEOUT_S * 2):
            options = connect_options(config.nats)
            await client.connect(**options, allow_reconnect=False, error_cb=note, inbox_prefix=INBOX)
            try:
                request = json.dumps({"subject": subject}).encode()
                answer = await client.request("$JS.API.STREAM.NAMES", request, timeout=ASK_TIMEOUT_S)
                return names_in(answer.data)
            finally:
                await client.close()
    except Exception as error:  # whatever it is (nkeys has errors of its own): the stream was made, this is advice
        if refused:
            log.warning("stream.jetstream_not_asked subject=%s error=%s", subject, refused[0])
        else:
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
