"""Goal: what is wrong is refused with its code and no traceback, and docs/reference/cli.md tells all there is.

Method: click's runner for parsing; real `liftlog` processes for exit codes; the page held against the app.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from broker import __version__
from broker.api.stream import SHAPES, StreamSettings
from broker.cli.commands.publish import generated, headers_of, lines
from broker.cli.lazy import COMMANDS
from broker.cli.local.datafolder import Record, UpFolder
from broker.cli.local.processes import ProcessIdentity
from broker.cli.main import app
from broker.cli.options import NONE
from broker.cli.output import table
from broker.storage import DataFolder

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
COMMAND: Any = app
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}
NOWHERE = "127.0.0.1:1"


def _commands(command: Any = COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name in command.places:
        child = command.get_command(None, name)
        if hasattr(child, "places"):
            yield from _commands(child, (*path, name))
        else:
            yield " ".join((*path, name)), child


LEAVES = dict(_commands())


def _run(*arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "broker.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**CLEAN, **(env or {})},
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def _sections() -> dict[str, str]:
    found = re.split(r"^## `liftlog ([a-z -]+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(_sections()) == set(LEAVES)


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_of_a_command_is_on_the_page(name: str) -> None:
    section = _sections()[name]
    for parameter in LEAVES[name].params:
        for flag in (*parameter.opts, *parameter.secondary_opts):
            if flag.startswith("-") and flag not in ("-h", "--help"):
                assert flag in section, f"{name}: {flag} is not documented"


@pytest.mark.parametrize("key", SHAPES)
def test_help_shows_the_default_of_a_setting_where_a_stream_is_made_and_only_there(key: str) -> None:
    texts, parsers = {}, {}
    for name in ("stream create", "stream alter"):
        found = next((option for option in LEAVES[name].params if option.name == key), None)
        texts[name], parsers[name] = getattr(found, "help", ""), getattr(found, "type", None)
    shown = re.search(r" \[([^]]+)\]\.$", texts["stream create"])
    default = getattr(StreamSettings(), key)
    if shown is None:
        assert default is None
    elif isinstance(default, bool):
        assert shown[1] == ("yes" if default else "no")
    else:
        read = parsers["stream create"].convert(shown[1], None, None)
        assert (None if read == NONE and key.startswith("retention") else read) == default
    assert "[" not in texts["stream alter"]


def test_every_global_option_is_on_the_page() -> None:
    for parameter in COMMAND.params:
        assert any(flag in PAGE for flag in parameter.opts), parameter.opts


def _examples() -> list[str]:
    found = []
    for block in re.findall(r"^    \S.*$", PAGE, flags=re.MULTILINE):
        for part in re.split(r" \| ", block.strip()):
            part = re.sub(r"^(LIFTLOG_\w+=\S+ )+", "", part.split(" > ")[0])
            if part.startswith("liftlog "):
                found.append(part)
    return found


def test_every_command_has_an_example() -> None:
    for name in LEAVES:
        assert any(example.startswith(f"liftlog {name}") for example in _examples()), name


@pytest.mark.parametrize("example", _examples())
def test_every_example_is_accepted_by_the_parser(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("orders.ndjson", "orders.ddl"):
        (tmp_path / name).write_text("")
    words = shlex.split(example)[1:]
    command, context = COMMAND, None
    while hasattr(command, "places"):
        context = command.make_context(words[0], [], parent=context, resilient_parsing=True)
        command = command.get_command(context, words.pop(0))
    with command.make_context(example, words, parent=context):
        pass


@pytest.mark.parametrize("name", ["", *LEAVES, "stream", "consumer", "sink"])
def test_help_works_everywhere(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize("name", LEAVES)
def test_the_table_of_commands_has_the_first_sentence_of_each(name: str) -> None:
    """Help of a group is made from the table, that of a command from its docstring."""
    *groups, last = name.split()
    places: Any = COMMANDS
    for group in groups:
        places = places[group].leaves
    place = places[last]
    assert f"{' '.join(LEAVES[name].help.split())} ".startswith(f"{place.help} ")


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from broker.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('rich', 'pyarrow', 'nats', 'aiohttp', 'numpy', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=CLEAN)
    assert done.stdout.endswith("[]\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert _run("--help")[0] == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    )  # CPU: others may be busy, and some machines are slow


@pytest.mark.parametrize(
    "arguments",
    [
        "nonsense",
        "stream",
        "stream create",
        "stream create a --partitions many",
        "stream create a --retention-ms soon",
        "stream create a --segment-bytes 5XB",
        "stream alter a",
        "stream alter a --replication-factor 0",
        "stream alter a --replication-factor 10",
        "stream trim a",
        "stream trim a --before earliest",
        "stream trim a --before -1",
        "stream add-partitions a",
        "stream add-partitions a 0",
        "tail a --from yesterday",
        "tail a --limit -1",
        "publish a",
        "publish a hello --count 3",
        "publish a hello --size 3",
        "publish a --count 1000 --size 2",
        "publish a --file /nowhere/at/all",
        "publish a hi --header nocolon",
        "publish a hi --timeout-s inf",
        "publish a hi --creds /nowhere/at/all",
        "up --data ''",
        "down --data ''",
        "doctor --data ''",
        "log verify ''",
        "log repair ''",
        "log export orders --parquet ''",
        "consumer reset c --stream s",
        "consumer reset c --stream s --to nowhere",
        "up --port-base 70000",
        "up --port-base x",
        "broker --set http.port",
    ],
)
def test_wrong_usage_is_code_2(arguments: str) -> None:
    result = CliRunner().invoke(app, shlex.split(arguments), env={"LIFTLOG_BROKERS": NOWHERE})
    assert result.exit_code == 2, result.output


def test_what_cannot_be_undone_asks_first() -> None:
    result = CliRunner().invoke(app, ["sink", "reset", "s", "--next-batch", "1"], input="n\n")
    assert result.exit_code == 1
    assert "? [y/N]: " in result.output


@pytest.mark.parametrize(
    "arguments, code, reason",
    [
        ("--retry-s 0 stream list", 3, "unavailable"),
        ("publish a hello", 3, "unavailable"),
        ("up --nats http://127.0.0.1", 1, "invalid_setting"),
        ("broker --config nowhere.toml", 1, "invalid_request"),
        ("broker --set http.prot=1", 1, "unknown_setting"),
        ("broker --set http.port=99999", 1, "invalid_setting"),
        ("--brokers u:p@h stream list", 1, "invalid_request"),
        ("publish a.* hello", 1, "invalid_subject"),
        ("publish a hello --nats nats://", 1, "invalid_request"),
        ("publish a hello --nats nats://h:99999", 1, "invalid_request"),
        ("publish a hello --nats http://h:4222", 1, "invalid_request"),
        ("publish a hello --nats garbage:::", 1, "invalid_request"),
        ("publish a hello --nats nats://ann:hunter2@h:99999", 1, "invalid_request"),
        ("up --data /etc/passwd", 1, "folder_not_allowed"),
    ],
)
def test_errors_of_the_tree_are_one_line_with_reason_and_code(
    arguments: str, code: int, reason: str, tmp_path: Path
) -> None:
    env = {"LIFTLOG_BROKERS": NOWHERE, "LIFTLOG_NATS_URL": f"nats://{NOWHERE}"}
    found, out, err = _run(*shlex.split(arguments), env=env, cwd=tmp_path)
    assert (found, out) == (code, "")
    assert re.fullmatch(rf"error\[{reason}\]: .+\n", err), err
    assert "hunter2" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_stray_variable_is_named_by_up_and_broker(tmp_path: Path) -> None:
    for arguments in (["up", "--data", str(tmp_path / "d")], ["broker", "--check"]):
        code, _, err = _run(*arguments, env={"LIFTLOG_HTTP_PRT": "1"}, cwd=tmp_path)
        assert code == 1
        assert "LIFTLOG_HTTP_PORT" in err


@pytest.mark.parametrize("before,after", [(["--json"], []), ([], ["--json"])])
def test_check_as_json_keeps_the_types_and_tells_no_secrets(before: list[str], after: list[str]) -> None:
    code, out, _ = _run(*before, "broker", "--check", *after, env={"LIFTLOG_NATS_TOKEN": "hunter2"})
    held = json.loads(out)
    assert code == 0
    assert (held["http.port"], held["intake.enabled"], held["nats.token"]) == (9293, True, "***")


def test_check_prints_what_holds_without_secrets() -> None:
    code, out, _ = _run("broker", "--check", "--set", "nats.user=u", env={"LIFTLOG_NATS_PASSWORD": "hunter2"})
    assert code == 0
    assert "nats.password = ***" in out
    assert "hunter2" not in out


def test_options_may_stand_before_the_command_and_nearer_wins() -> None:
    env = {"LIFTLOG_BROKERS": "environment:0"}  # port 0: refused before anybody is asked
    for arguments, named in (
        ("stream list", "environment"),
        ("--brokers before:0 stream list", "before"),
        ("--brokers before:0 stream list --brokers after:0", "after"),
    ):
        assert f"'{named}:0'" in _run(*arguments.split(), env=env)[2]


def test_a_brokers_folder_and_that_of_up_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """A restored backup looked lost: `up` started an empty broker inside it."""
    mine = tmp_path / "data" / "broker-0"
    DataFolder.open(mine, broker_id="broker-0").close()
    up = ["up", "--detach", "--data", str(mine), "--nats", f"nats://{NOWHERE}", "--port-base", "1"]
    for arguments in (up, ["down", "--data", str(mine)]):
        code, _, err = _run(*arguments)
        assert code == 1
        assert err.startswith("error[wrong_folder]")
        assert f"liftlog up --data {tmp_path}/data" in err
    code, _, err = _run("broker", "--set", f"data_dir={tmp_path}/data", "--set", "intake.enabled=false")
    assert code == 1
    assert f"set data_dir to {mine}" in err
    assert not (mine / "broker-0").exists()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["broker-0"]


@pytest.mark.parametrize(
    "given, named",
    [
        (["strem"], "'stream'"),
        (["stream", "lst"], "'list'"),
        (["status"], "'liftlog cluster status' or 'liftlog cluster rescue status'"),
        (["verify"], "'liftlog log verify'"),
        (["stream", "verify"], "'liftlog log verify'"),
        (["craete"], "'liftlog stream create' or 'liftlog auth token create'"),
        (["rescue"], "'liftlog cluster rescue'"),
    ],
)
def test_a_mistyped_command_is_told_the_nearest_in_any_group(given: list[str], named: str) -> None:
    code, _, err = _run(*given)
    assert code == 2
    assert err.endswith(f"No such command '{given[-1]}'. Did you mean {named}?\n")


def test_a_command_like_no_other_is_told_none() -> None:
    assert _run("frobnicate")[2].endswith("No such command 'frobnicate'.\n")


def test_down_where_nothing_runs_is_fine_and_makes_nothing(tmp_path: Path) -> None:
    code, out, err = _run("down", "--data", str(tmp_path / "none"), "--json")
    assert code == 0
    assert out == f'{{"data": "{tmp_path / "none"}", "stopped": {{}}}}\n'
    assert err == ""
    assert not (tmp_path / "none").exists()


def test_down_says_which_recorded_process_it_leaves_alone(tmp_path: Path) -> None:
    """Its pid lives, but it is another process by now: here, the one that runs this test."""
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    former = ProcessIdentity(pid=me.pid, started_ticks=1, boot_id=me.boot_id, command=("broker",))
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    folder.save(
        Record(
            http="127.0.0.1:1",
            grpc="127.0.0.1:2",
            nats_url="nats://127.0.0.1:3",
            nats_embedded=True,
            mode="detached",
            processes={"broker-0": former},
        )
    )
    code, _, err = _run("down", "--data", str(tmp_path / "data"))
    assert code == 0
    assert f"left alone: pid {me.pid}, recorded as broker-0" in err


def test_generated_payloads_begin_with_their_number_and_have_the_size() -> None:
    payloads = list(generated(11, 4))
    assert payloads[0] == b"0 xx"
    assert payloads[10] == b"10 x"
    assert list(generated(10, 1)) == [str(n).encode() for n in range(10)]


def test_lines_lose_their_ends_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a\n\nb\r\n \xff\rc\nlast")
    with path.open("rb") as file:
        assert list(lines(file)) == [b"a", b"", b"b", b" \xff\rc", b"last"]


def test_headers_are_split_at_the_first_colon() -> None:
    assert headers_of("k", ["a: b:c"]) == {"Liftlog-Key": "k", "a": "b:c"}
    with pytest.raises(click.BadParameter):
        headers_of(None, ["a:1", "a:2"])


def test_without_the_extra_the_command_says_what_is_missing() -> None:
    """As where only the client or Spark's executors run. Method: a click that is not there."""
    code = "import sys; sys.modules['click'] = None\nfrom broker.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error[missing_package]: the command needs click, which comes with the extra [broker]"
    )
    assert len(done.stderr.splitlines()) == 1


