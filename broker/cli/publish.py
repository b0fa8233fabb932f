"""`liftlog publish`: messages to a NATS subject, their acks counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, BinaryIO, Final

import typer

from broker.cli.options import Json, Nats, byte_count, nats_of

DEFAULT_SIZE_BYTES: Final = 100
WINDOW: Final = 4_096


def publish(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Where to publish.", show_default=False)],
    message: Annotated[str | None, typer.Argument(metavar="[MESSAGE]", help="One message.", show_default=False)] = None,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--file", "-f", metavar="FILE", help="One message a line; - reads stdin.", show_default=False),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Generate so many messages.")
    ] = None,
    size: Annotated[
        Any,
        typer.Option(
            "--size",
            metavar="SIZE",
            parser=byte_count,
            help="Of a generated message, which begins with its number [100].",
            show_default=False,
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="K", help="Record key of all messages.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="H:V", help="A header; repeatable.")
    ] = None,
    acks: Annotated[bool, typer.Option("--acks/--no-acks", help="Wait until each message is durable.")] = True,
    window: Annotated[
        int, typer.Option("--window", metavar="N", min=1, help="Messages that may await their ack at once.")
    ] = WINDOW,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="Patience with each ack.")] = 10.0,
    nats: Nats = None,
    json: Json = False,
) -> None:
    """Publish messages to a NATS subject. Exit code 1 if any was not acknowledged."""
    from broker.api.stream import check_subject
    from broker.client.nats_publish import publish as publish_all

    if sum(given is not None for given in (message, file, count)) != 1:
        raise typer.BadParameter("give one of MESSAGE, --file and --count")
    if size is not None and count is None:
        raise typer.BadParameter("--size goes with --count", param_hint="--size")
    check_subject(subject, wildcards=False)
    headers = _headers(key, header or [])
    payloads: Iterator[bytes]
    if count is not None:
        payloads = generated(count, DEFAULT_SIZE_BYTES if size is None else size)
    elif file is not None:
        payloads = lines(file)
    else:
        payloads = iter([str(message).encode()])
    report = publish_all(
        nats_of(ctx, nats), subject, payloads, headers=headers, window=window, acks=acks, timeout_s=timeout_s
    )
    _show(report, as_json=is_json(ctx, json))


def _show(report: Any, *, as_json: bool) -> None:
    if as_json:
        json_out(asdict(report))
    else:
        note(f"{report.sent} messages, {bytes_text(report.bytes)} in {report.seconds:.2f} s")
    if report.failed or report.unacked:
        raise typer.Exit(FAILED)


def generated(count: int, size: int) -> Iterator[bytes]:
    """Payloads of `size` bytes that begin with their number, from 0.

    Raises:
        BadParameter: the numbers are longer than that.
    """
    if size < len(str(count - 1)):
        raise typer.BadParameter(f"{size} bytes cannot hold the number {count - 1}", param_hint="--size")
    filler = b" " + b"x" * size
    for number in range(count):
        yield (str(number).encode() + filler)[:size]


def lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file without their ends."""
    for line in file:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _headers(key: str | None, given: list[str]) -> list[tuple[str, str]]:
    headers = [("Liftlog-Key", key)] if key is not None else []
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{text!r}: expected NAME:VALUE", param_hint="--header")
        headers.append((name.strip(), value.strip()))
    return headers
