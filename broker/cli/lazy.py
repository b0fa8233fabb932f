"""The commands of `liftlog` in one table. A command is imported when it runs, and not before.

To import all of them takes longer than a short command runs. A `LazyGroup` knows the name, the place and one line of
help of each command, and makes only the one that runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NamedTuple

import click

from broker.cli.arguments import command

NAMED_AT_ONCE: Final = 4
"""So many commands are named to somebody who mistyped one."""


class Leaf(NamedTuple):
    """A command: the module and name of its function. `help` is the first sentence of its docstring."""

    module: str
    name: str
    help: str


class Branch(NamedTuple):
    """A group of commands."""

    leaves: Mapping[str, Leaf | Branch]
    help: str


_COMMANDS: Final = "broker.cli.commands"
_STREAM, _CONSUMER = f"{_COMMANDS}.stream", f"{_COMMANDS}.consumer"
_SINK, _LOG, _CLUSTER = f"{_COMMANDS}.sink", f"{_COMMANDS}.log", f"{_COMMANDS}.cluster"

STREAM: Final = {
    "create": Leaf(_STREAM, "create", "Create a stream."),
    "list": Leaf(_STREAM, "list_", "List all streams."),
    "describe": Leaf(_STREAM, "describe", "Show the settings, warnings and partitions of one stream."),
    "alter": Leaf(_STREAM, "alter", "Change settings of a stream."),
    "delete": Leaf(_STREAM, "delete", "Delete a stream and all its records."),
    "pause": Leaf(_STREAM, "pause", "Stop capturing and appending; reads go on."),
    "resume": Leaf(_STREAM, "resume", "Capture and append again."),
    "read-only": Leaf(_STREAM, "read_only", "Refuse every new record with an error; reads go on."),
    "trim": Leaf(_STREAM, "trim", "Delete the records before a position, for good."),
    "add-partitions": Leaf(_STREAM, "add_partitions", "Raise the number of partitions."),
}
CONSUMER: Final = {
    "list": Leaf(_CONSUMER, "list_", "List all consumers and their lag in each stream."),
    "describe": Leaf(_CONSUMER, "describe", "Show the offset and lag of one consumer in each partition."),
    "reset": Leaf(_CONSUMER, "reset", "Move the committed offsets of a consumer in one stream."),
    "delete": Leaf(_CONSUMER, "delete", "Forget the committed offsets of a consumer."),
}
GROUP: Final = {
    "list": Leaf(f"{_COMMANDS}.group", "list_", "List all consumer groups."),
    "describe": Leaf(
        f"{_COMMANDS}.group", "describe", "Show the member, offset and lag of a consumer group in each partition."
    ),
    "reset": Leaf(f"{_COMMANDS}.group", "reset", "Move a consumer group in one stream."),
    "delete": Leaf(f"{_COMMANDS}.group", "delete", "Remove a consumer group and its offsets."),
}
PRODUCER: Final = {
    "list": Leaf(f"{_COMMANDS}.producer", "list_", "List the producers that have names."),
    "delete": Leaf(f"{_COMMANDS}.producer", "delete", "Forget the name of a producer."),
}
SINK: Final = {
    "list": Leaf(_SINK, "list_", "List all sinks and the last batch of each."),
    "describe": Leaf(_SINK, "describe", "Show the last batch of one sink and where its rows went."),
    "reset": Leaf(_SINK, "reset", "Let a sink go on with any batch id."),
    "adopt": Leaf(_SINK, "adopt", "Give a sink to another checkpoint, because it was moved."),
    "delete": Leaf(_SINK, "delete", "Forget a sink."),
}
_RESCUE: Final = f"{_COMMANDS}.rescue"
RESCUE: Final = {
    "begin": Leaf(_RESCUE, "begin", "Found the cluster anew with the catalog of this broker."),
    "join": Leaf(_RESCUE, "join", "Have this broker join the cluster that was founded anew."),
    "status": Leaf(_RESCUE, "status", "Show who has reported in a rescue, and who is missing."),
    "excuse": Leaf(_RESCUE, "excuse", "Give up what a broker may have had."),
    "end": Leaf(_RESCUE, "end", "End the rescue: in each partition the most complete log leads."),
}
CERTS: Final = {
    "init": Leaf(
        f"{_COMMANDS}.certs",
        "init",
        "Make a private CA: DIR/ca.pem, which clients and brokers believe, and its key, DIR/ca.key.",
    ),
    "issue": Leaf(
        f"{_COMMANDS}.certs", "issue", "Issue a certificate of the CA in DIR: DIR/NAME.pem, and its key, DIR/NAME.key."
    ),
    "revoke": Leaf(
        f"{_COMMANDS}.certs",
        "revoke",
        "Revoke a certificate: it is added to DIR/ca.crl, for http.tls_crl and cluster.tls_crl.",
    ),
}
CLUSTER: Final[Mapping[str, Leaf | Branch]] = {
    "status": Leaf(_CLUSTER, "status", "Show the brokers, votes and controller, as one broker knows them."),
    "partitions": Leaf(_CLUSTER, "partitions", "Show who keeps, leads and follows each partition."),
    "reassign": Leaf(_CLUSTER, "reassign", "Have other brokers keep a partition."),
    "elect": Leaf(_CLUSTER, "elect", "Have preferred replicas lead, or one that may lack records."),
    "accept-loss": Leaf(_CLUSTER, "accept_loss", "Give up what is damaged, where nobody else has it."),
    "drain": Leaf(_CLUSTER, "drain", "Have other brokers keep what a broker keeps."),
    "remove-broker": Leaf(_CLUSTER, "remove_broker", "Give up a broker for good."),
    "rescue": Branch(RESCUE, "Rebuild a cluster that lost a majority of its voters for good."),
}
_AUTH: Final = f"{_COMMANDS}.auth"
TOKEN: Final = {
    "create": Leaf(_AUTH, "create", "Make a token of a principal and write it to a file that only its owner can read."),
    "list": Leaf(_AUTH, "list_tokens", "List the tokens, without their secrets."),
    "revoke": Leaf(_AUTH, "revoke_token", "Revoke a token."),
}
AUTH: Final[Mapping[str, Leaf | Branch]] = {
    "init": Leaf(_AUTH, "init", "Write a first token to a file, for brokers and their admin."),
    "whoami": Leaf(_AUTH, "whoami", "Show who this is, as a broker sees it, and what it may do."),
    "token": Branch(TOKEN, "Tokens: create, list, revoke."),
    "grant": Leaf(_AUTH, "grant", "Let a principal do something."),
    "revoke": Leaf(_AUTH, "revoke", "Take a grant back, by the name that was granted."),
    "list": Leaf(_AUTH, "list_grants", "List what each principal is granted."),
    "require": Leaf(_AUTH, "require", "Have every broker enforce, whatever its configuration says."),
    "test": Leaf(_AUTH, "may", "Say whether a principal may do something."),
}
SECRET: Final = {
    "new": Leaf(f"{_COMMANDS}.secret", "new", "Write a new secret to a file that only its owner can read."),
    "master-key": Leaf(
        f"{_COMMANDS}.secret", "master_key", "Write a new master key to a file that only its owner can read."
    ),
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
    "group": Branch(GROUP, "Consumer groups: list, describe, reset, delete."),
    "producer": Branch(PRODUCER, "Names of idempotent producers: list, delete."),
    "sink": Branch(SINK, "Exactly-once sinks: list, describe, reset, adopt, delete."),
    "cluster": Branch(CLUSTER, "The cluster: its brokers, who keeps what, and moving it."),
    "certs": Branch(CERTS, "A private CA, and certificates of it for brokers and clients."),
    "auth": Branch(AUTH, "Who may do what: tokens and grants."),
    "secret": Branch(SECRET, "The secret by which the brokers of a cluster know each other, and master keys."),
    "log": Branch(LOG, "Files of a log: verify, dump, repair, export."),
    "doctor": Leaf(
        "broker.cli.doctor.command", "doctor", "Check folder, disk, limits, ports, NATS, clocks and versions."
    ),
}


class LazyGroup(click.Group):
    """Lists its commands without making them; each is made the first time that somebody asks for it."""

    def __init__(self, name: str, places: Mapping[str, Leaf | Branch], **more: Any) -> None:
        super().__init__(name, no_args_is_help=True, **more)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self.places:
            self.commands[cmd_name] = _made(cmd_name, self.places[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.places and not args[0].startswith("-"):
            raise self._unknown(args[0], ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, given: str, ctx: click.Context) -> click.NoSuchCommand:
        """The error, with commands of that name in other groups; else with those of a name like it, these first."""
        near = partial(get_close_matches, given, cutoff=0.75)
        paths = sorted(_paths(COMMANDS), key=lambda path: (path.count(" "), path))
        names = {path.split()[-1] for path in paths}
        wanted = {given} & names or (set() if near(self.places) else set(near(names)))
        found = [f"'liftlog {path}'" for path in paths if path.split()[-1] in wanted][:NAMED_AT_ONCE]
        if not found:
            return click.NoSuchCommand(given, possibilities=self.places, ctx=ctx)
        return click.NoSuchCommand(given, f"No such command {given!r}. Did you mean {' or '.join(found)}?", ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in self.places.items()])


def _paths(places: Mapping[str, Leaf | Branch]) -> Iterator[str]:
    """`stream`, `stream list` and so on."""
    for name, place in places.items():
        yield name
        if isinstance(place, Branch):
            yield from (f"{name} {path}" for path in _paths(place.leaves))


def _made(name: str, place: Leaf | Branch) -> click.Command:
    if isinstance(place, Branch):
        return LazyGroup(name, place.leaves, help=place.help)
    return command(name, getattr(importlib.import_module(place.module), place.name))
