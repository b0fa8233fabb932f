"""Every decoder of liftlog, one line each: which fuzz target meets it, with what bytes it begins.

`test_every_decoder_is_in_the_table` looks through the code for what decodes and asks for each file by name here, or in
`ELSEWHERE` with the reason why it has no target of its own. `python -m tests.fuzz --list` prints the table.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.decoder import Decoder
from tests.fuzz.encrypted import ENCRYPTED
from tests.fuzz.files import FILES
from tests.fuzz.network import NETWORK
from tests.fuzz.payloads import PAYLOADS
from tests.fuzz.raft import RAFT
from tests.fuzz.raw import RAW
from tests.fuzz.tokens import TOKENS

DECODERS: Final[dict[str, Decoder]] = {
    decoder.name: decoder for decoder in (*FILES, *ENCRYPTED, *NETWORK, *PAYLOADS, *RAFT, *RAW, *TOKENS)
}

ELSEWHERE: Final[dict[str, str]] = {
    "broker/metadata/producers.py": "three bytes of a hash that it has made",
    "broker/link/tls.py": "two lengths in nine bytes, which are compared: tests/unit/link/test_tls.py",
    "broker/api/plain.py": "what the others decode JSON with",
    "broker/node/sinks/groups.py": "decodes what PartitionLog.batches has verified (target batch)",
    "broker/node/sinks/stages.py": "reads notes (target note) and verified batches (target batch)",
    "broker/cli/local/reviving.py": "JSON of a broker for the line of health; what is none is no answer",
    "broker/cli/local/readiness.py": "re-indents JSON for a message; what is none is shown as it is",
    "broker/serving/http/json_text.py": "JSON of request bodies (target http-body)",
    "broker/serving/liftbridge/backward.py": "the head of a batch that reading.py has verified (target batch)",
    "broker/serving/liftbridge/outgoing.py": "batches that reading.py has verified (target batch)",
    "broker/serving/liftbridge/reading.py": "Arrow that this broker has made itself (target segment)",
    "broker/serving/liftbridge/door.py": "JSON that this broker has made itself",
    "broker/serving/liftbridge/activity.py": "JSON that brokers have written themselves; what is none is handed out",
    "broker/serving/http/peers.py": "JSON of another broker; what is none is no answer",
    "broker/cli/doctor/network.py": "JSON of a broker's answer; what is none is no broker",
    "broker/cli/commands/export.py": "decodes what PartitionLog.batches has verified (target segment)",
    "broker/storage/memory/siphash.py": "a hash: every bytes have one",
    "broker/storage/rewrite/coalescing.py": "decodes batches that it has verified (targets batch, segment)",
    "broker/cli/commands/dump.py": "shows what scan and read_header found (targets segment, batch)",
    "broker/storage/read.py": "peeks at batches that the index names (targets segment, file-index)",
    "broker/storage/picking.py": "decodes messages that select.py has checked (targets batch, client-columns)",
    "broker/storage/memory/handover.py": "takes what file-state decodes",
    "broker/storage/log.py": "applies what file-state decodes",
    "broker/raft/journal.py": "torn writes and flipped bits: tests/unit/raft, tests/sim/raft",
    "broker/api/plain_join.py": "joins messages that PartitionLog.batches has verified (target batch)",
    "broker/api/plain_rows.py": "joins the columns of rows that Arrow has read (target batch); takes no bytes apart",
    "spark_liftlog/writing/digest.py": "a sum over Arrow columns that Spark hands over: every buffer has one",
}
