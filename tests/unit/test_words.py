"""The words that people read: lines of prose end by column 100, and a sentence says first what it is about.

A sentence that begins with "Of", "What" or "Who" and asks nothing has to be read twice. That holds for pages, help,
docstrings and comments. Tables and code are as long as they have to be. Decision records are wrapped, too; how their
sentences begin is left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from broker.cli.main import app
from broker.serving.contract.openapi import document
from broker.serving.http.app import ENDPOINTS

ROOT = Path(__file__).parents[2]
WIDTH = 100
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    + [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"]
)
RECORDS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
BEGINS = re.compile(r"(Of|What|Who|Whom|Whose|Whoever|Whatever)\b")
BEGINS_SOMEWHERE = re.compile(r"\b(Of|Wh[a-z]+)\b")
"""Most texts have none of these words: so the rest is quick."""
MARKER = re.compile(r"^([-*+]|\d+\.) +")
SOURCES = {
    "broker": 3_000,
    "spark_liftlog": 250,
    "benchmarks": 100,
    "tests/support": 150,
    "tests/unit": 1_000,
    "tests/benchmarks": 15,
    "tests/cluster": 200,
    "tests/examples": 20,
    "tests/fuzz": 50,
    "tests/history": 30,
    "tests/properties": 250,
    "tests/sim": 350,
    "tests/soak": 120,
    "tests/spark": 150,
}
"""Folders whose docstrings are judged, and how many are there at least."""
COMMENTS = {".py": ("#", 400), ".pyx": ("#", 4), ".pxi": ("#", 15), ".toml": ("#", 8), ".proto": ("//", 4)}
"""Files whose comments are judged: the sign before them, and how many are there at least."""
ROW = re.compile(r"^([-*+]|\d+\.|[A-Z]{1,4}\d+|[\w/]+(\.pyx?|/))\s+")
"""Begins a row of a docstring: an item, an invariant with its number, a module of a package."""


def blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Paragraphs, items, cells' rows: the lines of each, and the number of the first. Without code and headings."""
    block: list[str] = []
    start, indents, in_fence = 0, [0], False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        indent = len(line) - len(line.lstrip())
        if words:
            while indent < indents[-1]:
                indents.pop()
        is_fence = words.startswith("```")
        is_code = in_fence or is_fence or (indent >= indents[-1] + 4 and not block)
        in_fence ^= is_fence
        item = None if is_code else MARKER.match(words)
        if block and (not words or is_code or item or words.startswith(("#", "|"))):
            yield start, block
            block = []
        if not words or is_code or words.startswith(("#", "![", "<!--")):
            continue
        if item:
            indents.append(indent + item.end())
        if not block:
            start = number
        block.append(line)
    if block:
        yield start, block


def too_long(text: str) -> list[int]:
    """Lines of prose that could have been broken earlier."""
    return [
        start + at
        for start, block in blocks(text)
        for at, line in enumerate(block)
        if len(line) > WIDTH and not line.startswith("|") and " " in MARKER.sub("", line.strip())
    ]


