"""Every key of a broker's configuration, once: default, limit, unit, meaning.

The dataclasses below *are* the table; `SETTINGS` is the same table flattened to dotted keys. The files
in `conf/`, the names in the environment and the errors are derived from it or tested against it.
Reading it from files and the environment is config.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, TypeVar, cast

from broker.api.http import DEFAULT_PORT
from broker.api.stream import StreamSettings, check_name
from broker.api.validation import OrNone, Rule, Shape, Text, declared, object_of

T = TypeVar("T")

PREFIX: Final = "LIFTLOG_"
PORT_LIMIT: Final = (0, 65_535)
# A default subject or queue group for every stream would be a trap, so `defaults` has neither.
NOT_DEFAULTABLE: Final = frozenset({"subject", "group"})

DEFAULTS_DOC: Final = "Settings of new streams that do not say otherwise. A change does not touch streams that exist."


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Text that must not be shown. Only who connects reads its `value`."""

    value: str

    def __repr__(self) -> str:
        return "***"


def _key(default: T, doc: str, **rule: Any) -> T:
    return declared(default, doc=doc, **rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The HTTP API: clients, the command line, Spark, health and metrics."""

    host: str = _key("127.0.0.1", "Address to listen on. Anything but loopback is reachable by others.")
    port: int = _key(DEFAULT_PORT, "Port of the HTTP API; 0 takes any free one.", limit=PORT_LIMIT)
    advertised: str | None = _key(
        None,
        "host:port that clients are told to use; not set: host and port as above.",
        pattern=r"([^\s:/@\[\],]+|\[[0-9A-Fa-f:.]+\]):0*"
        r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])",
        says="must be host:port, an IPv6 address in brackets, and nothing else",
    )
    body_bytes_max: int = _key(
        64 << 20, "Largest request body that is accepted.", limit=(1 << 10, 1 << 30), unit="bytes"
    )
    connections_max: int = _key(
        4_096,
        "Greatest number of open connections; another is refused. Less if the system allows fewer files.",
        limit=(8, 1 << 20),
    )
    header_timeout_ms: int = _key(
        30_000,
        "Time for the headers of a request, from its first byte on; on a new connection from the accept on.",
        limit=(100, 3_600_000),
        unit="ms",
    )
    body_timeout_ms: int = _key(30_000, "Longest pause within a request body.", limit=(100, 3_600_000), unit="ms")
    idle_timeout_ms: int = _key(
        3_600_000,
        "A connection without a request is closed after this time. A long poll is a request.",
        limit=(60_000, 86_400_000),  # clients keep theirs for 50 s
        unit="ms",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """Broker to broker and Liftbridge clients, in a later release. Only the address is reserved."""

    host: str = _key("127.0.0.1", "Address to listen on. Reserved: this release does not open it.")
    port: int = _key(9292, "Port for broker to broker and Liftbridge clients. Reserved.", limit=PORT_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """The metadata group of several brokers, in a later release. Only the port is reserved."""

    port: int = _key(9294, "Port of the metadata group. Reserved: this release does not open it.", limit=PORT_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """Where records come from. Log in by one of: user and password, token, creds, nkey_seed."""

    urls: tuple[Annotated[str, Rule(limit=(1, 4_096))], ...] = _key(
        ("nats://127.0.0.1:4222",), "Servers of one NATS cluster, tried in turn.", limit=(1, 1_000)
    )
    user: str | None = _key(None, "User name.")
    password: Secret | None = _key(None, "Password of `user`. Rather set it in the environment.", read=Secret)  # noqa: RUF009
    token: Secret | None = _key(None, "Token, where the server uses one.", read=Secret)  # noqa: RUF009
    creds: str | None = _key(None, "Path of a .creds file.")
    nkey_seed: Secret | None = _key(None, "Seed of an nkey.", read=Secret)  # noqa: RUF009
    tls_ca: str | None = _key(None, "Path of the CA that signed the server's certificate (PEM); turns TLS on.")
    tls_cert: str | None = _key(None, "Path of our certificate (PEM), where the server asks for one.")
    tls_key: str | None = _key(None, "Path of the key of `tls_cert` (PEM).")
    tls_first: bool = _key(False, "Begin TLS before the server greets: its `handshake_first`. Turns TLS on.")
    connect_timeout_ms: int = _key(2_000, "Patience with one server.", limit=(10, 600_000), unit="ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeConfig:
    """From the bytes of NATS to record batches."""

    enabled: bool = _key(True, "Capture NATS subjects. Off: records come by HTTP only.")
    implementation: str = _key(
        "auto", "Which parser: `auto` takes the compiled one where it was built.", limit=("auto", "compiled", "pure")
    )
    pending_bytes_max: int = _key(
        64 << 20,
        "Bytes parsed and not yet on disk at which reading from NATS pauses.",
        limit=(1 << 20, 1 << 34),
        unit="bytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FsyncConfig:
    """How appends reach the disk."""

    threads: int = _key(4, "Threads that wait for the disk.", limit=(1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Retention and checkpoints, in the background."""

    interval_ms: int = _key(30_000, "Time between two checks of retention.", limit=(10, 86_400_000), unit="ms")
    checkpoint_interval_ms: int = _key(
        5_000,
        "Time between two checkpoints of high watermarks and recovery points; 12 times that after under 64 KiB.",
        limit=(10, 3_600_000),
        unit="ms",
    )
    offsets_retention_ms: int = _key(
        7 * 24 * 3_600_000,
        "Offsets of a consumer that leaves records unread and commits nothing for this time are forgotten.",
        limit=(1_000, 1 << 50),
        unit="ms",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """Key compaction of streams with cleanup = compact or both, in the background."""

    map_bytes: int = _key(
        128 << 20,
        "Memory for the keys of one pass, 32 bytes each; more keys take more passes.",
        limit=(1 << 10, 1 << 40),
        unit="bytes",
    )
    bytes_per_s: int = _key(
        64 << 20, "Greatest rate at which compaction reads and writes.", limit=(1 << 10, 1 << 40), unit="bytes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubConfig:
    """Reading everything again and checking it, in the background: rot is found before a reader meets it."""

    interval_ms: int = _key(
        7 * 24 * 3_600_000,
        "Time from the end of one pass to the start of the next; 0: never.",
        limit=(0, 1 << 50),
        unit="ms",
    )
    bytes_per_s: int = _key(16 << 20, "Greatest rate at which it reads.", limit=(1 << 10, 1 << 40), unit="bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersConfig:
    """Idempotent producers: what each partition remembers of them."""

    id_expiry_ms: int = _key(
        7 * 24 * 3_600_000,
        "A partition forgets a producer that appends nothing for this time. It then cannot recognise repeats.",
        limit=(1_000, 1 << 50),
        unit="ms",
    )
    ids_max: int = _key(1 << 16, "Producers that one partition remembers; another is refused.", limit=(1, 1 << 24))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksConfig:
    """Exactly-once sinks: what is staged and not committed yet."""

    stage_lease_ms: int = _key(
        24 * 3_600_000,
        "A stage that no commit has named is dropped after this time.",
        limit=(1_000, 1 << 50),
        unit="ms",
    )
    stage_bytes_max: int = _key(
        16 << 30,
        "Greatest size of all stages in one partition; more are refused.",
        limit=(1 << 20, 1 << 50),
        unit="bytes",
    )
    group_bytes_max: int = _key(
        1 << 30,
        "Greatest size that one commit adds to one partition. It is one commit group; the partition takes nothing else"
        " meanwhile.",
        limit=(1 << 10, 1 << 40),
        unit="bytes",
    )
    one_shot_grace_ms: int = _key(
        3_600_000,
        "A one-shot sink is forgotten this long after its commit; until then a repeated commit is answered.",
        limit=(1_000, 1 << 50),
        unit="ms",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The log that the broker writes to stderr."""

    level: str = _key("info", "Least severe level that is written.", limit=("debug", "info", "warning", "error"))
    format: str = _key("auto", "`auto`: console on a terminal, else JSON.", limit=("auto", "json", "console"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """How much one broker takes on."""

    streams_max: int = _key(10_000, "Streams in the catalog; creating one more is refused.", limit=(1, 1_000_000))
    partitions_max: int = _key(20_000, "Partitions of all streams together.", limit=(1, 1_000_000))
    open_files_max: int = _key(
        8_192,
        "Logs that keep their file open between appends. Less if the system allows fewer files.",
        limit=(16, 1 << 20),
    )
    disk_reserve_bytes: int = _key(
        64 << 20,
        "Kept free for catalog, checkpoints, consumer offsets: below it records are refused. At most 1/16 of the disk.",
        limit=(0, 1 << 50),
        unit="bytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that one broker is told. `defaults` are the settings of streams that do not say otherwise."""

    broker_id: str = _key(
        "broker-0",
        "Name of this broker; its data folder remembers it.",
        read=lambda name: check_name(name, what="broker"),
    )
    data_dir: str = _key("liftlog-data/broker-0", "Folder of the logs, relative to where the broker is started.")
    http: HttpConfig = field(default_factory=HttpConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    nats: NatsConfig = field(default_factory=NatsConfig)
    intake: IntakeConfig = field(default_factory=IntakeConfig)
    fsync: FsyncConfig = field(default_factory=FsyncConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    compaction: CompactionConfig = field(default_factory=CompactionConfig)
    scrub: ScrubConfig = field(default_factory=ScrubConfig)
    producers: ProducersConfig = field(default_factory=ProducersConfig)
    sinks: SinksConfig = field(default_factory=SinksConfig)
    log: LogConfig = field(default_factory=LogConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    defaults: StreamSettings = field(default_factory=StreamSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table.

    Attributes:
        key: Dotted, as in the file: `http.port`.
        kind: int, str, bool, list or secret.
        default: Its value when nobody sets it; None: not set.
        shape: What it may be.
    """

    key: str
    kind: str
    default: Any
    shape: Shape

    @property
    def limit(self) -> tuple[int, int] | tuple[str, ...] | None:
        """(least, greatest), both allowed; or the words allowed; None: no limit."""
        is_limited = self.kind == "int" or (isinstance(self.shape, Text) and self.shape.words)
        return self.shape.rule.limit if is_limited else None

    @property
    def unit(self) -> str | None:
        """bytes, ms, records; None: a count or text."""
        return self.shape.rule.unit

    @property
    def doc(self) -> str:
        """One line; empty for `defaults`, which `StreamSettings` explains."""
        return self.shape.rule.doc

    @property
    def nullable(self) -> bool:
        """It may be unset."""
        return isinstance(self.shape, OrNone)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.key.replace(".", "_").upper()


def _table(cls: type[Any], prefix: str = "") -> Iterator[Setting]:
    shapes = object_of(cls).shapes
    for f in fields(cls):
        if f.name in SECTIONS and not prefix:
            yield from _table(SECTIONS[f.name], f.name + ".")
        elif prefix != "defaults." or f.name not in NOT_DEFAULTABLE:
            shape = shapes[f.name]
            kind = "secret" if shape.rule.read is Secret else shape.kind
            yield Setting(key=prefix + f.name, kind=kind, default=f.default, shape=shape)


SECTIONS: Final[dict[str, type[Any]]] = {
    f.name: cast("type[Any]", f.default_factory) for f in fields(Config) if isinstance(f.default_factory, type)
}
"""The tables of the file, each with its dataclass."""

SETTINGS: Final = tuple(_table(Config))
"""The table, in the order of the file."""

BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
assert len(BY_VARIABLE) == len(SETTINGS), "two keys share one variable"


def annotated() -> str:
    """The table as a TOML file in which every key has its default: what conf/liftlog.toml holds."""
    lines = [
        "# liftlog broker: every key with its default. This file changes nothing until you change it.",
        "#",
        "# A key may also be set in the environment: http.port is LIFTLOG_HTTP_PORT. Unknown keys are errors.",
        '# "" and "none" mean: not set.',
        "",
    ]
    section = ""
    for setting in SETTINGS:
        table, _, name = setting.key.rpartition(".")
        if table != section:
            section = table
            lines += ["", f"# {DEFAULTS_DOC if table == 'defaults' else SECTIONS[table].__doc__}", f"[{table}]"]
        if setting.doc:
            lines.append(f"# {setting.doc}")
        limit = _limit_text(setting)
        lines.append(f"{name} = {_toml(setting)}" + (f"  # {limit}" if limit else ""))
    return "\n".join(lines) + "\n"


def _limit_text(setting: Setting) -> str:
    if not setting.limit:
        return ""
    if setting.unit == "bytes":
        return " to ".join(_bytes_text(int(bound)) for bound in setting.limit)
    text = (" to " if isinstance(setting.limit[0], int) else ", ").join(map(str, setting.limit))
    return f"{text} {setting.unit}" if setting.unit else text


def _bytes_text(count: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power and count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return f"{count} B"


def _toml(setting: Setting) -> str:
    value = setting.default
    if value is None:
        return '"none"' if setting.kind == "int" else '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value >= 100_000 else str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"'
