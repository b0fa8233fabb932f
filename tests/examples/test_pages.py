"""Goal: what README.md, docs/tutorial.md and other pages tell people to type works as it stands there.

Method: the commands and programs are taken from the pages and run in a shell, in a folder of their own, against what
the first of them starts: real NATS, broker and Spark. Only ports are exchanged, and the home page's own quickstart and
installation are left out. Where a page shows an output, the real one must have its lines, in their order; `…` stands
for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.config.master_keys import from_file
from tests.support.processes import BrokerProcess, eventually, free_port

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
GROUPS = (ROOT / "docs" / "guides" / "groups.md").read_text()
SINKS = (ROOT / "docs" / "guides" / "sinks.md").read_text()
README = (ROOT / "README.md").read_text()
SECURITY = (ROOT / "docs" / "guides" / "security.md").read_text()
HTTP = (ROOT / "docs" / "reference" / "http-api.md").read_text()
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Reader:
    """Somebody who types what a page says, in a folder and on ports of their own."""

    folder: Path
    base: int = field(default_factory=lambda: free_port(24))

    @property
    def env(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}
        clean.pop("SPARK_HOME")  # theirs is the installed one, with its zip files
        return {
            **clean,
            "PATH": f"{Path(sys.executable).parent}:{clean['PATH']}",
            "LIFTLOG_BROKERS": f"127.0.0.1:{self.base + 1}",
            "LIFTLOG_NATS_URL": f"nats://127.0.0.1:{self.base + 3}",
            "COLUMNS": "200",
        }

    def here(self, text: str) -> str:
        """The text with the ports of this reader."""
        text = text.replace("liftlog up", f"liftlog up --port-base {self.base}")
        text = text.replace(".load(", f'.option("brokers", "localhost:{self.base + 1}").load(')
        for number, port in enumerate((":9293", ":9303", ":9313")):
            text = text.replace(port, f":{self.base + 1 + 10 * number}")
        return text.replace(":4222", f":{self.base + 3}")

    def types(self, commands: str) -> str:
        """Run the commands; each must end with 0. Returns what they print."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(commands)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4_000:]}"
        return done.stdout

    def saves(self, program: str, name: str) -> None:
        (self.folder / name).write_text(self.here(program))

    def sees(self, shown: str, output: str) -> None:
        """The lines of a page in the output, in their order, whatever stands between them."""
        lines = [line.rstrip() for line in output.splitlines()]
        position = 0
        for line in self.here(shown).splitlines():
            parts = [r"\s+".join(map(re.escape, part.split())) for part in line.strip().split("…")]
            pattern = re.compile(r"\s*" + r"\s*.*?\s*".join(parts) + r"\s*")
            found = next((at for at in range(position, len(lines)) if pattern.fullmatch(lines[at])), None)
            assert found is not None, f"not printed: {line!r}\n{output[-4_000:]}"
            position = found + 1


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    subprocess.run(["liftlog", "down", "--force"], cwd=tmp_path, env=reader.env, check=True, capture_output=True)


@pytest.mark.parametrize("page", [TUTORIAL, GROUPS, SINKS, SECURITY], ids=["tutorial", "groups", "sinks", "security"])
def test_a_page_of_steps_works_as_it_stands(reader: Reader, page: str) -> None:
    output = None
    for kind, text in FENCED.findall(page):
        match kind:
            case "sh":
                output = reader.types(text)
            case "python":
                (name,) = re.findall(r"\A# (\w+\.py)$", text, re.MULTILINE)
                reader.saves(text, name)
            case "text":
                assert output is not None
                reader.sees(text, output)
            case _:
                raise AssertionError(f"a block of {kind}, and nobody runs it")
    assert not (reader.folder / "liftlog-data" / "run" / "up.json").exists(), "the last command stops all"


def _typed(page: str) -> list[str]:
    """The indented commands of a page, one after the other, without their comments."""
    lines = [line.strip() for line in page.splitlines() if re.match(r"    (liftlog|curl) ", line)]
    return [re.sub(r"  +#.*", "", line) for line in lines]


