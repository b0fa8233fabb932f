"""The settings of the streams that a broker makes for itself (`own_streams.py`)."""

from __future__ import annotations

from typing import Any, Final

from broker.config.settings import ActivityConfig, AuditConfig

COMMITS_SETTINGS: Final[dict[str, Any]] = {
    "subject": None,
    "retention_ms": None,
    "retention_bytes": None,
    "retention_records": None,
    "segment_bytes": 16 << 20,
    "fsync": "batch",
}
OFFSETS_SETTINGS: Final[dict[str, Any]] = {
    "subject": None,
    "cleanup": "compact",
    "retention_ms": None,
    "segment_bytes": 16 << 20,
}

AUDIT_RETENTION: Final = ("retention_ms", "retention_bytes", "segment_bytes", "segment_age_ms")
"""Settings that follow the configuration, of the stream `__audit` that is there already, too."""
AUDIT_SCHEMA: Final = (
    "id STRING, at TIMESTAMP, kind STRING, principal STRING, how STRING, token STRING, address STRING, broker STRING,"
    " operation STRING, resource MAP<STRING, STRING>, asked MAP<STRING, STRING>, result STRING, reason STRING,"
    " status INT, count BIGINT"
)
"""Of the values, for readers that ask for columns."""
ACTIVITY_SCHEMA: Final = (
    "id BIGINT, op STRING, name STRING, partitions ARRAY<INT>, read_only BOOLEAN, `group` STRING, consumer STRING,"
    " streams ARRAY<STRING>, expired BOOLEAN"
)


def activity_settings(config: ActivityConfig) -> dict[str, Any]:
    """As `audit_settings`."""
    return {**_kept_for_a_time(config), "payload_schema": ACTIVITY_SCHEMA}


def audit_settings(config: AuditConfig) -> dict[str, Any]:
    """The settings of the stream: its records go by time and by bytes, so that no disk is filled by them."""
    return {**_kept_for_a_time(config), "payload_schema": AUDIT_SCHEMA}


def _kept_for_a_time(config: AuditConfig | ActivityConfig) -> dict[str, Any]:
    return {
        "subject": None,
        "cleanup": "delete",
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "retention_records": None,
        "segment_bytes": min(16 << 20, max(1 << 16, config.retention_bytes // 8)),
        "segment_age_ms": min(24 * 3_600_000, max(1_000, config.retention_ms // 8)),
        "fsync": "batch",
    }
