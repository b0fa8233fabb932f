"""docs/benchmarks.md and its plots, written from the JSON lines in results/ and the words of notes.md.

The newest line of each case that is not tiny counts. A figure is the median of its repeats; dots in a plot are the
repeats themselves. The words about a workload are its module's docstring.
"""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, RESULTS, ROOT, WORKLOADS, cases_of, judged

DOCS = ROOT / "docs"
NOTES = Path(__file__).with_name("notes.md")
Line = Mapping[str, Any]

INTRODUCTION = """# Benchmarks

<!-- Written by `python -m benchmarks report` from benchmarks/results/*.jsonl and benchmarks/notes.md.
     Do not edit this page. -->

Every figure here is the median of the repeats of one run; in each repeat liftlog and its peers take
turns on the same machine, and a ratio is made within a repeat. Publishers, servers, brokers and
clients all share that machine's cores. Figures move by 20 % and more with the machine; ratios move
less. The lines behind the figures, each repeat included, are in `benchmarks/results/`.

Repeat them with `make bench`, one workload with `python -m benchmarks intake`; `--data DIR` chooses
the disk, and nats.go is measured where Go is installed. To compare with Kafka, unpack a Kafka
distribution (3.9 or 4.x) and name its folder in the environment variable `BENCH_KAFKA_HOME`. To
compare with Spark's Kafka source as well, put into `spark/` in that folder the jars of
spark-sql-kafka-0-10 for your Spark (Scala 2.13) and of what it depends on:
spark-token-provider-kafka-0-10, kafka-clients and commons-pool2. Kafka adds some nine minutes. To run
Liftbridge's bench, build its programs and name their folder in `BENCH_LIFTBRIDGE_HOME`.
"""


def write(results: Path = RESULTS, docs: Path = DOCS) -> Path:
    """Write the page and its plots; returns the page's path."""
    newest = latest(results)
    page = docs / "benchmarks.md"
    plots = docs / "benchmarks"
    plots.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION]
    for workload in WORKLOADS:
        lines = [line for line in newest if line["benchmark"] == workload]
        if lines:
            parts.append(section(workload, lines))
            if plot(lines, plots / f"{workload}.png"):
                parts.append(f"![{workload}](benchmarks/{workload}.png)\n")
    parts += [NOTES.read_text(), _provenance(newest)]
    page.write_text("\n".join(parts))
    return page


def latest(results: Path) -> list[Line]:
    """The newest line of each case, in the order of the files and of first appearance, judged by the goals of today."""
    found: dict[tuple[str, str], Line] = {}
    for workload in WORKLOADS:
        file = results / f"{workload}.jsonl"
        goals = {case.name: case.targets for case in cases_of(workload, tiny=False)}
        for text in file.read_text().splitlines() if file.exists() else []:
            line = json.loads(text)
            if not line["tiny"]:
                if line["case"] in goals:
                    line["targets"] = [judged(target, line) for target in goals[line["case"]]]
                found[line["benchmark"], line["case"]] = line
    return list(found.values())


def section(workload: str, lines: Sequence[Line]) -> str:
    """Heading, what is measured, and the table of a workload."""
    docstring = (importlib.import_module(f"benchmarks.{workload}").__doc__ or "").strip()
    title, _, rest = docstring.partition(":")
    paragraphs = f"{rest.strip()[:1].upper()}{rest.strip()[1:]}".split("\n\n")
    words = f"## {title}\n\n" + "\n\n".join(map(_wrapped, paragraphs)) + "\n"
    units = {line["metric"]: line["unit"] for line in lines if not line["metric"].endswith(f"_{line['unit']}")}
    heads = [f"{name} ({units[name]})" if name in units else name for name in _columns(lines)]
    rows = [["case", "side", *heads, "ours ÷ this", "to reach"]]
    for line in lines:
        for side, measures in line["sides"].items():
            rows.append(
                [
                    line["case"] if side == OURS else "",
                    side,
                    *(number(measures[name]["median"]) if name in measures else "" for name in _columns(lines)),
                    _ratio(line, side),
                    _targets(line, side),
                ]
            )
        for side, reason in line["skipped"].items():
            rows.append(["", side, *("" for _ in _columns(lines)), "", f"not measured: {reason}"])
    return words + "\n" + _table(rows)


