"""Goal: `liftlog sink list` says who holds the room for stages, and which of it makes room for others.

Method: click's runner, with a client whose answer is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from broker.api.sink_answers import SinkDescription, StagedFor
from broker.cli.commands import sink as commands
from broker.cli.main import app


def owner(
    byte_count: int, *, stages: int = 1, pinned: int = 0, silent_ms: int = 0, is_silent: bool = False
) -> StagedFor:
    return StagedFor(
        owner="run",
        epoch=7,
        stages=stages,
        byte_count=byte_count,
        pinned=pinned,
        silent_ms=silent_ms,
        is_silent=is_silent,
    )


def known(name: str, *staged: StagedFor) -> SinkDescription:
    return SinkDescription(
        sink=name,
        current_epoch=7,
        checkpoint=None,
        one_shot=True,
        least_batch_id=0,
        changed_ms=0,
        last=None,
        staged=staged,
    )


SINKS = [
    known("alive", owner(5_000, silent_ms=9_000)),
    known("dead", owner(30_000, silent_ms=301_000, is_silent=True), owner(12_345, silent_ms=400_999, is_silent=True)),
    known("nothing"),
    known("of-two-runs", owner(1_000), owner(200, silent_ms=600_000, is_silent=True)),
    known("partly", owner(888, stages=2, pinned=1, silent_ms=900_000, is_silent=True), owner(1)),
    known("pinned", owner(777, stages=2, pinned=2, silent_ms=900_000, is_silent=True)),
]


class Client:
    def sinks(self, *, staged: bool) -> list[SinkDescription]:
        assert staged, "who is silent is told with what is staged"
        return SINKS


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextmanager
    def client_of(*_: object) -> Iterator[Client]:
        yield Client()

    monkeypatch.setattr(commands, "client_of", client_of)

    def run(*options: str) -> str:
        done = CliRunner().invoke(app, ["sink", "list", *options], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_silent_owners_are_shown_with_the_bytes_that_make_room(shown: Any) -> None:
    lines = {line.split()[0]: line.split() for line in shown().splitlines() if line.strip()}
    assert lines["sink"][-2:] == ["staged", "silent"]
    assert lines["alive"][-2:] == ["5000", "-"], "it is not silent yet"
    assert lines["dead"][-5:] == ["42345", "42345", "bytes,", "400", "s"]
    assert lines["of-two-runs"][-5:] == ["1200", "200", "bytes,", "600", "s"]
    assert lines["partly"][-7:] == ["889", "at", "most", "888", "bytes,", "900", "s"]
    assert lines["pinned"][-2:] == ["777", "-"], "what a commit has named stays, however silent its owner is"
    assert lines["nothing"][-2:] == ["-", "-"]


def test_json_has_each_owner(shown: Any) -> None:
    found = {each["sink"]: each["staged"] for each in json.loads(shown("--json"))}
    assert [(each["byte_count"], each["silent_ms"], each["is_silent"]) for each in found["dead"]] == [
        (30_000, 301_000, True),
        (12_345, 400_999, True),
    ]
    assert found["nothing"] == []
