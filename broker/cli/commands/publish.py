"""`liftlog publish`: messages to a NATS subject, their acks counted."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import click

from broker.api.stream import LIMITS
from broker.cli.arguments import Argument, Option
from broker.cli.exits import FAILED, INTERRUPTED
from broker.cli.options import Json, Nats, byte_count, is_json, nats_of
from broker.cli.output import bytes_text, counted, json_out, note

if TYPE_CHECKING:
    from broker.client.nats_publish import PublishReport

SIZE_BYTES: Final = 100
WINDOW: Final = 4_096
TIMEOUT_S_MAX: Final = 86_400

Progress = Callable[[int, int], None]


def publish(
    ctx: click.Context,
    subject: Annotated[str, Argument(metavar="SUBJECT", help="Where to publish.")],
    message: Annotated[str | None, Argument(metavar="MESSAGE", help="One message.")] = None,
    file: Annotated[
        str | None,
        Option("--file", "-f", metavar="FILE", help="One message a line; - reads stdin."),
    ] = None,
    count: Annotated[
        int | None, Option("--count", "-n", metavar="N", min=1, help="Number of messages to generate.")
    ] = None,
    size: Annotated[
        Any,
        Option(
            "--size",
            metavar="SIZE",
            parser=byte_count(LIMITS["record_bytes_max"]),
            help="Size of a generated message, which begins with its number [100].",
        ),
    ] = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="K", help="Record key of all messages.")] = None,
    header: Annotated[list[str] | None, Option("--header", "-H", metavar="H:V", help="A header; repeatable.")] = None,
    acks: Annotated[bool, Option("--acks/--no-acks", help="Wait until each message is durable.")] = True,
    window: Annotated[
        int, Option("--window", metavar="N", min=1, help="Number of messages that may await their ack at once.")
    ] = WINDOW,
    timeout_s: Annotated[
        float, Option("--timeout-s", min=0.1, max=TIMEOUT_S_MAX, help="Seconds to wait for each ack.")
    ] = 10.0,
    creds: Annotated[str | None, Option("--creds", metavar="FILE", help="NATS credentials file.")] = None,
    nats: Nats = None,
    json: Json = False,
) -> None:
    """Publish messages to a NATS subject."""
    from broker.client.nats_publish import PublishInterrupted
    from broker.client.nats_publish import publish as publish_all

    if sum(given is not None for given in (message, file, count)) != 1:
        raise click.BadParameter("give one of MESSAGE, --file and --count")
    for text, hint in ((subject, "SUBJECT"), (key, "--key"), *((text, "--header") for text in header or [])):
        _check_utf8(text or "", hint)
    if creds is not None and not os.access(creds, os.R_OK):
        raise click.BadParameter(f"{creds!r} cannot be read", param_hint="--creds")
    if size is not None and count is None:
        raise click.BadParameter("needs --count", param_hint="--size")
    if count is not None:
        payloads = generated(count, SIZE_BYTES if size is None else size)
    elif file is not None:
        payloads = lines(_opened(file))
    else:
        payloads = iter([os.fsencode(str(message))])  # as they were typed, also what is no UTF-8
    as_json = is_json(ctx, json)
    try:
        with _progress(count) as on_progress:
            report = publish_all(
                nats_of(ctx, nats),
                subject,
                payloads,
                headers=headers_of(key, header or []) or None,
                window=window,
                acks=acks,
                ack_timeout_s=timeout_s,
                payloads_may_block=file is not None,
                on_progress=on_progress,
                on_nobody=lambda seconds: note(f"nobody takes {subject} now: trying for {seconds:g} s"),
                **({} if creds is None else {"user_credentials": creds}),
            )
    except PublishInterrupted as interrupted:
        _show(interrupted.report, subject, acks=acks, as_json=as_json, is_interrupted=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    _show(report, subject, acks=acks, as_json=as_json)
    if report.failed:
        raise click.exceptions.Exit(FAILED)


def generated(count: int, size: int) -> Iterator[bytes]:
    """Payloads of `size` bytes that begin with their number, from 0.

    Raises:
        BadParameter: the numbers are longer than that.
    """
    if size < len(str(count - 1)):
        raise click.BadParameter(f"{size} bytes cannot hold the number {count - 1}", param_hint="--size")
    filler = b" " + b"x" * size
    return ((str(number).encode() + filler)[:size] for number in range(count))


def _check_utf8(text: str, hint: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(
            f"{text!r}: must be UTF-8; only a message may be other bytes", param_hint=hint
        ) from None


def _opened(path: str) -> BinaryIO:
    """The file, or stdin for `-`, as an object of our own that nobody closes: after Ctrl-C a thread still reads it.

    Closing waits for that thread, and an interpreter that ends while `sys.stdin` is read aborts.

    Raises:
        BadParameter: it cannot be opened.
    """
    try:
        return open(0 if path == "-" else path, "rb", closefd=path != "-")
    except OSError as error:
        raise click.BadParameter(f"{path!r}: {error.strerror}", param_hint="--file") from error


def lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file without their ends."""
    for line in file:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def headers_of(key: str | None, given: list[str]) -> dict[str, str]:
    """`NAME:VALUE` texts, and the key, as headers.

    Raises:
        BadParameter: a text without a colon, or a name twice.
    """
    headers = {} if key is None else {"Liftlog-Key": key}
    for text in given:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not name:
            raise click.BadParameter(f"{text!r}: expected NAME:VALUE", param_hint="--header")
        if name in headers:
            raise click.BadParameter(f"{name} is given twice", param_hint="--header")
        headers[name] = value
    return headers


@contextlib.contextmanager
def _progress(count: int | None) -> Iterator[Progress | None]:
    """A bar on the terminal; None where nobody looks, or it would be over at once."""
    if not sys.stderr.isatty() or count == 1:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from broker.cli.output import console

    columns = (TextColumn("sent"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("sent", total=count)
        yield lambda sent, acked: bar.update(task, completed=sent)


def _show(report: PublishReport, subject: str, *, acks: bool, as_json: bool, is_interrupted: bool = False) -> None:
    rate = report.sent / report.seconds if report.seconds > 0 else 0.0
    if as_json:
        json_out(
            {
                "subject": subject,
                "interrupted": is_interrupted,
                "sent": report.sent,
                "bytes": report.bytes,
                "acked": report.acked,
                "duplicates": report.duplicates,
                "failed": report.failed,
                "unanswered": report.unanswered,
                "errors": dict(report.errors),
                "examples": dict(report.examples),
                "offsets": [
                    {"stream": stream, "partition": partition, "first_offset": first, "last_offset": last}
                    for (stream, partition), (first, last) in sorted(report.offsets.items())
                ],
                "seconds": round(report.seconds, 6),
                "messages_per_s": round(rate, 1),
            }
        )
        return
    note(
        f"{'interrupted: ' * is_interrupted}sent {counted(report.sent, 'message')} ({bytes_text(report.bytes)})"
        f" to {subject} in {report.seconds:.2f} s, {rate:,.0f}/s" + ("" if acks else "; no acks were asked for")
    )
    if acks:
        note(f"acknowledged {report.acked}" + (f", {report.duplicates} of them again" if report.duplicates else ""))
    for (stream, partition), (first, last) in sorted(report.offsets.items()):
        note(f"stream {stream}, partition {partition}: offsets {first} to {last}")
    if report.unanswered:
        note(f"not answered yet {report.unanswered}: it is not known whether they are stored")
    for reason, many in sorted(report.errors.items()):
        unknown = "; it is not known whether they are stored" if reason == "no_ack" else ""
        note(f"failed {many} ({reason}{unknown}): {report.examples[reason]}")