def _wrapped(paragraph: str) -> str:
    """As prose stands in docs; lines that are indented stay as they are."""
    if any(line.startswith("    ") for line in paragraph.splitlines()):
        return paragraph
    return textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)


def _columns(lines: Sequence[Line]) -> list[str]:
    """The measures to show: the compared ones, then those that a target or a reader asks for."""
    wanted = list(dict.fromkeys(line["metric"] for line in lines))
    for line in lines:
        wanted += [target["of"].rpartition(":")[2] for target in line["targets"] if "/" not in target["of"]]
    wanted += [
        "rate_whole",
        "more_us_error",
        "p50_ms",
        "p99_ms",
        "p99.9_ms",
        "published",
        "lost",
        "paced",
        "rss_peak_mib",
        "batches",
        "records",
    ]
    present = {name for line in lines for measures in line["sides"].values() for name in measures}
    return [name for name in dict.fromkeys(wanted) if name in present]


def _ratio(line: Line, side: str) -> str:
    ratio = line["ratios"].get(f"{OURS}/{side}")
    return f"{ratio['median']:.2f}" if ratio else ""


def _targets(line: Line, side: str) -> str:
    """The targets that belong into a side's row: ratios to it, or bounds of its own measures."""
    found = []
    for target in line["targets"]:
        of = target["of"]
        is_of_side = "/" not in of and " - " not in of
        its_own = is_of_side and (of.rpartition(":")[0] or OURS) == side
        is_more = of == f"{OURS} - {side}"
        if its_own or is_more or of == f"{OURS}/{side}":
            bound = f"≥ {target['least']:g}" if target["least"] is not None else f"≤ {target['most']:g}"
            name = f"{of.rpartition(':')[2]} " if its_own else ""
            more = f" {line['unit']} more" if is_more else ""
            state = {None: "not measured", True: "reached", False: "**not reached**"}[target["reached"]]
            found.append(f"{name}{bound}{more}: {state}")
    return "; ".join(found)


def number(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    numeric = [all(_is_number(row[i]) for row in body) for i in range(len(head))]
    rule = [("---:" if right else "---") for right in numeric]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body)) + "\n"


def _is_number(text: str) -> bool:
    return text == "" or text.replace(",", "").replace(".", "").replace("-", "").isdigit()


def _provenance(lines: Sequence[Line]) -> str:
    rows = [["case", "when", "commit", "machine", "repeats"]]
    for line in lines:
        machine = line["machine"]
        text = (
            f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']:g} GiB, {machine['system']}, "
            f"{machine['file_system']}" + (f", TCP {machine['tcp']}" if machine.get("tcp") else "")
        )
        commit = line["commit"][:9] + (" with changes" if line["changed"] else "")
        rows.append([line["case"], line["at"][:16].replace("T", " "), commit, text, str(line["repeats"])])
    return "## Where these figures come from\n\n" + _table(rows)


def plot(lines: Sequence[Line], path: Path) -> bool:
    """Bars of each case's sides, the repeats as dots; cases of one unit share a plot. False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: matplotlib is not installed (extra [examples])")
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(lines), figsize=(max(4.0, 3.2 * len(lines)), 3.4), squeeze=False)
    for axis, line in zip(axes[0], lines, strict=True):
        sides = [name for name, measures in line["sides"].items() if line["metric"] in measures]
        for place, side in enumerate(sides):
            measure = line["sides"][side][line["metric"]]
            axis.bar(place, measure["median"], color="#2a6fbb" if side.startswith(OURS) else "#b8bec6", width=0.65)
            axis.plot([place] * len(measure["values"]), measure["values"], "o", color="#333333", markersize=3)
            axis.annotate(
                _short(measure["median"]),
                (place, max(measure["values"])),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
            )
        axis.set_title(line["case"], fontsize=9)
        axis.set_ylabel(line["unit"] if axis is axes[0][0] or len(_units(lines)) > 1 else "", fontsize=8)
        axis.set_xticks(range(len(sides)), sides, rotation=30, ha="right", fontsize=8)
        axis.tick_params(axis="y", labelsize=7)
        axis.yaxis.set_major_formatter(lambda value, _: _short(value))
        axis.margins(y=0.15)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return True


def _units(lines: Sequence[Line]) -> set[str]:
    return {line["unit"] for line in lines}


def _short(value: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
