"""The judge of histories: agrees with the samples, says why it cannot judge, and judges what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.history.__main__ import main
from tests.history.judge import ANOMALIES, faults, judge
from tests.history.ops import Malformed, read
from tests.history.record import Recorder
from tests.history.users import reason_of

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())
OURS = [name for name, each in EXPECTED.items() if "engines" not in each]


@pytest.mark.parametrize("name", OURS)
def test_the_samples_are_judged_as_they_are_meant(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES / f"{name}.jsonl")]) == EXPECTED[name]["exit"]
    assert json.loads(capsys.readouterr().out).get("error-types") == EXPECTED[name]["types"]


def test_there_is_a_sample_for_each_anomaly_but_those_within_one_send() -> None:
    seen = {kind for name in OURS for kind in EXPECTED[name]["types"] or ()}
    assert seen == ANOMALIES.keys() - {"int-nonmonotonic-send"}


def line(index: int, kind: str, process: int, f: str, value: object) -> str:
    return json.dumps({"index": index, "type": kind, "process": process, "f": f, "value": value, "time": index})


def judged(*lines: str) -> Iterable[str]:
    return faults(judge(read(lines)))


def test_a_send_that_goes_back_within_itself_is_noticed() -> None:
    sends = [["send", 0, "a"], ["send", 0, "b"]]
    done = [["send", 0, [1, "a"]], ["send", 0, [0, "b"]]]
    polled = [["poll", {"0": [[0, "b"], [1, "a"]]}]]
    assert judged(
        line(0, "invoke", 0, "txn", sends),
        line(1, "ok", 0, "txn", done),
        line(2, "invoke", 1, "poll", [["poll"]]),
        line(3, "ok", 1, "poll", polled),
    ) == ["int-nonmonotonic-send"]


def test_a_reader_who_is_assigned_anew_may_begin_anew_on_other_keys_only() -> None:
    def history(second: list[int]) -> Iterable[str]:
        return judged(
            line(0, "invoke", 0, "send", [["send", 0, 7]]),
            line(1, "ok", 0, "send", [["send", 0, [0, 7]]]),
            line(2, "invoke", 1, "assign", [0]),
            line(3, "ok", 1, "assign", [0]),
            line(4, "invoke", 1, "poll", [["poll"]]),
            line(5, "ok", 1, "poll", [["poll", {"0": [[0, 7]]}]]),
            line(6, "invoke", 1, "assign", second),
            line(7, "ok", 1, "assign", second),
            line(8, "invoke", 1, "assign", [0]),
            line(9, "ok", 1, "assign", [0]),
            line(10, "invoke", 1, "poll", [["poll"]]),
            line(11, "ok", 1, "poll", [["poll", {"0": [[0, 7]]}]]),
        )

    assert history([0]) == ["nonmonotonic-poll"]
    assert history([1]) == []


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['{"index": 0, "process": 0}'], "line 1"),
        (["[1]"], "line 1"),
        (["nonsense"], "line 1"),
        ([line(0, "begin", 0, "poll", [])], "type 'begin'"),
        ([line(0, "invoke", 0, "send", [["sing", 0, 1]])], "micro-operation 'sing'"),
        ([line(0, "ok", 0, "poll", [])], "ends, and none was begun"),
        ([line(0, "invoke", 0, "poll", []), line(1, "invoke", 0, "poll", [])], "while another one"),
        ([line(1, "invoke", 0, "poll", []), line(1, "ok", 0, "poll", [])], "index 1 comes after 1"),
        ([line(0, "invoke", 0, "send", [["send", 0, 1]]), line(1, "ok", 0, "send", [["send", 0, [0, "1"]]])], "key 0"),
    ],
)
def test_what_cannot_be_judged_says_where(lines: list[str], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read(lines)


def test_a_file_that_is_not_there_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert json.loads(capsys.readouterr().out)["valid?"] == "unknown"


def test_what_is_recorded_can_be_judged(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        sender, reader = recorder.process(), recorder.process()
        sender.begin("send", [["send", 0, "a"]])
        reader.assign([0])
        reader.begin("poll", [["poll"]])
        sender.info("no answer")
        reader.ok([["poll", {"0": [[0, "a"]]}]])
        sender.begin("send", [["send", 0, "b"]])
        sender.fail("overloaded")
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert faults(judge(read(lines))) == []
    assert len(lines) == recorder.count == 8
    late = recorder.process()
    late.begin("poll", [["poll"]])  # after the end: neither written nor an error
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 8


def test_the_reason_of_an_error_is_what_ends_its_description() -> None:
    assert reason_of("insufficient resources: try again [overloaded]") == "overloaded"
    assert reason_of("[overloaded] somewhere else") == ""
