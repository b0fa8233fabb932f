"""The commands of `liftlog` in one table. A command is imported when it runs, and not before.

typer makes every command of an app at the start: it imports all modules and reads all signatures, which takes longer
than a short command. A `Group` knows the name, the place and one line of help of each command, and makes only the one
that runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


class Leaf(NamedTuple):
    """A command: the module and name of its function. `help` is the first sentence of its docstring."""

    module: str
    name: str
    help: str


class Branch(NamedTuple):
    """A group of commands."""

    leaves: Mapping[str, Leaf]
    help: str


_COMMANDS: Final = "broker.cli.commands"
_STREAM, _CHANGES = f"{_COMMANDS}.stream", f"{_COMMANDS}.changes"
_CONSUMER, _SINK, _LOG = f"{_COMMANDS}.consumer", f"{_COMMANDS}.sink", f"{_COMMANDS}.log"

STREAM: Final = {
    "create": Leaf(_STREAM, "create", "Create a stream."),
    "list": Leaf(_STREAM, "list_", "List all streams."),
    "describe": Leaf(_STREAM, "describe", "Show the settings, warnings and partitions of one stream."),
    "alter": Leaf(_STREAM, "alter", "Change settings of a stream."),
    "delete": Leaf(_STREAM, "delete", "Delete a stream and all its records."),
    "pause": Leaf(_CHANGES, "pause", "Stop capturing and appending; reads go on."),
    "resume": Leaf(_CHANGES, "resume", "Capture and append again."),
    "read-only": Leaf(_CHANGES, "read_only", "Refuse every new record with an error; reads go on."),
    "trim": Leaf(_CHANGES, "trim", "Delete the records before a position, for good."),
    "add-partitions": Leaf(_CHANGES, "add_partitions", "Raise the number of partitions."),
}
CONSUMER: Final = {
    "list": Leaf(_CONSUMER, "list_", "List all consumers and their lag in each stream."),
    "describe": Leaf(_CONSUMER, "describe", "Show the offset and lag of one consumer in each partition."),
    "reset": Leaf(_CONSUMER, "reset", "Move the committed offsets of a consumer in one stream."),
    "delete": Leaf(_CONSUMER, "delete", "Forget the committed offsets of a consumer."),
}
SINK: Final = {
    "list": Leaf(_SINK, "list_", "List all sinks and the last batch of each."),
    "describe": Leaf(_SINK, "describe", "Show the last batch of one sink and where its rows went."),
    "reset": Leaf(_SINK, "reset", "Let a sink go on with any batch id."),
    "adopt": Leaf(_SINK, "adopt", "Give a sink to another checkpoint, because it was moved."),
    "delete": Leaf(_SINK, "delete", "Forget a sink."),
}
LOG: Final = {
    "verify": Leaf(_LOG, "verify", "Check every batch, index and small file."),
    "repair": Leaf(_LOG, "repair", "Repair a log as the next start would."),
    "dump": Leaf(_LOG, "dump", "Show what is stored, a line for each batch or record."),
    "export": Leaf(_LOG, "export", "Write records as Parquet, from files or from a broker."),
}
COMMANDS: Final[Mapping[str, Leaf | Branch]] = {
    "up": Leaf("broker.cli.local.up", "up", "Start a NATS server and a broker; nothing has to be configured."),
    "down": Leaf("broker.cli.local.down", "down", "Stop what `liftlog up` started in a folder."),
    "broker": Leaf(f"{_COMMANDS}.broker", "broker", "Run one broker until SIGTERM or Ctrl-C."),
    "stream": Branch(STREAM, "Streams: create, change, pause, trim, delete."),
    "publish": Leaf(f"{_COMMANDS}.publish", "publish", "Publish messages to a NATS subject."),
    "tail": Leaf(f"{_COMMANDS}.tail", "tail", "Show records of a stream."),
    "consumer": Branch(CONSUMER, "Consumers: list, describe, reset, delete."),
    "sink": Branch(SINK, "Exactly-once sinks: list, describe, reset, adopt, delete."),
    "log": Branch(LOG, "Files of a log: verify, dump, repair, export."),
    "doctor": Leaf(
        "broker.cli.doctor.command", "doctor", "Check folder, disk, limits, ports, NATS, clocks and versions."
    ),
}


class Made(Mapping[str, "Command"]):
    """The commands of a group; each is made the first time that somebody asks for it."""

    def __init__(self, places: Mapping[str, Leaf | Branch]) -> None:
        self.places = places
        self._made: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            place = self.places[name]
            self._made[name] = _group(name, place) if isinstance(place, Branch) else _command(name, place)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


class Group(TyperGroup):
    """Lists its commands without making them."""

    commands: Any

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in self.commands.places.items()])


class Root(Group):
    """`liftlog` itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Made(COMMANDS)


def _app(**more: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode=None, **more)


def _group(name: str, branch: Branch) -> Group:
    made = get_group(_app(cls=Group, name=name, help=branch.help, no_args_is_help=True))
    assert isinstance(made, Group)
    made.commands = Made(branch.leaves)
    return made


def _command(name: str, leaf: Leaf) -> Command:
    function: Callable[..., None] = getattr(importlib.import_module(leaf.module), leaf.name)
    app = _app()
    app.command(name)(function)
    return get_command(app)
