"""Option values: found by name, read, refused. For the source and the sink alike.

P1  An option is honoured or refused, never ignored: one that nobody knows, and one that belongs to another kind of
    read or write, is an error that names it. Only what Spark itself passes is let by.
P2  An error names the option, what was given, what is allowed, and the nearest name; an option of Spark's Kafka source
    or of the NATS connector, what takes its place (docs/guides/from-kafka.md).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

from broker.api import environment
from broker.api.errors import (
    InvalidName,
    InvalidRequest,
    InvalidSetting,
    InvalidSubject,
    NotSupported,
    UnknownSetting,
)
from broker.api.stream import check_name
from broker.client.http.address import parse_addresses
from broker.client.http.profiles import brokers_for
from broker.client.http.tls import TlsFiles
from spark_liftlog.place import Place

Kind: TypeAlias = Literal["batch", "stream"]
OFFSET_MAX: Final = (1 << 63) - 1
TIMEOUT_MS_MAX: Final = 86_400_000

# `path` is the argument of load() and save(); the others are how Spark tells a sink about the query.
_FROM_SPARK: Final = frozenset(("path", "checkpointlocation", "queryname"))
_IN_PLACE: Final[Mapping[str, str]] = {
    "subscribe": "stream (one name) or streams (names separated by commas)",
    "subscribepattern": "streamPattern",
    "assign": "partitions, with stream or streams",
    "topic": "stream",
    "includeheaders": "nothing: headers are always there, and .schema(…) leaves them out",
    "groupidprefix": "consumer",
    "kafka.bootstrap.servers": "brokers (HTTP addresses)",
    "kafka.group.id": "consumer",
    "kafka.partitioner.class": "partitioner",
    "nats.host": "brokers (HTTP addresses of liftlog, not of NATS)",
    "nats.port": "brokers (HTTP addresses of liftlog, not of NATS)",
    "nats.credential.file": "nothing: the broker connects to NATS, and has the credentials in its configuration",
    "nats.pull.subscription.stream.name": "stream",
    "nats.pull.subscription.durable.name": "consumer",
    "nats.pull.batch.size": "maxOffsetsPerTrigger or maxBytesPerTrigger",
    "nats.pull.consumer.max.batch": "maxOffsetsPerTrigger or maxBytesPerTrigger",
    "nats.pull.wait.time": "minOffsetsPerTrigger with maxTriggerDelay, to wait for more records",
    "nats.pull.consumer.ack.wait": (acks := "nothing: a log is read by offset, and nothing is acknowledged"),
    "nats.pull.consumer.max.ack.pending": acks,
    "nats.storage.payload-compression": "nothing: compression is a setting of the stream, readers need not know",
    "nats.stream.name": "stream",
}
_LATER: Final[Mapping[str, str]] = {
    "via": "rows are written to the log; to publish to NATS use its client in foreachBatch",
}
_UNSECURED: Final = (
    "a token is named by its file, tokenFile, and TLS is https:// in brokers, with tlsCa, tlsCert and tlsKey"
)
_FOREIGN: Final[Mapping[str, str]] = {
    "kafka.security.": _UNSECURED,
    "kafka.sasl.": _UNSECURED,
    "kafka.ssl.": _UNSECURED,
    "kafkaconsumer.": "in its place: nothing: brokers that are away are waited for, two minutes",
    "fetchoffset.": "in its place: nothing: brokers that are away are waited for, two minutes",
    "kafka.": "it belongs to another connector, and nothing here takes its place",
    "nats.": "it belongs to another connector, and nothing here takes its place",
}
"""By how a name begins; the first that fits counts."""


def known(given: Mapping[str, str], names: Iterable[str], *, what: str) -> dict[str, str]:
    """The given options under their proper names (P1).

    Raises:
        UnknownSetting: one that is none of them.
        NotSupported: one that the broker has to know first.
    """
    names = tuple(names)
    proper = {name.lower(): name for name in names}
    found = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in proper:
            found[proper[lower]] = value
        elif lower in ("token", "tls") or lower.startswith("tls."):
            raise NotSupported(f"option {key!r}: {_UNSECURED}")
        elif lower in _LATER:
            raise NotSupported(f"option {key!r}: {_LATER[lower]}")
        elif lower not in _FROM_SPARK:
            nearest = proper.get(next(iter(difflib.get_close_matches(lower, proper, n=1)), ""))
            foreign = next((hint for start, hint in _FOREIGN.items() if lower.startswith(start)), None)
            if lower in _IN_PLACE:
                hint = f"; in its place: {_IN_PLACE[lower]}"
            elif foreign:
                hint = f"; {foreign}"
            elif nearest:
                hint = f"; did you mean {nearest!r}?"
            else:
                hint = f"; it has {', '.join(names)}"
            raise UnknownSetting(f"{what} has no option {key!r}{hint}", key=key, nearest=nearest)
    return found


def of_kind(options: Iterable[str], kinds: Mapping[str, Set[str]], kind: Kind, words: tuple[str, str]) -> None:
    """Refuse options of the other kind of read or write. `words`: spark's names for batch and stream."""
    this, other = words if kind == "batch" else words[::-1]
    for name in options:
        if kind not in kinds[name]:
            raise UnknownSetting(
                f"option {name!r} means something for {other} only, and this is {this}", key=name, nearest=None
            )