def test_the_installed_command_is_the_app() -> None:
    code = "import sys; sys.argv = ['liftlog', '--version']; from broker.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, f"liftlog {__version__}\n")


@pytest.mark.parametrize("arguments", ["broker --defaults", "broker --help", "--version"])
def test_a_full_disk_behind_stdout_is_no_fault_of_ours_and_nobody_there_is_no_fault_at_all(arguments: str) -> None:
    """The output is longer than a buffer, and shorter: the error comes from a write, or from the last flush."""
    command = f"{shlex.quote(sys.executable)} -m broker.cli.main {arguments}"
    for redirect, codes, said in (
        (">/dev/full", {1}, "error[disk_full]: the output cannot be written: No space left on device\n"),
        (">&-", {0}, ""),
        ("| exec 0<&-", {0, 1}, ""),
    ):
        done = subprocess.run(
            ["sh", "-c", f"{command} {redirect}"], capture_output=True, text=True, check=False, env=CLEAN, timeout=120
        )
        assert done.returncode in codes, done.stderr
        assert done.stderr == said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_that_cannot_show_a_character_shows_its_escape(encoding: str, tmp_path: Path) -> None:
    """In help, in what a command prints, in its errors, and as JSON's own escape in JSON."""
    env = {"PYTHONIOENCODING": encoding, "LIFTLOG_BROKER_ID": "b\u017e\U0001f600", "LC_ALL": "C"}
    text = _run("broker", "--check", "--set", "data_dir=d\u017e\U0001f600", env={"PYTHONIOENCODING": encoding})
    assert text[0] == 0
    assert "data_dir = d\\u017e" in text[1]
    assert "\\U0001f600" in text[1]
    value = json.loads(
        _run(
            "broker",
            "--check",
            "--json",
            "--set",
            "data_dir=d\u017e\U0001f600",
            env={"PYTHONIOENCODING": encoding},
        )[1]
    )
    assert value["data_dir"] == "d\u017e\U0001f600"
    code, _, err = _run("broker", "--check", env=env)
    assert code == 1
    assert err.startswith("error[invalid_setting]: ")
    for name in ("", "stream", "stream create", "publish", "doctor"):
        assert _run(*name.split(), "--help", env={"PYTHONIOENCODING": encoding})[0] == 0


