"""Goal: a log line is one line, says its fields, and never a credential.

Method: real loggers into a text buffer, read back.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.api.principals import new_token
from broker.runtime.logs import (
    BURST,
    INFO_BURST,
    INFO_REFILL_S,
    KINDS_MAX,
    REFILL_S,
    ConsoleFormatter,
    LimitedHandler,
    parse,
    setup,
)

log = logging.getLogger("broker.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Other tests get the handlers and levels that they had."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger("broker").setLevel(logging.NOTSET)
    logging.captureWarnings(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("form", ["json", "console"])
def test_on_a_full_disk_lines_are_lost_and_nobody_hears_of_it(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_through = False
    with suppress(OSError), open("/dev/full", "a") as full:
        monkeypatch.setattr(sys, "stderr", full)
        setup("info", form)
        for number in range(100):
            log.error("partition.bug number=%d text=%s", number, "x" * 1_000)
        logging.getLogger().handlers[0].close()
        is_through = True
    assert is_through


def test_json_lines_carry_event_fields_and_text() -> None:
    out = io.StringIO()
    setup("info", "json", stream=out)
    log.info("partition.opened stream=%s partition=%d took_ms=%.1f clean=%s", "orders", 3, 1.5, True)
    line = json.loads(out.getvalue())
    assert line["event"] == "partition.opened"
    assert line["fields"] == {"stream": "orders", "partition": 3, "took_ms": 1.5, "clean": True}
    assert line["level"] == "info"
    assert line["logger"] == "broker.test"
    assert line["text"].startswith("partition.opened stream=orders")
    assert line["time"].endswith("Z")


@pytest.mark.parametrize(
    "text, event, fields",
    [
        ("a.b", "a.b", {}),
        ("a.b error=No space left on device count=2", "a.b", {"error": "No space left on device", "count": 2}),
        ("a.b empty= next=x", "a.b", {"empty": "", "next": "x"}),
        (
            "a.b id=007 big=123456789012345678901 none=None",
            "a.b",
            {"id": "007", "big": "123456789012345678901", "none": None},
        ),
        ("Serving on port=1", None, {}),
        ("", None, {}),
    ],
)
def test_fields_are_read_from_the_text(text: str, event: str | None, fields: dict[str, object]) -> None:
    assert parse(text) == (event, fields)


def test_auto_is_console_on_a_terminal_and_json_elsewhere() -> None:
    for out, is_json in ((Terminal(), False), (io.StringIO(), True)):
        setup("info", "auto", stream=out)
        log.warning("broker.started id=%s", "broker-0")
        assert out.getvalue().startswith("{") == is_json
        assert "broker.started id=broker-0" in out.getvalue()


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    out = io.StringIO()
    setup("info", "console", stream=out)
    log.info("client.refused subject=%s", "a\nERROR forged\x1b[0m")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


NASTY = (
    "a\nERROR forged",
    "a\r2026-11-26T21:00:29.612Z ERROR forged.line",
    "\x1b[2J\x9b2J\x08\x7f\x00\x85",
    "a\u2028forged\u2029\u202etxt",
    "x status=200 event=forged.line",
    "y" * 100_000,
)


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("text", NASTY)
def test_nobody_forges_a_line_a_field_or_a_cursor(text: str, format: str) -> None:
    out = io.StringIO()
    setup("info", format, stream=out)
    log.info("client.refused subject=%s status=%d error=%s", text, 400, ValueError(text))
    line = out.getvalue()
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert len(line) < 40_000
    if format == "json":
        fields = json.loads(line)["fields"]
        assert list(fields) == ["subject", "status", "error"]
        assert fields["status"] == 400


@pytest.mark.parametrize("text", NASTY)
def test_nobody_forges_a_line_by_a_traceback(text: str) -> None:
    out = io.StringIO()
    setup("info", "console", stream=out)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("task.failed name=%s", text)
    first, *rest, last = out.getvalue().split("\n")
    assert "task.failed" in first
    assert last == ""
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_lines_of_another_form_are_written_as_they_are() -> None:
    out = io.StringIO()
    setup("info", "json", stream=out)
    log.info("a.b of %s, rate=%d%% at=%s/%s", "x\n", 5, "s", 1)
    log.info("a.b rate=%d%% at=%s/%s", 5, "s t=1", 1)
    log.info("a.b %s", {"x": 1})
    texts = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each["text"] for each in texts] == ["a.b of x\\n, rate=5% at=s/1", "a.b rate=5% at=s t=1/1", "a.b {'x': 1}"]
    assert texts[1]["fields"] == {"rate": "5%", "at": "s t=1/1"}


@pytest.mark.parametrize("format", ["json", "console"])
def test_credentials_in_urls_are_cut_out(format: str) -> None:
    out = io.StringIO()
    setup("info", format, stream=out)
    log.info("nats.connected url=%s", "nats://ann:hunter2@host:4222")
    try:
        raise ValueError("no answer from nats://hunter2@host:4222")
    except ValueError:
        log.exception("nats.failed url=%s", "nats://host:4222")
    assert "hunter2" not in out.getvalue()
    assert "nats://host:4222" in out.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_traceback_stays_with_its_line(format: str) -> None:
    out = io.StringIO()
    setup("info", format, stream=out)
    try:
        raise ValueError("that is why")
    except ValueError:
        log.exception("task.failed name=%s", "cleaner")
    assert "ValueError: that is why" in out.getvalue()
    if format == "json":
        assert "that is why" in json.loads(out.getvalue())["exception"]


def test_libraries_show_from_warning_on_and_ours_from_the_level() -> None:
    out = io.StringIO()
    setup("debug", "console", stream=out)
    logging.getLogger("aiohttp.access").info("GET /")
    logging.getLogger("nats").warning("odd")
    log.debug("batch.closed records=%d", 3)
    assert "GET /" not in out.getvalue()
    assert "odd" in out.getvalue()
    assert "batch.closed" in out.getvalue()


def test_a_line_whose_arguments_do_not_fit_is_not_lost() -> None:
    out = io.StringIO()
    setup("info", "console", stream=out)
    log.info("broken.line count=%d", "three")
    assert "broken.line" in out.getvalue()
    assert "three" in out.getvalue()


def test_setup_again_replaces_and_does_not_double() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup("info", "console", stream=first)
    setup("info", "console", stream=second)
    log.info("once.only n=%d", 1)
    assert first.getvalue() == ""
    assert second.getvalue().count("once.only") == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_fault_that_comes_with_every_batch_fills_no_disk() -> None:
    """L4: 30,000 batches refused in ten minutes, a line of 500 bytes each. All are counted, no other kind suffers."""
    out, clock = io.StringIO(), Clock()
    handler = LimitedHandler(out, clock=clock)
    logger = logging.Logger("broker.limited")
    logger.addHandler(handler)
    for number in range(30_000):
        clock.now = number * 0.02
        logger.error("intake.append_failed partition=%s error=%s", number, "x" * 440)
        if number % 10_000 == 0:
            logger.error("partition.damaged partition=%s", number)
        if number % 1_000 == 0:
            logger.info("stream.created stream=%s", number)
    assert len(out.getvalue()) < 100_000
    handler.close()
    lines = out.getvalue().splitlines()
    written = [line for line in lines if line.startswith("intake.append_failed")]
    assert len(written) == BURST + 600 / REFILL_S - 1
    told = [
        int(line.rpartition("=")[2]) for line in lines if line.startswith("log.left_out event=intake.append_failed")
    ]
    assert sum(told) + len(written) == 30_000
    assert sum(line.startswith("partition.damaged") for line in lines) == 3
    assert sum(line.startswith("stream.created") for line in lines) == 30


def test_what_a_caller_does_again_and_again_fills_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """L4, for INFO: a job that registers its producer without end. Seen before: 30 KB of log a second."""
    monkeypatch.setattr("broker.runtime.logs.INFO_BURST", 100)
    out, clock = io.StringIO(), Clock()
    handler = LimitedHandler(out, clock=clock)
    logger = logging.Logger("broker.limited")
    logger.addHandler(handler)
    for number in range(3_000):
        clock.now = number * 0.01
        logger.info("producer.registered name=%s epoch=%d", "p", number)
        if number % 100 == 0:
            logger.info("stream.created stream=%s", number)
    handler.close()
    lines = out.getvalue().splitlines()
    written = sum(line.startswith("producer.registered") for line in lines)
    told = [int(line.rpartition("=")[2]) for line in lines if "log.left_out event=producer.registered" in line]
    assert written == 100 + 30 / INFO_REFILL_S - 1
    assert sum(told) + written == 3_000
    assert sum(line.startswith("stream.created") for line in lines) == 30, "no other kind suffers"
    assert INFO_BURST >= 20_000, "a start with 10,000 partitions says of each what it did"


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_is_left_of_a_record_is_neither_cut_nor_left_out(form: str) -> None:
    """L6. Others of the kind do not use it up, and it does not use up theirs."""
    out, record = io.StringIO(), json.dumps({"asked": "x" * 70_000})
    setup("info", form, stream=out)
    for _ in range(2 * BURST):
        log.error("audit.late why=%s record=%s", "no", record, extra={"is_whole": True})
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 * BURST
    for line in lines:
        text = json.loads(line)["fields"]["record"] if form == "json" else line.partition("record=")[2]
        assert text == record
        assert form == "console" or json.loads(line)["text"].endswith(record)


def test_of_what_looks_like_a_token_its_id_is_left() -> None:
    """L2."""
    out, token = io.StringIO(), new_token()
    setup("info", "json", stream=out)
    log.warning("http.unauthenticated remote=%s path=%s error=%s", "::1", f"/v1/auth/tokens/{token.text}", "x")
    log.warning(f"free text with {token.text.upper()} in it")
    try:
        raise ValueError(token.text)
    except ValueError:
        log.exception("http.bug id=%s", "1")
    secret = token.text.rpartition("_")[2]
    assert secret not in out.getvalue().lower()
    assert out.getvalue().count(token.id) >= 2


def test_what_was_left_out_is_told_with_the_next_line_of_any_kind() -> None:
    out, clock = io.StringIO(), Clock()
    handler = LimitedHandler(out, clock=clock)
    handler.setFormatter(ConsoleFormatter())
    logger = logging.Logger("broker.limited")
    logger.addHandler(handler)
    for _ in range(BURST + 7):
        logger.warning("a.b")
    assert "log.left_out" not in out.getvalue()
    clock.now = REFILL_S
    logger.info("c.d")
    assert [line.split(maxsplit=2)[2] for line in out.getvalue().splitlines()[-2:]] == [
        "log.left_out event=a.b lines=7",
        "c.d",
    ]
    handler.close()
    assert out.getvalue().count("log.left_out") == 1, "once"


def test_kinds_without_number_take_no_memory_without_limit() -> None:
    """A library that formats its lines itself."""
    out, clock = io.StringIO(), Clock()
    handler = LimitedHandler(out, clock=clock)
    logger = logging.Logger("library")
    logger.addHandler(handler)
    for number in range(2 * KINDS_MAX):
        logger.warning(f"failed {number}")
    assert len(handler._kinds) <= KINDS_MAX + 1
    assert len(out.getvalue().splitlines()) == KINDS_MAX + BURST
