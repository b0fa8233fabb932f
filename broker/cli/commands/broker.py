"""`liftlog broker`: one broker in the foreground, as a service manager runs it."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import click

from broker.cli.arguments import Option
from broker.cli.options import Json, is_json
from broker.cli.output import json_out


def broker(
    ctx: click.Context,
    config: Annotated[str | None, Option("--config", metavar="FILE", help="TOML file with settings.")] = None,
    assignments: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="One setting; wins over file and environment; repeatable."),
    ] = None,
    defaults: Annotated[
        bool, Option("--defaults", help="Print every setting with its default, as a TOML file, and exit.")
    ] = False,
    insecure: Annotated[
        bool, Option("--insecure", help="Listen beyond loopback without TLS or auth.mode = enforce.")
    ] = False,
    check: Annotated[bool, Option("--check", help="Read the configuration, print it, and exit.")] = False,
    json: Json = False,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C."""
    from broker.config.configuration import describe, load
    from broker.config.table import annotated

    if defaults:
        sys.stdout.write(annotated())
        return
    loaded = load(config, os.environ, {**assigned(assignments or []), **({"insecure": True} if insecure else {})})
    if check and loaded.intake.enabled:
        from broker.config.nats_options import checked_options

        checked_options(loaded.nats)
    if check:
        from broker.config.auth import check_auth_files
        from broker.config.certificates import certificates_of

        certificates_of(loaded.http)
        certificates_of(loaded.cluster, broker=loaded.broker_id)
        check_auth_files(loaded)
    if check and loaded.cluster.voters:
        from broker.control.identity import check_secret, identity_from

        identity = identity_from(loaded)
        check_secret(None if identity is None else identity.secret)
    if check and is_json(ctx, json):
        json_out(describe(loaded))
        return
    if check:
        for key, value in describe(loaded).items():
            sys.stdout.write(f"{key} = {value}\n")
        return

    gc.disable()  # what is imported here stays, for good: no search for cycles goes through it, now or later
    from broker.runtime.broker import run
    from broker.runtime.logs import setup
    from broker.runtime.without_pandas import do_without_pandas

    do_without_pandas()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    setup(loaded.log.level, loaded.log.format)
    raise click.exceptions.Exit(run(loaded))


GC_THRESHOLDS = (20_000, 20, 20)
"""So much is made before it is searched for cycles, with all threads standing still. Nearly all goes without that."""


def assigned(assignments: list[str]) -> dict[str, object]:
    """`KEY=VALUE` texts as overrides.

    Raises:
        UnknownSetting: a key that does not exist.
    """
    from broker.config.configuration import from_text

    values: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise click.BadParameter(f"{assignment!r}: expected KEY=VALUE", param_hint="--set")
        values[key.strip()] = from_text(key.strip(), text, source="--set")
    return values