def test_a_file_name_that_is_not_utf8_can_be_told(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(path)
    for more in ([], ["--json"]):
        done = subprocess.run(
            [
                os.fsencode(sys.executable),
                b"-m",
                b"broker.cli.main",
                b"doctor",
                b"--data",
                path,
                *map(str.encode, more),
            ],
            capture_output=True,
            check=False,
            env=CLEAN,
            cwd=ROOT,
        )
        assert b"Traceback" not in done.stderr
        assert b"internal" not in done.stderr
        assert b"caf\\udce9" in done.stdout
    assert json.loads(done.stdout)["data"] == os.fsdecode(path)


def test_ctrl_c_while_the_command_is_loaded_shows_no_traceback() -> None:
    """Method: a module of the command that is interrupted while it is imported."""
    code = (
        "import os, signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'broker.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from broker.cli.start import main\n"
        "sys.argv = ['liftlog', '--version']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_terminal_that_is_too_narrow_for_a_table_still_gets_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    table(["stream", "subject", "records", "created (UTC)"], [("orders", "orders.>", 123_456, "2026-01-31")])
    monkeypatch.undo()
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert {"stream", "subject", "records", "created"} <= set(text.split())
    assert "123456" in text


def test_columns_stand_below_each_other_whatever_the_width_of_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    table(["name", "n"], [("漢字", 1), ("a\u0301", 22), (None, None)])
    assert capsys.readouterr().out.splitlines() == [
        "name   n",
        "----  --",
        "漢字   1",
        "a\u0301     22",
        "-      -",
    ]
