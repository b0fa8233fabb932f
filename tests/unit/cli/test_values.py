"""Goal: values with units, positions, and records as text, are what they say.

Method: tables of examples.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import click
import pyarrow as pa
import pytest

from broker.api.errors import BY_REASON, DeadlineExceeded, NotReady, Unavailable
from broker.api.legible import plain_rows, readable_rows
from broker.api.plain import printable
from broker.api.schema import SCHEMA
from broker.api.stream import LIMITS
from broker.cli.commands.records import Lines, value_text
from broker.cli.exits import FAILED, UNREACHABLE, code_of
from broker.cli.options import NONE, byte_count, duration_ms, number, or_none, position
from broker.cli.output import age_text, bytes_text, cell, json_text, time_text

ANY = (0, 1 << 60)


@pytest.mark.parametrize(
    "text, ms",
    [("7d", 604_800_000), ("12h", 43_200_000), ("1w", 604_800_000), ("10s", 10_000), ("5", 5), ("2 M", 120_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(ANY)(text) == ms


@pytest.mark.parametrize("text, count", [("1KiB", 1024), ("1kb", 1000), ("10GiB", 10 << 30), ("7", 7), ("7 B", 7)])
def test_sizes(text: str, count: int) -> None:
    assert byte_count(ANY)(text) == count


@pytest.mark.parametrize(
    "amount, limit, shown",
    [
        (duration_ms, (0, 604_800_000), "from 0ms to 1w"),
        (duration_ms, LIMITS["retention_ms"], "from 1ms to 1125899906842624ms (13031248d)"),
        (byte_count, LIMITS["segment_bytes"], "from 64KiB to 1TiB"),
        (number, (0, 100), "from 0 to 100"),
    ],
)
@pytest.mark.parametrize(
    "text",
    ["", "-1", "-7d", "1.5h", "one", "inf", "nan", "1e9", "1x", "1ib", "٣", "99999999999999w", "9" * 30, "9" * 5_000],
    ids=lambda text: text[:16],
)
def test_what_is_no_value_is_a_usage_error_that_names_value_and_limit(
    amount: Callable[[tuple[int, int]], Callable[[str], int]], limit: tuple[int, int], shown: str, text: str
) -> None:
    with pytest.raises(click.BadParameter) as caught:
        amount(limit)(text)
    assert caught.value.message.endswith(shown)
    assert caught.value.message.startswith(repr(text[:100]))


def test_the_limits_themselves_are_allowed() -> None:
    assert [duration_ms((1, 86_400_000))(text) for text in ("1", "1d", "24h")] == [1, 86_400_000, 86_400_000]


def test_none_passes_where_it_is_allowed() -> None:
    assert or_none(duration_ms)(ANY)("None") == NONE
    assert or_none(duration_ms)(ANY)("1s") == 1000


@pytest.mark.parametrize(
    "text, where",
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("42", 42),
        ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC)),
        ("2026-01-02T03:04:05.000006Z", datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ("2026-01-02T03:00:00+01:00", datetime(2026, 1, 2, 2, tzinfo=UTC)),
    ],
)
def test_positions(text: str, where: object) -> None:
    assert position(text, "--from") == where


@pytest.mark.parametrize("text", ["", "-1", "yesterday", "2026-13-01"])
def test_what_is_no_position_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter):
        position(text, "--from")


def test_exit_codes_tell_unreachable_from_refused() -> None:
    unreachable = {Unavailable, DeadlineExceeded, NotReady}
    for cls in BY_REASON.values():
        assert code_of(cls("x")) == (UNREACHABLE if cls in unreachable else FAILED)


def test_outside_text_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\nc\x9bd") == "a\\x1b[2Jb\\nc\\x9bd"
    assert printable("žluťoučký 馬") == "žluťoučký 馬"
    assert value_text(b"\xff\x00") == "0xff00"
    assert value_text(b"a\tb") == "a\\tb"
    assert value_text(None) == "-"


def test_an_age_is_told_as_people_say_it() -> None:
    told = {None: None, 0: "0s", 1: "0.0s", 1_500: "1.5s", 119_000: "119.0s", 120_000: "2m", 7_200_000: "2h"}
    told[200_000_000] = "2d"
    assert {ms: age_text(ms) for ms in told} == told


def test_cells_and_sizes_for_people() -> None:
    assert [cell(v) for v in (None, True, 3, ["a", "b"], [])] == ["-", "yes", "3", "a, b", "-"]
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 << 30, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]
    assert time_text(0) == "1970-01-01 00:00:00"


def _batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"offset": 7, "timestamp": 1_000_001, "subject": "a.b", "key": b"k", "value": b"{}", "headers": None},
            {
                "offset": 8,
                "timestamp": (1 << 62),  # no year that datetime knows
                "subject": "a",
                "value": b"\xff",
                "headers": [{"key": "H", "value": b"1"}, {"key": "H", "value": None}],
                "reply": "_INBOX.1",
            },
        ],
        schema=SCHEMA,
    )


def test_json_lines_have_the_form_of_the_http_api() -> None:
    first, second = readable_rows(_batch())
    assert first == {
        "offset": 7,
        "timestamp": "1970-01-01T00:00:01.000001Z",
        "subject": "a.b",
        "key": "k",
        "value": "{}",
        "headers": None,
        "reply": None,
    }
    assert second["value"] == {"base64": "/w=="}
    assert second["headers"] == [["H", "1"], ["H", None]]
    assert second["timestamp"] == 1 << 62


def test_lines_for_people_are_aligned_and_cut_at_the_terminal() -> None:
    lines = Lines(width=None, with_partition=False)
    head = lines.head()
    first, second = (lines.line(row) for row in plain_rows(_batch()))
    assert head.index("value") == first.index("{}") == second.index("0xff")
    assert all(len(Lines(width=30, with_partition=True).line(row)) == 30 for row in plain_rows(_batch()))


def test_json_on_a_terminal_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON escapes C0 alone. In a pipe all other characters are as they came."""
    value = {"value": "\x9b2J\x7f\x85\u2028\u202e\x1b\n \u00e9\U0001f600"}

    class Out(io.TextIOWrapper):
        is_terminal = True

        def isatty(self) -> bool:
            return self.is_terminal

    out = Out(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    shown = json_text(value)
    assert shown.isprintable()
    assert "\u00e9\U0001f600" in shown
    assert json.loads(shown) == value
    out.is_terminal = False
    assert "\x9b" in json_text(value)
    assert json.loads(json_text(value)) == value