HARMLESS = re.compile(
    r"Traceback \(most recent call last\):\n(?:  .*\n)*  .*pyspark/daemon\.py.*\n(?:  .*\n)*BrokenPipeError: .*\n"
    r"|Traceback \(most recent call last\):\n(?:  .*\n?)*\Z"
)
"""A worker of Spark's that writes while the driver's process ends (docs/guides/spark.md, "A traceback that means
nothing"), whole or cut where the worker was ended: each seen once. The program itself has ended well by then."""


def test_the_home_page_works_as_it_stands(reader: Reader) -> None:
    section = README.partition("## Use it")[2].partition("## With your own NATS")[0]
    for command in _typed(section):
        assert reader.types(command) or command.startswith("liftlog stream")
    programs = [text for kind, text in FENCED.findall(section) if kind == "python"]
    assert len(programs) == 3
    printed = []
    for number, program in enumerate(programs):
        reader.saves(program.replace("print(await", "print('got', await"), f"program{number}.py")
        printed.append(reader.types(f"python program{number}.py"))
    assert "PubAck(stream='orders', seq=1001" in printed[0]
    assert "|orders.1| 1000|" in printed[1]
    assert "Traceback" not in HARMLESS.sub("", printed[1]), printed[1]
    assert (reader.folder / "orders-parquet" / "_spark_metadata").exists()


def test_the_calls_of_the_http_page_work_as_they_stand(reader: Reader) -> None:
    reader.types("liftlog up --detach")
    commands = [command for command in _typed(HTTP) if command.startswith("curl ")]
    assert len(commands) >= 9
    for command in commands:
        reader.types(f"{command} --silent --show-error --fail-with-body")


def test_the_section_on_encryption_works_as_it_stands(tmp_path: Path) -> None:
    """Its commands and files, one after the other, with a broker that is started again after each other file."""
    section = SECURITY.partition("## Encryption on disk")[2].partition("**Files.**")[0]
    section = section.replace("/etc/liftlog", str(tmp_path))
    section = section.replace(section.partition("**From a KMS.**")[2].partition("**Another master key.**")[0], "")
    blocks = re.findall(r"(?:^    .+\n)+", section, re.MULTILINE)
    config, reader = tmp_path / "broker.toml", Reader(tmp_path)
    command = ("broker.cli.main", "broker", "--config", str(config))
    broker = BrokerProcess(tmp_path / "broker", None, command=command, port=reader.base + 1)
    files = 0
    try:
        for block in (textwrap.dedent(each) for each in blocks):
            if block.startswith("["):
                assert broker.stop() == 0
                config.write_text(block)
                broker.start()
                files += 1
            else:
                reader.types(block)
        assert files == 2
        assert '"encryption":"aes-256-gcm"' in re.sub(r"\s", "", reader.types("liftlog stream describe orders --json"))
        of_old = from_file(str(tmp_path / "master.key"), setting="x").id
        name = f'liftlog_encryption_logs{{master="{of_old}"}}'
        eventually(
            lambda: f"{name} 0.0" in broker.get("/metrics").decode().splitlines(), what="no log needs the old key"
        )
    finally:
        broker.stop()


def test_the_pages_agree_on_how_to_install() -> None:
    def block(page: str) -> str:
        return page.partition("    python3 -m venv .venv\n")[2].partition("\n\n")[0]

    assert block(TUTORIAL) == block(README) != ""


def test_every_page_stands_behind_the_front_door() -> None:
    front = (ROOT / "docs" / "README.md").read_text()
    docs = ROOT / "docs"
    linked = {(docs / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", front)}
    pages = {path for path in docs.rglob("*.md") if path.parent != docs / "adr"} - {docs / "README.md"}
    assert pages <= linked, [str(page.relative_to(docs)) for page in sorted(pages - linked)]
    assert all(path.exists() for path in linked)