def awkward(text: str) -> list[str]:
    """Sentences that begin as a question and ask nothing."""
    if not BEGINS_SOMEWHERE.search(text):
        return []
    text = MARKER.sub("", " ".join(text.split()), count=1)
    pieces = [piece for cell in text.split("|") for piece in re.split(r"(?<=[.:!?])[*_]*\s+", cell)]
    sentences = (piece.strip("*_ (") for piece in pieces)
    return [words for words in sentences if BEGINS.match(words) and not words.rstrip("*_)").endswith("?")]


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=lambda page: page.name)
def test_prose_ends_by_column_100(page: Path) -> None:
    assert too_long(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_of_a_page_do_not_begin_as_questions(page: Path) -> None:
    assert [(start, words) for start, block in blocks(page.read_text()) for words in awkward("\n".join(block))] == []


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from helps(found, f"{name} {below}")


def test_help_of_commands_does_not_begin_as_a_question() -> None:
    texts = list(helps(app, "liftlog"))
    assert len(texts) > 200
    assert [(name, words) for name, text in texts for words in awkward(text)] == []


def described(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """All texts of the OpenAPI document."""
    if isinstance(value, dict):
        for name, below in value.items():
            if name in ("description", "summary") and isinstance(below, str):
                yield where, below
            else:
                yield from described(below, f"{where}/{name}")
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from described(below, f"{where}/{number}")


def test_texts_of_the_contract_do_not_begin_as_questions() -> None:
    texts = list(described(document(ENDPOINTS)))
    assert len(texts) > 300
    assert [(where, words) for where, text in texts for words in awkward(text)] == []


def test_comments_of_the_configuration_are_wrapped() -> None:
    lines = (ROOT / "conf" / "liftlog.toml").read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert len(comments) > 80
    assert [line for line in comments if len(line) > WIDTH] == []


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """All of a module, those behind constants included, and the line of each."""
    bodies: list[ast.AST] = [ast.parse(source)]
    for node in bodies:  # which grows: expressions are not looked into
        for below in getattr(node, "body", ()):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield below.lineno, text.value
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            bodies += getattr(node, name, ())


def compiled_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Those of a module that is compiled, and the line of each. Pieces of C stand in the same quotes: no harm."""
    for match in re.finditer(r'^ *"""(.*?)"""', source, re.MULTILINE | re.DOTALL):
        yield source.count("\n", 0, match.start()) + 1, match[1]


def paragraphs(docstring: str) -> Iterator[str]:
    """Its paragraphs and rows, each without what it begins with."""
    lines = [line.strip() for line in docstring.splitlines()]
    block: list[str] = []
    for words in [*lines, ""]:
        if not words or ROW.match(words):
            yield " ".join(block)
            block = []
        block.append(ROW.sub("", words, count=1))


def comments(source: str, sign: str) -> Iterator[tuple[int, str]]:
    """All that have lines of their own, and the first line of each. One beside a line is a piece of a sentence."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        words = line.strip()
        if words.startswith(sign):
            block.append(words.removeprefix(sign))
        elif block:
            yield number - len(block), "\n".join(block)
            block = []


def awkward_comments(source: str, sign: str) -> list[tuple[int, str]]:
    found = comments(source, sign)
    return [(line, words) for line, text in found for one in paragraphs(text) for words in awkward(one)]


def awkward_docstrings(found: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(line, words) for line, text in found for one in paragraphs(text) for words in awkward(one)]


@pytest.mark.parametrize("folder", SOURCES)
def test_sentences_of_docstrings_do_not_begin_as_questions(folder: str) -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    assert sum(1 for source in sources.values() for _ in docstrings(source)) > SOURCES[folder]
    awkward_ones = {path: awkward_docstrings(docstrings(source)) for path, source in sources.items()}
    assert [(str(path), *found) for path, those in awkward_ones.items() for found in those] == []


def test_sentences_of_docstrings_that_are_compiled_do_not_begin_as_questions() -> None:
    paths = [path for suffix in ("pyx", "pxi") for path in sorted((ROOT / "broker").rglob(f"*.{suffix}"))]
    sources = {path: path.read_text() for path in paths}
    assert sum(1 for source in sources.values() for _ in compiled_docstrings(source)) > 100
    awkward_ones = {path: awkward_docstrings(compiled_docstrings(source)) for path, source in sources.items()}
    assert [(str(path), *found) for path, those in awkward_ones.items() for found in those] == []


@pytest.mark.parametrize("suffix", COMMENTS)
def test_sentences_of_comments_do_not_begin_as_questions(suffix: str) -> None:
    sign, least = COMMENTS[suffix]
    folders = ("broker", "spark_liftlog", "pyspark_liftlog", "benchmarks", "conf", "examples", "tests")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob(f"*{suffix}"))]
    sources = {path: path.read_text() for path in paths}
    assert sum(1 for source in sources.values() for _ in comments(source, sign)) > least
    assert [(str(path), *found) for path, text in sources.items() for found in awkward_comments(text, sign)] == []


def test_what_is_looked_for_is_found() -> None:
    long = "word " * 25
    assert too_long(
        f"{long}\n\n    {long}\n\n- {long}\n\n      {long}\n\n| {long} |\n\n```\n{long}\n```\n# {long}\n"
    ) == [1, 5]
    assert awkward("What is lost? Of these two. **Who** leads, decides. Nobody. | What is left | Who?") == [
        "Of these two.",
        "Who** leads, decides.",
        "What is left",
    ]
    module = '''"""Of a log.

P9  Who leads, tells. A follower
    does not.

log.py  What is told.
- A
  sentence. What holds?
"""
MAX = 9
"""Whose limit it is."""


class Log:
    """One log.

    Args:
        name: Of the log, and its
            own.
    """

    async def told(self):
        """Whoever asks. What this release knows: nothing."""

    def end(self):
        text = "Of no docstring."
        """A log. Who waits is told."""
'''
    expected = [
        (1, "Of a log."),
        (1, "What is told."),
        (1, "Who leads, tells."),
        (11, "Whose limit it is."),
        (15, "Of the log, and its own."),
        (23, "What this release knows:"),
        (23, "Whoever asks."),
        (27, "Who waits is told."),
    ]
    assert sorted(awkward_docstrings(docstrings(module))) == expected
    assert sorted(awkward_docstrings(compiled_docstrings(module))) == expected
    text = (
        "// Who asks.\n//\n// P1  What holds? Of two\n//     one.\nbytes head = 1;  // Of a head.\n  // Whose it is.\n"
    )
    assert awkward_comments(text, "//") == [(1, "Who asks."), (1, "Of two one."), (6, "Whose it is.")]
