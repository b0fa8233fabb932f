"""`liftlog doctor`: is everything here as a broker needs it, and what to do where it is not.

Which broker and which NATS server are asked:

    --brokers, --nats    only these
    --profile            only its brokers
    else                 the broker of the folder, as it runs or as it is configured, and
                         those of LIFTLOG_BROKERS (or LIFTLOG_PROFILE) and LIFTLOG_NATS_URL: every other command goes
                         there
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import click

from broker.api import environment
from broker.api.environment import BROKERS_VARIABLE, NATS_VARIABLE, PROFILE_VARIABLE
from broker.api.http import host_port
from broker.cli.arguments import Option
from broker.cli.exits import FAILED
from broker.cli.options import Brokers, Json, Nats, globals_of, is_json, not_empty
from broker.cli.output import json_out, note, table


def doctor(
    ctx: click.Context,
    data: Annotated[
        str | None,
        Option("--data", metavar="DIR", help="Folder of a broker, or of `up` [as configured].", callback=not_empty),
    ] = None,
    config: Annotated[str | None, Option("--config", metavar="FILE", help="TOML file of the broker.")] = None,
    assignments: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="One setting; wins over file and environment; repeatable."),
    ] = None,
    brokers: Brokers = None,
    nats: Nats = None,
    json: Json = False,
) -> None:
    """Check folder, disk, limits, ports, NATS, clocks and versions. The exit code is 1 if something is wrong."""
    from broker.api.errors import LiftlogError
    from broker.cli.commands.broker import assigned
    from broker.cli.doctor.checks import OK, WRONG, Check, as_json, worst_of
    from broker.cli.doctor.folder import check_catalog, check_file_times, check_folder, check_master_keys
    from broker.cli.doctor.machine import (
        check_certificate,
        check_compiled,
        check_disk,
        check_fsync,
        check_limits,
        check_versions,
    )
    from broker.cli.doctor.network import check_broker, check_nats, files_of
    from broker.cli.local.datafolder import UpFolder
    from broker.client.http.profiles import brokers_for, files_for, profile_of
    from broker.client.http.tls import TlsFiles
    from broker.config.auth import check_auth_files
    from broker.config.certificates import certificates_of
    from broker.config.configuration import Config, load
    from broker.config.nats_options import checked_options
    from broker.storage.inspect.places import used_by

    checks: list[Check] = []
    try:
        loaded = load(config, os.environ, assigned(assignments or []))
        if loaded.intake.enabled:
            checked_options(loaded.nats)
        certificates = certificates_of(loaded.http)
        between = certificates_of(loaded.cluster, broker=loaded.broker_id)
        check_auth_files(loaded)
        checks.append(Check("configuration", OK, config or "defaults and environment"))
    except LiftlogError as error:
        loaded, certificates, between = Config(), None, None
        advice = "correct it; the checks below used the defaults"
        checks.append(Check("configuration", WRONG, str(error), advice))
    folder = os.path.abspath(data or loaded.data_dir)
    if os.path.isdir(f"{folder}/{loaded.broker_id}"):
        folder = f"{folder}/{loaded.broker_id}"
    record = UpFolder(os.path.dirname(folder)).load()  # of `up`, where it was that made the folder
    user = used_by(folder)
    listens_at = loaded.http.advertised or host_port(loaded.http.host, loaded.http.port)
    own = record.http if record else ("https://" if certificates else "") + listens_at
    own_nats = [record.nats_url] if record else list(loaded.nats.urls)

    checks += check_versions()
    checks += check_compiled(loaded.intake.implementation)
    checks += check_folder(folder, loaded.broker_id)
    of_catalog, partitions = check_catalog(folder)
    checks += of_catalog
    checks += check_master_keys(folder, loaded.encryption)
    checks += check_disk(folder)
    checks += check_fsync(folder)
    checks += check_limits(
        partitions,
        user,
        open_files_max=loaded.limits.open_files_max,
        connections_max=loaded.http.connections_max,
    )
    checks += check_file_times(folder, time.time())
    if certificates is not None:
        checks += check_certificate("of the HTTP port", certificates.expires, time.time())
    if between is not None:
        checks += check_certificate("for other brokers", between.expires, time.time())
    options = globals_of(ctx)
    said = TlsFiles(ca=options.tls_ca, cert=options.tls_cert, key=options.tls_key, token=options.token_file)
    local = files_for(replace(said, profile=""))  # a profile is for others than the folder's broker
    variable, named = PROFILE_VARIABLE, brokers or options.brokers
    try:
        given = files_for(replace(said, profile=options.profile))
        variable = BROKERS_VARIABLE if environment.brokers() else variable
        named = named or (profile_of(options.profile).brokers if options.profile else None)
        asked = list(_brokers_to_ask(named, own, brokers_for(None, options.profile, default=""), variable))
    except LiftlogError as error:
        if named or options.profile:
            raise
        given, asked = local, [(_local(own), "")]
        right = "host:port,…" if variable == BROKERS_VARIABLE else "the name of a profile"
        checks.append(Check("broker", WRONG, f"{variable}: {error}", f"set {variable} to {right}"))
    for address, source in asked:
        tls = files_of(given if named else local, loaded.http) if address == _local(own) else given
        checks += check_broker(address, in_use=user is not None, source=source, tls=tls)
    if loaded.intake.enabled:
        is_default = record is None and loaded.nats.urls == Config().nats.urls
        named = os.environ.get(NATS_VARIABLE)
        for url, source in _servers_to_ask(nats or globals_of(ctx).nats, own_nats):
            is_unused = bool(is_default and named and not source and not (nats or globals_of(ctx).nats))
            limit = loaded.defaults.record_bytes_max
            checks += check_nats([url], record_bytes_max=limit, source=source, is_unused=is_unused)

    if is_json(ctx, json):
        json_out(as_json(checks, {"data": folder}))
    else:
        table(["check", "status", "found"], [(check.name, check.status, check.found) for check in checks])
        for check in checks:
            if check.advice:
                note(f"{check.status}: {check.name}: {check.found}")
                note(f"    -> {check.advice}")
    if worst_of(checks) == WRONG:
        raise click.exceptions.Exit(FAILED)


def _brokers_to_ask(given: str | None, own: str, others: str, variable: str) -> Iterator[tuple[str, str]]:
    """Addresses, each with the variable that names it; that is empty for what was given and for the folder's own.

    Args:
        others: What the variable names. Empty: nothing.
    Raises:
        InvalidRequest: one that was given, or that the variable names, is malformed.
    """
    from broker.client.http.address import parse_addresses

    if given:
        yield from ((_local(str(address)), "") for address in parse_addresses(given))
        return
    yield _local(own), ""
    for address in parse_addresses(others) if others else ():
        if _same(str(address)) != _same(_local(own)):
            yield _local(str(address)), variable


def _servers_to_ask(given: str | None, own: Sequence[str]) -> Iterator[tuple[str, str]]:
    """URLs of NATS servers, likewise."""
    if given:
        yield from ((url.strip(), "") for url in given.split(","))
        return
    yield from ((url, "") for url in own)
    known = {_same(url) for url in own}
    for url in filter(None, map(str.strip, os.environ.get(NATS_VARIABLE, "").split(","))):
        if _same(url) not in known:
            yield url, NATS_VARIABLE


def _same(address: str) -> str:
    """The address in the form in which two are compared: without scheme, credentials, and names of this machine."""
    return address.rpartition("//")[2].rpartition("@")[2].rstrip("/").replace("localhost", "127.0.0.1")


def _local(address: str) -> str:
    """host:port to ask at: a broker that listens everywhere is asked on loopback."""
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host in ('0.0.0.0', '') else '[::1]' if host in ('::', '[::]') else host}:{port}"
