"""Names that both ends of the HTTP API use. The API itself: docs/reference/http-api.md and /openapi.json."""

from __future__ import annotations

import ipaddress
from typing import Final

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
PROBLEM_JSON: Final = "application/problem+json"

HIGH_WATERMARK: Final = "Liftlog-High-Watermark"
LOG_START_OFFSET: Final = "Liftlog-Log-Start-Offset"
NEXT_OFFSET: Final = "Liftlog-Next-Offset"
LEADER_EPOCH: Final = "Liftlog-Leader-Epoch"
INCARNATION: Final = "Liftlog-Incarnation"
EPOCHS: Final = "Liftlog-Epochs"
"""In an answer in Arrow: the leader epochs of the record before the asked offset, and of the record before NEXT_OFFSET:
`8, 12`. -1: there is none, or it is not known."""
NEAREST: Final = "Liftlog-Nearest"
"""In an answer without records: the HTTP address of the replica to ask instead, with `replica=any`."""
LOST: Final = "Liftlog-Lost"
"""What the disk of the replica that answers has lost of the offsets that were looked at: `100-120, 130-131`, ends
exclusive. Absent: nothing. If there are more than LOST_RANGES_MAX, the last one goes up to the end of all."""
LOST_RANGES_MAX: Final = 100
BROKERS: Final = "Liftlog-Brokers"
"""In every answer, where there are several brokers: their HTTP addresses, with commas between."""

ASKED_BY: Final = "Liftlog-Asked-By"
"""In a request that a broker makes for a client: the id of that broker. The broker that gets it asks nobody else."""

POSITION: Final = "Liftlog-Position"
"""In such a request: how far the catalog is applied at the broker that asks. One that is not that far refuses it."""
PROOF: Final = "Liftlog-Proof"
"""In a request of a broker of a cluster: its id, the time, and that it knows the cluster's secret."""
BEHALF: Final = "Liftlog-On-Behalf-Of"
"""In such a request: the principal for whom it is made. Absent: for the broker itself."""

DEFAULT_PORT: Final = 9293


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
