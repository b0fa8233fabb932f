"""Turns, ratios and lines: what the harness makes of sides, shown with sides that need no server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import harness, report
from benchmarks.__main__ import main
from benchmarks.harness import Case, Measures, Side, Skipped, Target, run_case


class Sides:
    """Sides that return 1, 2, 3 … times their own factor, and note who had a turn in which folder."""

    def __init__(self, **factors: float) -> None:
        self.factors = factors
        self.turns: list[str] = []
        self.folder: Path | None = None

    @contextmanager
    def open(self, folder: Path) -> Iterator[Mapping[str, Side]]:
        self.folder = folder
        (folder / "log").write_text("x")
        yield {name: self._side(name, factor) for name, factor in self.factors.items()}

    def _side(self, name: str, factor: float) -> Side:
        def turn() -> Measures:
            if not factor:
                raise Skipped("not installed")
            self.turns.append(name)
            return {"rate": factor * self.turns.count(name), "lost": 0}

        return turn

    def case(self, **values: object) -> Case:
        given = {"name": "case", "metric": "rate", "unit": "messages/s", "parameters": {"size": 1}, **values}
        return Case(open=self.open, **given)  # type: ignore[arg-type]


def test_sides_take_turns_in_rotating_order(tmp_path: Path) -> None:
    sides = Sides(liftlog=6, jetstream=2, drain=12)
    run_case(sides.case(), tiny=False, repeats=3, data=tmp_path)
    assert sides.turns == [
        *("liftlog", "jetstream", "drain"),
        *("jetstream", "drain", "liftlog"),
        *("drain", "liftlog", "jetstream"),
    ]


def test_ratios_are_made_within_a_repeat(tmp_path: Path) -> None:
    line = run_case(Sides(liftlog=6, jetstream=2, drain=12).case(), tiny=False, repeats=3, data=tmp_path)
    assert line["ratios"] == {
        "liftlog/jetstream": {"median": 3.0, "values": [3.0, 3.0, 3.0]},
        "liftlog/drain": {"median": 0.5, "values": [0.5, 0.5, 0.5]},
    }
    assert line["sides"]["liftlog"]["rate"] == {"median": 12.0, "values": [6.0, 12.0, 18.0]}


def test_a_side_that_is_not_installed_is_skipped_with_its_reason(tmp_path: Path) -> None:
    targets = (Target(of="liftlog/kafka", least=3.0),)
    line = run_case(Sides(liftlog=1, kafka=0).case(targets=targets), tiny=False, repeats=2, data=tmp_path)
    assert line["skipped"] == {"kafka": "not installed"}
    assert line["ratios"] == {}
    assert line["targets"][0]["reached"] is None


def test_targets_are_judged_by_medians(tmp_path: Path) -> None:
    targets = (
        Target(of="liftlog/jetstream", least=3.1),
        Target(of="rate", most=12),
        Target(of="jetstream:rate", least=4),
        Target(of="liftlog - jetstream", most=7),
        Target(of="liftlog - drain", most=7),
    )
    line = run_case(Sides(liftlog=6, jetstream=2).case(targets=targets), tiny=False, repeats=3, data=tmp_path)
    assert [target["reached"] for target in line["targets"]] == [False, True, True, False, None]
    assert [target["seen"] for target in line["targets"]] == [3.0, 12.0, 4.0, 8.0, None]


def test_line_says_where_a_figure_comes_from_but_not_the_host(tmp_path: Path) -> None:
    line = run_case(Sides(liftlog=1).case(), tiny=True, repeats=1, data=tmp_path)
    assert {"case", "at", "commit", "machine", "versions", "parameters", "repeats", "sides", "ratios"} <= line.keys()
    assert {"cpu", "cores", "memory_gib", "file_system", "tcp"} <= line["machine"].keys()
    assert json.loads(json.dumps(line)) == line
    assert not set(line["machine"]) & {"host", "node", "name"}


def test_folder_is_removed_even_when_a_side_fails(tmp_path: Path) -> None:
    sides = Sides(liftlog=1)

    @contextmanager
    def failing(folder: Path) -> Iterator[Mapping[str, Side]]:
        with sides.open(folder):
            yield {"liftlog": lambda: {"rate": 1 / 0}}

    case = Case(name="case", metric="rate", unit="s", parameters={}, open=failing)
    with pytest.raises(ZeroDivisionError):
        run_case(case, tiny=True, repeats=1, data=tmp_path)
    assert list(tmp_path.iterdir()) == []


def lines(folder: Path, workload: str, *found: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"{workload}.jsonl").open("a") as out:
        out.writelines(json.dumps({"benchmark": workload, **line}) + "\n" for line in found)


def test_report_shows_the_newest_line_of_each_case_and_no_tiny_one(tmp_path: Path) -> None:
    def line(factor: float, *, tiny: bool = False) -> dict[str, object]:
        targets = (Target(of="liftlog/jetstream", least=3.0),)
        case = Sides(liftlog=factor, jetstream=2000, kafka=0).case(name="intake-100B-1pub", targets=targets)
        return run_case(case, tiny=tiny, repeats=1, data=tmp_path)

    results = tmp_path / "results"
    lines(results, "intake", line(9_000), line(8_000), line(7_000, tiny=True))
    page = report.write(results, tmp_path / "docs").read_text()
    assert "| intake-100B-1pub | liftlog | 8,000 |" in page
    assert "| 4.00 | ≥ 3: reached |" in page
    assert "not measured: not installed" in page
    assert "| 9,000 |" not in page, "an older line of the case"
    assert "| 7,000 |" not in page, "a tiny line"
    assert (tmp_path / "docs" / "benchmarks" / "intake.png").read_bytes().startswith(b"\x89PNG")
    assert "](benchmarks/intake.png)" in page


def test_the_page_judges_by_the_goals_of_today(tmp_path: Path) -> None:
    """A line keeps those of its run, which may have been lower, or none."""

    def line(name: str, *targets: Target) -> dict[str, object]:
        case = Sides(liftlog=700, memory=900, null=500).case(name=name, targets=targets)
        return run_case(case, tiny=False, repeats=1, data=tmp_path)

    results = tmp_path / "results"
    lines(
        results,
        "spark_read",
        line("spark-batch-2task", Target(of="liftlog/memory", least=0.5)),
        line("spark-start"),
        line("a-case-of-before", Target(of="liftlog/memory", least=0.5)),
    )
    rows = report.write(results, tmp_path / "docs").read_text().splitlines()
    goals = [row.split("|")[-2].strip() for row in rows if row.startswith("|  | memory |") or "| null |" in row]
    assert goals == [
        *("≥ 0.85: **not reached**", ""),
        *("", "≤ 100 messages/s more: **not reached**"),
        *("≥ 0.5: reached", ""),
    ]


def test_unknown_names_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["intaek"])
    assert "no such benchmark: intaek" in capsys.readouterr().err


def test_every_workload_lists_cases_with_unique_names() -> None:
    for tiny in (True, False):
        names = [case.name for workload in harness.WORKLOADS for case in harness.cases_of(workload, tiny=tiny)]
        assert len(names) == len(set(names)) > 0
