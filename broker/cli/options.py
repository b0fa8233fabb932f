"""Options that several commands share, and values with units.

`--brokers`, `--nats` and `--json` may stand before the command or after it; what stands nearer wins:

    after the command  >  before it  >  LIFTLOG_BROKERS / LIFTLOG_NATS_URL  >  the defaults

A profile stands beside the variables: `--profile` above them, LIFTLOG_PROFILE below them (`client.http.profiles`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from broker.api import environment
from broker.api.misfit import SHOWN_MAX
from broker.cli.arguments import Option

if TYPE_CHECKING:
    from broker.client.client import Client

DEFAULT_BROKERS: Final = "127.0.0.1:9293"
DEFAULT_NATS: Final = "nats://127.0.0.1:4222"
DEFAULT_DATA: Final = "liftlog-data"


def not_empty(text: str | None) -> str | None:
    """A callback of options: a path that is empty, as an unset variable makes it, would mean the present folder."""
    if text == "":
        raise click.BadParameter("must not be empty")
    return text


Brokers = Annotated[
    str | None,
    Option("--brokers", metavar="HOST:PORT,…", help=f"HTTP addresses of brokers [LIFTLOG_BROKERS, {DEFAULT_BROKERS}]"),
]
Nats = Annotated[str | None, Option("--nats", metavar="URL", help=f"A NATS server [LIFTLOG_NATS_URL, {DEFAULT_NATS}]")]
TlsCa = Annotated[
    str | None, Option("--tls-ca", metavar="FILE", help="CAs of brokers at https:// [LIFTLOG_TLS_CA, the system's]")
]
TlsCert = Annotated[
    str | None, Option("--tls-cert", metavar="FILE", help="Certificate to show to them [LIFTLOG_TLS_CERT]")
]
TlsKey = Annotated[str | None, Option("--tls-key", metavar="FILE", help="Its key [LIFTLOG_TLS_KEY]")]
TokenFile = Annotated[
    str | None, Option("--token-file", metavar="FILE", help="Token by which brokers know you [LIFTLOG_TOKEN_FILE]")
]
Profile = Annotated[
    str | None,
    Option("--profile", metavar="NAME", help="Brokers, files of TLS and a token of profiles.toml [LIFTLOG_PROFILE]"),
]
RetrySeconds = Annotated[
    float | None,
    Option(
        "--retry-s",
        metavar="S",
        min=0,
        max=86_400,
        envvar="LIFTLOG_RETRY_S",
        help="How long to go on while no broker answers, 0: not at all [LIFTLOG_RETRY_S, 30]",
    ),
]
Json = Annotated[bool, Option("--json", help="JSON on stdout instead of a table.")]
Partitions = Annotated[list[int] | None, Option("--partition", metavar="N", help="Only this one; repeatable [all].")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
Data = Annotated[str, Option("--data", metavar="DIR", help="Folder that `up` works in.", callback=not_empty)]


@dataclass(frozen=True, slots=True)
class Globals:
    """The options that stood before the command."""

    brokers: str | None = None
    nats: str | None = None
    json: bool = False
    retry_s: float | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None
    profile: str | None = None


def globals_of(ctx: click.Context) -> Globals:
    found = ctx.find_root().obj
    return found if isinstance(found, Globals) else Globals()


def brokers_of(ctx: click.Context, given: str | None) -> str:
    from broker.client.http.profiles import brokers_for

    said = globals_of(ctx)
    return brokers_for(given or said.brokers or None, said.profile, default=DEFAULT_BROKERS)


def nats_of(ctx: click.Context, given: str | None) -> str:
    return given or globals_of(ctx).nats or environment.nats_url(DEFAULT_NATS)


def client_of(ctx: click.Context, brokers: str | None) -> Client:
    """A client of the brokers that this command is meant for; close it. It says on stderr when it waits for them."""
    from broker.cli.output import note
    from broker.client.client import connect
    from broker.client.http.patience import DEADLINE_S

    given = globals_of(ctx)
    return connect(
        brokers_of(ctx, brokers),
        deadline_s=DEADLINE_S if given.retry_s is None else given.retry_s,
        say=note,
        tls_ca=given.tls_ca,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        token_file=given.token_file,
        profile=given.profile,
    )


def is_json(ctx: click.Context, given: bool) -> bool:
    return given or globals_of(ctx).json


def confirm(yes: bool, question: str, look: Callable[[], object] | None = None) -> None:
    """Ask, unless `yes` was given; the command ends if the answer is no.

    `look` raises if there is nothing to ask about.
    """
    if not yes:
        if look is not None:
            look()
        click.confirm(question, abort=True, err=True)


def answer(ctx: click.Context, json: bool, value: Any, text: str) -> None:
    """End a command that changed something: the value as JSON, or a line for people."""
    from broker.cli.output import json_out, note

    if is_json(ctx, json):
        json_out(value)
    else:
        note(text)


_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES: Final = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip

Limit = tuple[int, int]
"""(least, greatest), both allowed."""


def duration_ms(limit: Limit) -> Callable[[str], int]:
    """A parser of `7d`, `12h`, `30m`, `10s`, `250ms`; a bare number counts milliseconds."""
    shown = f"{duration_text(limit[0])} to {duration_text(limit[1])}"
    return _amount("a duration like 7d, 12h, 30m, 10s, 250ms", {"": 1, **_MS}, limit, shown)


def byte_count(limit: Limit) -> Callable[[str], int]:
    """A parser of `10GiB`, `512MiB`, `1MB`; a bare number counts bytes."""
    shown = " to ".join(map(size_text, limit))
    return _amount("a size like 10GiB, 512MiB, 1MB, 1000", {"": 1, **_BYTES}, limit, shown)


def number(limit: Limit) -> Callable[[str], int]:
    """A parser of whole numbers."""
    return _amount("a whole number", {"": 1}, limit, f"{limit[0]} to {limit[1]}")


def _amount(what: str, units: Mapping[str, int], limit: Limit, limit_text: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,100})\s*([a-z]*)", text.strip().lower())
        if found is None or found[2] not in units:
            raise click.BadParameter(f"{text[:SHOWN_MAX]!r}: expected {what}, from {limit_text}")
        value = int(found[1]) * units[found[2]]
        if not limit[0] <= value <= limit[1]:
            raise click.BadParameter(f"{text[:SHOWN_MAX]!r}: must be from {limit_text}")
        return value

    return parse


def size_text(count: int) -> str:
    """As `byte_count` reads it."""
    return _exact(count, _BYTES).upper().replace("IB", "iB")


def duration_text(ms: int) -> str:
    """As `duration_ms` reads it."""
    text = _exact(ms, _MS)
    return f"{text} ({ms // _MS['d']}d)" if text.endswith("ms") and ms > _MS["w"] else text


def _exact(value: int, units: Mapping[str, int]) -> str:
    """The value in the largest unit that it is a multiple of."""
    whole = [unit for unit, size in units.items() if size == 1 or (value and value % size == 0)]
    unit = max(whole, key=units.__getitem__)
    return f"{value // units[unit]}{unit}"


def or_none(amount: Callable[[Limit], Callable[[str], int]]) -> Callable[[Limit], Callable[[str], int | str]]:
    """The same, and its parsers also read `none`, as the text NONE: None stands for 'not given'."""

    def amount_or_none(limit: Limit) -> Callable[[str], int | str]:
        parse = amount(limit)
        return lambda text: NONE if text.strip().lower() == NONE else parse(text)

    return amount_or_none


NONE: Final = "none"


def position(text: str, option: str) -> str | int | datetime:
    """`earliest`, `latest`, an offset, or an ISO 8601 time (without a zone: UTC)."""
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"\d{1,19}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected earliest, latest, an offset, or a time like 2026-01-31T12:00:00", param_hint=option
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def moment(text: str | None, option: str) -> datetime | None:
    """An ISO 8601 time (without a zone: UTC), if one is given."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected a time like 2026-01-31T12:00:00", param_hint=option) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def partition_place(text: str, option: str) -> tuple[str, int]:
    """A partition as `STREAM/PARTITION` names it."""
    stream, _, number = text.rpartition("/")
    if not (stream and number.isascii() and number.isdigit()):
        raise click.BadParameter(f"{text!r}: must be STREAM/PARTITION", param_hint=option)
    return stream, int(number)