def stream_in(options: Mapping[str, str], given: Mapping[str, str], *, internal: bool) -> str | None:
    """The one stream that the option or the path names; None: neither does. Raises InvalidSetting, InvalidName."""
    path = next((value for key, value in given.items() if key.lower() == "path"), None)
    name = options.get("stream", path)
    if name is None:
        return None
    if path is not None and path != name:
        raise invalid("stream", name, f"load(), save() or start() names another stream, {path!r}")
    more = '; for several streams, names separated by commas, there is the option "streams"' if "," in name else ""
    with naming("stream", more if internal else ""):
        return check_name(name, internal=internal)


@contextmanager
def naming(option: str, hint: str = "") -> Iterator[None]:
    """Have an error about a name or a subject say in which option it stands (P2)."""
    try:
        yield
    except (InvalidName, InvalidSubject) as error:
        raise type(error)(f"option {option}: {error}{hint}", **error.fields) from None


TLS_OPTIONS: Final = ("tlsCa", "tlsCert", "tlsKey")


def brokers_in(options: Mapping[str, str]) -> Place:
    """The addresses as the client understands them. An error repeats no more of the value than the client's does."""
    profile = options.get("profile")
    if profile == "":
        raise invalid("profile", profile, "must be the name of a profile, or PATH#NAME")
    named = brokers_for(options.get("brokers"), profile)
    try:
        found = parse_addresses(named)
    except InvalidRequest as error:
        raise InvalidSetting(f"{_source(options)}: {error}", key="brokers", value=None) from error
    return Place(",".join(map(str, found)), _tls_in(options, is_tls=found[0].is_tls))


def _tls_in(options: Mapping[str, str], *, is_tls: bool) -> TlsFiles:
    """The paths. Nothing is read (`place.P1`)."""
    for name in TLS_OPTIONS:
        if name not in options:
            continue
        if not is_tls:
            raise invalid(name, options[name], "is for brokers at https://, and brokers names none")
        if not options[name]:
            raise invalid(name, options[name], "must be the path of a file")
    for name, other in (("tlsCert", "tlsKey"), ("tlsKey", "tlsCert")):
        if name in options and other not in options:
            raise invalid(name, options[name], f"needs {other}")
    token = options.get("tokenFile")
    if token == "":
        raise invalid("tokenFile", token, "must be the path of a file")
    return TlsFiles(
        ca=options.get("tlsCa"),
        cert=options.get("tlsCert"),
        key=options.get("tlsKey"),
        token=token,
        profile=options.get("profile"),
    )


def _source(options: Mapping[str, str]) -> str:
    return "option brokers" if "brokers" in options else f"environment variable {environment.BROKERS_VARIABLE}"


def whole(options: Mapping[str, str], name: str, least: int, greatest: int, *, unit: str = "") -> int | None:
    """A whole number; None: not given. `unit` is for the error."""
    value = options.get(name)
    if value is None:
        return None
    text = value.strip()
    # isdecimal alone lets other scripts' digits through; 20 digits hold every number within a limit.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= greatest):
        what = f"a whole number of {unit}," if unit else "a whole number"
        raise invalid(name, value, f"must be {what} from {least} to {greatest}", limit=[least, greatest])
    return int(text)


def truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`true` or `false`."""
    return one_of(options, name, ("true", "false") if default else ("false", "true")) == "true"


def one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of some words, in any case; the first is the default."""
    value = options.get(name)
    if value is None:
        return allowed[0]
    for word in allowed:
        if value.strip().lower() == word.lower():
            return word
    rule = " or ".join(sorted(allowed, key=lambda word: word != "true") if "true" in allowed else allowed)
    raise invalid(name, value, f"must be {rule}", limit=list(allowed))


def invalid(name: str, value: str, rule: str, **fields: Any) -> InvalidSetting:
    """The error for a value."""
    shown = value if len(value) <= 200 else value[:200] + "…"
    return InvalidSetting(f"option {name}={shown!r}: {rule}", key=name, value=shown, **fields)


def byte_count(options: Mapping[str, str], name: str) -> int | None:
    """Bytes, with k, m, g or t for powers of 1024; None: not given."""
    value = options.get(name)
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,19})([kmgt]?)b?", value.strip().lower())
    count = 0 if found is None else int(found[1]) << (10 * " kmgt".index(found[2] or " "))
    if not 1 <= count <= OFFSET_MAX:
        raise invalid(name, value, "must be bytes, 1 or more, such as 1048576, 512k, 10m or 1g")
    return count


def duration_s(options: Mapping[str, str], name: str, default_s: float) -> float:
    """A time span in seconds. As Spark's Kafka source reads it: `min` are minutes, too, and a number alone is in ms."""
    value = options.get(name)
    if value is None:
        return default_s
    found = re.fullmatch(r"([0-9]{1,12}) ?(ms|s|min|m|h|d|)", value.strip().lower())
    if found is None:
        raise invalid(name, value, "must be a time span such as 500ms, 30s, 15m, 1h or 1d")
    return int(found[1]) * {"": 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2]]
