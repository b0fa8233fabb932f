"""Every key of a broker's configuration, once: default, limit, unit, meaning.

The dataclasses below *are* the table. The same table with dotted keys is table.py; the files in `conf/`, the names in
the environment and the errors are derived from it or tested against it. Reading it from files and the environment is
configuration.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from broker.api.errors import InvalidRequest
from broker.api.http import DEFAULT_PORT
from broker.api.principals import MODES, NAMED_PATTERN
from broker.api.stream import StreamSettings, check_name
from broker.api.validation import Rule, declared
from broker.metadata.shapes import LINE_PATTERN

if TYPE_CHECKING:
    from broker.serving.http.callers import CallerLimits

T = TypeVar("T")

PORT_LIMIT: Final = (0, 65_535)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Text that must not be shown. Only who connects reads its `value`."""

    value: str

    def __repr__(self) -> str:
        return "***"


def _key(default: T, doc: str, **rule: Any) -> T:
    return declared(default, doc=doc, **rule)


JWT_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Those with public keys: with a secret, whoever checks tokens could make them."""
HOST_PORT: Final = (
    r"([^\s:/@\[\],]+|\[[0-9A-Fa-f:.]+\]):0*([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
)
HOST_ANY_PORT: Final = HOST_PORT.removesuffix(")") + "|0)"
VOTER: Final = r"[^@\s,]+@" + HOST_PORT
HOST: Final = r"[^\s:/@\[\],*\"']{1,253}"
REPLY_PREFIX: Final = r"(?!\$)(?:(?![*>\[\]\"',])[!-~]){1,60}"
REPLY_PREFIX_SAYS: Final = (
    "must be how a subject begins: 1 to 60 characters of ASCII, no wildcard, and not the server's own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The HTTP API: clients, the command line, Spark, health and metrics."""

    host: str = _key("127.0.0.1", "Address to listen on. Anything but loopback is reachable by others.")
    port: int = _key(DEFAULT_PORT, "Port of the HTTP API; 0 takes any free one.", limit=PORT_LIMIT)
    advertised: str | None = _key(
        None,
        "host:port that clients are told to use; not set: host and port as above.",
        pattern=HOST_PORT,
        says="must be host:port, an IPv6 address in brackets, and nothing else",
    )
    hosts: tuple[Annotated[str, Rule(pattern=HOST, says="must be a name without a port")], ...] = _key(
        (),
        "Names by which this broker is asked, beside addresses, localhost and the host of `advertised`. A request"
        " by another name is refused: it may be a page's in somebody's browser.",
        limit=(0, 100),
    )
    tls_cert: str | None = _key(
        None, "Path of this broker's certificate (PEM), its chain behind it: the port then speaks TLS, and TLS alone."
    )
    tls: str = _key(
        "required",
        "What `tls_cert` means, while brokers go from plain text to TLS one by one. `accept`: the port takes both, and"
        " other brokers are asked in plain text. `dial`: it takes both, and they are asked over TLS. `required`: TLS"
        " alone.",
        limit=("accept", "dial", "required"),
    )
    tls_key: str | None = _key(None, "Path of the key of `tls_cert` (PEM), which others cannot read.")
    tls_client_ca: str | None = _key(
        None,
        "Path of the CAs (PEM) that clients' certificates have to come from. Then each client needs one, health checks"
        " and other brokers too.",
    )
    tls_crl: str | None = _key(
        None,
        "Path of the lists (CRL, PEM) of what the CAs of `tls_client_ca` have revoked, one of each CA. Who shows such a"
        " certificate is refused in every mode.",
    )
    tls_ca: str | None = _key(
        None,
        "Path of the CAs (PEM) that other brokers' certificates have to come from, for questions to them; not set:"
        " those of the system.",
    )
    tls_min_version: str = _key("1.3", "Oldest version of TLS that clients may speak.", limit=("1.2", "1.3"))
    body_bytes_max: int = _key(
        64 << 20, "Largest request body that is accepted.", limit=(1 << 10, 1 << 30), unit="bytes"
    )
    connections_max: int = _key(
        4_096,
        "Greatest number of open connections; another closes the longest idle. Fewer if the system allows fewer files.",
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
class AuthConfig:
    """Who may do what over HTTP. Principals come from certificates (http.tls_client_ca) and tokens."""

    mode: str = _key(
        "off",
        "`off`: whoever reaches the port may do everything. `permissive`: likewise, and the log says what would be"
        " refused. `enforce`: each call is judged. Tokens and grants themselves are for admins alone, in each mode."
        " `liftlog auth require` has every broker of the cluster judge each call, whatever stands here.",
        limit=MODES,
    )
    admins: tuple[Annotated[str, Rule(pattern=NAMED_PATTERN, says="must be user:NAME or svc:NAME")], ...] = _key(
        (), "Principals that may do everything, whatever the grants say.", limit=(0, 100)
    )
    admin_token_file: str | None = _key(
        None,
        "Path of a file with a token, which others cannot read: who bears it is `admin`, and may do everything."
        " `liftlog auth init FILE` makes one. Read at the start.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Who did what, in the stream `__audit`: administrative acts and refusals. Say the same on all brokers."""

    enabled: bool = _key(True, "Record them. Off: this broker records nothing, and makes no such stream.")
    retention_ms: int = _key(90 * 24 * 3_600_000, "Records go when they are older.", limit=(60_000, 1 << 50), unit="ms")
    retention_bytes: int = _key(
        1 << 30, "The oldest go when all of them take more.", limit=(1 << 20, 1 << 50), unit="bytes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityConfig:
    """What happens to streams and consumer groups, in the stream `__activity`. Say the same on all brokers."""

    enabled: bool = _key(False, "Make that stream. Once it is there, it stays, whatever this says.")
    retention_ms: int = _key(7 * 24 * 3_600_000, "Events go when they are older.", limit=(60_000, 1 << 50), unit="ms")
    retention_bytes: int = _key(
        1 << 30, "The oldest go when all of them take more.", limit=(1 << 20, 1 << 50), unit="bytes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtConfig:
    """Bearer tokens that somebody else signs. Nobody can revoke one: it is good until its `exp`."""

    issuer: str | None = _key(
        None, "Who signs them, as their `iss` says. Set with the two below; without it none is believed."
    )
    audience: str | None = _key(None, "For whom they are, as their `aud` says: a name of this cluster alone.")
    keys: str | None = _key(
        None,
        "The issuer's public keys (JWKS): a path, or an https:// URL, which is fetched every five minutes. When nobody"
        " answers there, those of before are kept for 24 h.",
        pattern=r"(?!http:)(?!https:(?!//[^\s/?#@]+(/|$)))[^\x00-\x1f]+",
        says="must be a path, or https://host/path",
    )
    tls_ca: str | None = _key(None, "Path of the CAs (PEM) that this URL is believed by; not set: the system's.")
    algorithms: tuple[Annotated[str, Rule(limit=JWT_ALGORITHMS)], ...] = _key(
        ("RS256", "ES256"), "How they may be signed.", limit=(1, 20)
    )
    claim: str = _key("sub", "Which of their claims names the principal.", limit=(1, 100), is_printable=True)
    principal: str = _key("user", "What is so named: `user` makes `ana` to user:ana.", limit=("user", "svc"))
    ttl_ms_max: int = _key(
        86_400_000, "One that is good for longer from now on is refused.", limit=(1_000, 31_622_400_000), unit="ms"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionConfig:
    """The master key for streams with `encryption`. It wraps the keys of their logs, and is read at the start alone."""

    key_file: str | None = _key(
        None, "Path of a file with the master key, 32 random bytes in base64, which others cannot read."
    )
    key_command: tuple[Annotated[str, Rule(limit=(1, 4_096))], ...] = _key(
        (),
        "Instead of a file: a command that prints the key, as one that asks a KMS does. No shell reads it: each word is"
        " an item of its own. The log shows these words, so none may be a secret.",
        limit=(0, 100),
    )
    former_key_files: tuple[Annotated[str, Rule(limit=(1, 4_096))], ...] = _key(
        (),
        "Master keys of before. With them a broker opens logs that are still wrapped by these, and wraps them by the"
        " key above.",
        limit=(0, 16),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """Replicas on other brokers. A broker without cluster.voters does not open it."""

    host: str = _key("127.0.0.1", "Address to listen on. Anything but loopback can be reached by others.")
    port: int = _key(9292, "Port for replicas on other brokers; 0 takes any free one.", limit=PORT_LIMIT)
    advertised: str | None = _key(
        None,
        "host:port at which other brokers reach it; not set: host and port as above.",
        pattern=HOST_PORT,
        says="must be host:port, an IPv6 address in brackets, and nothing else",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftbridgeConfig:
    """Liftbridge's API, over gRPC, for its clients. They are judged as over HTTP, and need TLS as there."""

    listen: str | None = _key(
        None,
        "host:port to listen on; 9292 is where clients of Liftbridge look. Not set: it is not opened. TLS, its"
        " certificate and the limits are those of [http].",
        pattern=HOST_ANY_PORT,
        says="must be host:port, an IPv6 address in brackets, and nothing else",
    )
    advertised: str | None = _key(
        None,
        "host:port that clients are told to use; not set: as `listen`, or, if that is no address of one machine, the"
        " host of http.advertised. Brokers of a cluster take the same port: each tells of the others the host of their"
        " HTTP address and its own port.",
        pattern=HOST_PORT,
        says="must be host:port, an IPv6 address in brackets, and nothing else",
    )

    @property
    def place(self) -> tuple[str, int] | None:
        """Host and port of `listen`; None: it is not opened."""
        if self.listen is None:
            return None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Between brokers that keep the same partitions, over the port above. A broker alone has nobody to replicate to."""

    fetch_bytes_max: int = _key(
        2 << 20,
        "Greatest answer to a follower; a single batch may be larger. Each stream to a follower holds one in memory.",
        limit=(64 << 10, 256 << 20),
        unit="bytes",
    )
    wait_ms: int = _key(
        200,
        "A follower that has everything is answered after this time at the latest.",
        limit=(10, 250),  # followers ask again after 300
        unit="ms",
    )
    catch_up_bytes_per_s: int = _key(
        1 << 30,
        "Greatest rate at which this broker fills replicas that are not in sync, all together.",
        limit=(1 << 10, 1 << 40),
        unit="bytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """The group of brokers that keeps the catalog of a cluster. A broker without cluster.voters opens none of this."""

    host: str = _key("127.0.0.1", "Address to listen on. Anything but loopback can be reached by others.")
    port: int = _key(9294, "Port of the group.", limit=PORT_LIMIT)
    advertised: str | None = _key(
        None,
        "host:port at which other brokers reach it; not set: as cluster.voters names it, or host and port as above.",
        pattern=HOST_PORT,
        says="must be host:port, an IPv6 address in brackets, and nothing else",
    )
    secret: Secret | None = _key(  # noqa: RUF009
        None,
        "The same on every broker of a cluster, which needs one: at least 16 bytes. Rather name a file.",
        read=Secret,
    )
    secret_file: str | None = _key(
        None,
        "File with the secret, which others cannot read, instead of `secret`. `liftlog secret new` makes one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Several brokers as one. Without `id` and `voters` a broker is alone."""

    id: str | None = _key(
        None,
        "Name of the cluster, the same on every broker; their data folders remember it.",
        read=lambda name: check_name(name, what="cluster"),
    )
    voters: tuple[Annotated[str, Rule(pattern=VOTER, says="must be like broker-id@host:port")], ...] = _key(
        (),
        "The brokers that form it at the first start, each as broker-id@host:port of its Raft port, in the same order"
        " on each broker. Others join through them.",
        limit=(0, 5),
    )
    rack: str | None = _key(
        None,
        "Where this broker stands: replicas are spread over racks.",
        pattern=LINE_PATTERN,
        says="must be a line of 1 to 128 characters",
    )
    tls_cert: str | None = _key(
        None,
        "Path of this broker's certificate for other brokers (PEM), its chain behind it. The ports of [grpc]"
        " and [raft] then speak TLS alone, with certificates on both sides: on all brokers, or on none.",
    )
    tls: str = _key(
        "required",
        "As `http.tls`, for the ports of [grpc] and [raft]: `accept`, then `dial`, then `required`, each on all brokers"
        " before the next.",
        limit=("accept", "dial", "required"),
    )
    tls_key: str | None = _key(None, "Path of the key of `tls_cert` (PEM), which others cannot read.")
    tls_ca: str | None = _key(
        None,
        "Path of the CAs (PEM) that certificates of brokers have to come from, and nobody else's should. Set together"
        " with the two above.",
    )
    tls_crl: str | None = _key(
        None, "Path of the lists (CRL, PEM) of what the CAs of `tls_ca` have revoked, one of each CA."
    )
    tls_names: str = _key(
        "optional",
        "`required`: a certificate without the name of its broker (a URI `liftlog:broker/ID`, as `liftlog certs issue"
        " --broker` writes it) is refused. `optional`: it is good for every broker.",
        limit=("optional", "required"),
    )


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
    reply_prefixes: tuple[Annotated[str, Rule(pattern=REPLY_PREFIX, says=REPLY_PREFIX_SAYS)], ...] = _key(
        ("_INBOX.",),
        "Records are acked on reply subjects that begin with one of these. Publishers with inboxes of another prefix"
        " need it here.",
        limit=(1, 16),
    )
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
    """Idempotent producers: what the catalog and each partition remember of them."""

    name_expiry_ms: int = _key(
        7 * 24 * 3_600_000,
        "The name of a producer that nobody registers or uses for this time may be forgotten.",
        limit=(60_000, 1 << 50),
        unit="ms",
    )
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
    owner_silent_ms: int = _key(
        300_000,
        "What a run has staged goes when others need the room, once the run was not heard of for this time. A run that"
        " never renews, as older clients, is silent after 12 times as long.",
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
        "A one-shot sink is forgotten this long after its commit, or its end; until then a repeated commit is answered,"
        " and what comes after the end is refused.",
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

    caller_requests_max: int = _key(
        1_024,
        "Requests under way of one caller: a principal, or an address from which nobody says who he is. At most 3/4 of"
        " http.connections_max.",
        limit=(8, 1 << 20),
    )
    caller_polls_max: int = _key(
        768, "Of these, such as wait for something new. At most 9/16 of http.connections_max.", limit=(4, 1 << 20)
    )
    caller_memory_percent: int = _key(
        75,
        "Part of the memory for request bodies, and for answers of JSON lines, that one caller may hold with several"
        " requests at once. A single one may take all that is free.",
        limit=(1, 100),
    )
    address_connections_max: int = _key(
        2_048,
        "Open connections of one address; another closes the longest idle of that address. At most 3/4 of"
        " http.connections_max.",
        limit=(8, 1 << 20),
    )

    caller_names_per_minute: int = _key(
        3_000,
        "New names a minute of one caller, of streams, producers, consumers, groups, pins and sinks together. So many"
        " may come at once.",
        limit=(1, 1 << 20),
    )
    caller_audit_bytes_per_hour: int = _key(
        16 << 20,
        "Bytes of `__audit` an hour that the acts of one caller may take: beyond it they are refused. So many may come"
        " at once. Not for admins of `[auth]`, and not with auth.mode = off.",
        limit=(64 << 10, 1 << 40),
        unit="bytes",
    )
    caller_streams_max: int = _key(
        7_500,
        "Streams that one caller has made, at this broker since its start, and that are there. Not with auth.mode ="
        " off; nor are the four below.",
        limit=(1, 1_000_000),
    )
    caller_producers_max: int = _key(7_500, "Likewise names of producers.", limit=(1, 1_000_000))
    caller_consumers_max: int = _key(10_000, "Likewise consumers.", limit=(1, 1_000_000))
    caller_sinks_max: int = _key(10_000, "Likewise sinks.", limit=(1, 1_000_000))
    caller_groups_max: int = _key(1_500, "Likewise consumer groups.", limit=(1, 1_000_000))

    def of_callers(self, connections_max: int) -> CallerLimits:
        """What one caller may take of a broker that has so many connections: never all of them."""
        from broker.serving.http.callers import CallerLimits  # commands that check the file need no server

        most = max(4, connections_max * 3 // 4)
        return CallerLimits(
            requests_max=min(self.caller_requests_max, most),
            polls_max=min(self.caller_polls_max, max(3, most * 3 // 4)),
            memory_percent=self.caller_memory_percent,
            connections_max=min(self.address_connections_max, most),
            names_per_minute=self.caller_names_per_minute,
            audit_bytes_per_hour=self.caller_audit_bytes_per_hour,
            made_max={
                "streams": self.caller_streams_max,
                "producers": self.caller_producers_max,
                "consumers": self.caller_consumers_max,
                "sinks": self.caller_sinks_max,
                "groups": self.caller_groups_max,
            },
        )

    def check(self, *, streams: int, partitions: int) -> None:
        """Whether there may be so many. Raises InvalidRequest."""
        for what, count, most in (
            ("streams", streams, self.streams_max),
            ("partitions", partitions, self.partitions_max),
        ):
            if count > most:
                raise InvalidRequest(f"limits.{what}_max={most}: there would be {count} {what}", limit=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that one broker is told. `defaults` are the settings of streams that do not say otherwise."""

    broker_id: str = _key(
        "broker-0",
        "Name of this broker; its data folder remembers it.",
        read=lambda name: check_name(name, what="broker"),
    )
    data_dir: str = _key("liftlog-data/broker-0", "Folder of the logs, relative to where the broker is started.")
    insecure: bool = _key(
        False,
        "Listen beyond loopback without TLS, or without asking who a client is. Only for a network in which everybody"
        " may read, change and delete all streams.",
    )
    http: HttpConfig = field(default_factory=HttpConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    activity: ActivityConfig = field(default_factory=ActivityConfig)
    jwt: JwtConfig = field(default_factory=JwtConfig)
    encryption: EncryptionConfig = field(default_factory=EncryptionConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    liftbridge: LiftbridgeConfig = field(default_factory=LiftbridgeConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
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
