"""`liftlog doctor`: is everything here as a broker needs it, and what to do where it is not."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from broker.api.http import DEFAULT_PORT, host_port
from broker.cli.exits import FAILED
from broker.cli.options import Brokers, Json, Nats, globals_of, is_json
from broker.cli.output import json_out, note, table


def doctor(
    ctx: typer.Context,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Folder of a broker, or of `up` [as configured].")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help="TOML file of the broker.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, over file and environment; repeatable."),
    ] = None,
    brokers: Brokers = None,
    nats: Nats = None,
    json: Json = False,
) -> None:
    """Check folder, disk, limits, ports, NATS, clocks and versions. Exit code 1 if something is wrong."""
    from broker.api.errors import LiftlogError
    from broker.cli.broker import assigned
    from broker.cli.checks import OK, WRONG, Check, as_json, worst_of
    from broker.cli.checks_folder import check_catalog, check_file_times, check_folder
    from broker.cli.checks_machine import check_compiled, check_disk, check_fsync, check_limits, check_versions
    from broker.cli.checks_network import check_broker, check_nats
    from broker.cli.datafolder import DataFolder
    from broker.runtime.config import Config, load
    from broker.runtime.nats_options import checked_options
    from broker.storage.places import used_by

    checks: list[Check] = []
    try:
        loaded = load(config, os.environ, assigned(assignments or []))
        if loaded.intake.enabled:
            checked_options(loaded.nats)
        checks.append(Check(name="configuration", status=OK, found=config or "defaults and environment"))
    except LiftlogError as error:
        loaded = Config()
        advice = "correct it; what follows was checked with the defaults"
        checks.append(Check(name="configuration", status=WRONG, found=str(error), advice=advice))
    folder = os.path.abspath(data or loaded.data_dir)
    if os.path.isdir(f"{folder}/{loaded.broker_id}"):
        folder = f"{folder}/{loaded.broker_id}"
    record = DataFolder(os.path.dirname(folder)).load()  # of `up`, where it was that made the folder
    user = used_by(folder)
    addresses = brokers or globals_of(ctx).brokers or (record.http if record else None)
    addresses = addresses or loaded.http.advertised or host_port(loaded.http.host, loaded.http.port)
    urls = nats or globals_of(ctx).nats or (record.nats_url if record else None)

    checks += check_versions()
    checks += check_compiled(loaded.intake.implementation)
    checks += check_folder(folder, loaded.broker_id)
    found, partitions = check_catalog(folder)
    checks += found
    checks += check_disk(folder)
    checks += check_fsync(folder)
    checks += check_limits(
        partitions,
        user,
        open_files_max=loaded.limits.open_files_max,
        connections_max=loaded.http.connections_max,
    )
    checks += check_file_times(folder, time.time())
    for address in addresses.split(","):
        checks += check_broker(_local(address.strip()), in_use=user is not None)
    if loaded.intake.enabled:
        wanted = urls.split(",") if urls else loaded.nats.urls
        checks += check_nats(wanted, record_bytes_max=loaded.defaults.record_bytes_max)

    if is_json(ctx, json):
        json_out(as_json(checks, {"data": folder}))
    else:
        table(["check", "status", "found"], [(check.name, check.status, check.found) for check in checks])
        for check in checks:
            if check.advice:
                note(f"{check.status}: {check.name}: {check.found}")
                note(f"    -> {check.advice}")
    if worst_of(checks) == WRONG:
        raise typer.Exit(FAILED)


def _local(address: str) -> str:
    """host:port to ask at: a broker that listens everywhere is asked on loopback."""

    address = address.removeprefix("http://").rstrip("/")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        host, port = address, str(DEFAULT_PORT)
    return f"{'127.0.0.1' if host in ('0.0.0.0', '') else '::1' if host in ('::', '[::]') else host}:{port}"
