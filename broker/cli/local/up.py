"""`liftlog up`: an embedded NATS server and a broker, or a cluster of them, from nothing, in one folder.

    look at DATA/run/up.json ─► all alive: already up
            │ some or none alive
            ▼
    check ports ─► nats-server ─► brokers ─► /readyz answers ─► record ─► foreground: supervise
                                                                         --detach:   return

U1  Nothing is started before every port that will be opened was found free.
U2  A process that is found alive, and is provably ours, is kept; one that has ended is started again.
    So `up` goes on with a folder whose processes were killed, all of them or some.
U3  A failure stops what this `up` has started, and nothing else.
U4  A process that was alive and ends while `up` waits for it was stopping: `up` looks again, and starts it anew.
U5  A copy of a folder is a folder of its own: the processes of the original are not its processes (datafolder.D3).
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

import click

from broker.api.errors import FolderInUse, InvalidRequest, LiftlogError, PortInUse
from broker.api.nats_url import shown_urls
from broker.cli.arguments import Option
from broker.cli.local.datafolder import BROKER, Record, UpFolder, copy_notice
from broker.cli.local.processes import Process, ProcessIdentity, start
from broker.cli.options import DEFAULT_DATA, Data, Json, globals_of, is_json
from broker.cli.output import counted, json_out, note, pairs

HOST: Final = "127.0.0.1"
NATS: Final = "nats"
SUPERVISOR: Final = "up"
STOP_TIMEOUT_S: Final = 30.0
STRIDE: Final = 10
BROKERS_MOST: Final = 5
CLUSTER_ID: Final = "local"
PORTS_HELP: Final = "gRPC N, HTTP N+1, Raft N+2, NATS N+3 [9292, 9293, 9294, 4222]."


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of a broker and its NATS server: N, N+1, N+2, N+3, or the usual ones. Further brokers: each ten up."""

    grpc: int = 9292
    http: int = 9293
    raft: int = 9294
    nats: int = 4222

    @classmethod
    def of(cls, base: int | None) -> Ports:
        return cls() if base is None else cls(base, base + 1, base + 2, base + 3)

    def opened(self, is_cluster: bool) -> list[tuple[int, str]]:
        """Those that a broker opens, each with its purpose: one that is alone answers HTTP only."""
        http = (self.http, "the HTTP API")
        return [http, (self.grpc, "gRPC between brokers"), (self.raft, "Raft")] if is_cluster else [http]

    def of_broker(self, number: int) -> Ports:
        """The ports of one broker of several."""
        return Ports(self.grpc + STRIDE * number, self.http + STRIDE * number, self.raft + STRIDE * number, self.nats)


def up(
    ctx: click.Context,
    data: Data = DEFAULT_DATA,
    nats: Annotated[str | None, Option("--nats", metavar="URL", help="Use this NATS server and start none.")] = None,
    port_base: Annotated[
        int | None,
        Option("--port-base", metavar="N", min=1, max=65_492, help=PORTS_HELP),
    ] = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Return once it is ready; `down` stops it.")] = False,
    brokers_count: Annotated[
        int, Option("--brokers-count", metavar="N", min=1, max=BROKERS_MOST, help="More than one are a cluster.")
    ] = 1,
    timeout_s: Annotated[float, Option("--timeout-s", min=1, help="Seconds to wait until it is ready.")] = 60.0,
    json: Json = False,
) -> None:
    """Start a NATS server and a broker; nothing has to be configured. Several brokers are a cluster."""
    plan = _plan(UpFolder(data), Ports.of(port_base), nats or globals_of(ctx).nats, detach=detach, count=brokers_count)
    folder, as_json = plan.folder, is_json(ctx, json)
    folder.check()
    _check_count(plan)
    folder.prepare()
    with folder.locked():
        if (copied := folder.copied()) is not None:
            note(copy_notice(folder, *copied))
            folder.disown()
        _keep_secret(plan)
        folder.keep_count(len(plan.commands))
        running = None
        while running is None:
            running = _running(plan, timeout_s)
        if all(not process.is_new for process in running):
            _announce(folder, folder.load() or plan.record, as_json=as_json, already=True)
            return
        record = replace(plan.record, processes=_identities(running))
        me = ProcessIdentity.of(os.getpid())
        if not detach and me is not None:
            record.processes[SUPERVISOR] = me
        folder.save(record)
    try:
        _announce(folder, record, as_json=as_json, already=False)
    except OSError:  # nobody reads it any more: what runs must not be left without its supervisor
        if detach:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not detach:
        from broker.cli.local.supervise import supervise

        supervise(folder, record, running, restart=partial(_restart, plan) if record.others else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The state that this `up` is to bring about.

    Attributes:
        record: The addresses; its processes are not known yet.
        commands, env: Those of the brokers, by name.
        names: The processes that must run, in the order of their start.
    """

    folder: UpFolder
    ports: Ports
    record: Record
    commands: dict[str, list[str]]
    env: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return (NATS, *self.commands) if self.record.nats_embedded else tuple(self.commands)

    @property
    def http(self) -> dict[str, str]:
        """Where each broker answers."""
        return {BROKER: self.record.http} | {broker: http for broker, http, _ in self.record.others}


def _plan(folder: UpFolder, ports: Ports, nats: str | None, *, detach: bool, count: int = 1) -> Plan:
    """Decide everything that needs no look at the machine.

    Raises:
        UnknownSetting, InvalidSetting: in the environment, or in a file that it names. Here, not in the log of a broker
            that does not start.
    """
    from broker.cli.local.readiness import HTTPS
    from broker.config.auth import check_auth_files
    from broker.config.certificates import certificates_of
    from broker.config.configuration import load

    each = {f"broker-{number}": ports.of_broker(number) for number in range(count)}
    voters = [f"{name}@{HOST}:{of.raft}" for name, of in each.items()]
    settings = {}
    for name, of in each.items():
        settings[name] = {
            "broker_id": name,
            "data_dir": str(folder.path / name),
            "http.host": HOST,
            "http.port": of.http,
            "grpc.port": of.grpc,
            "raft.port": of.raft,
            **({"cluster.id": CLUSTER_ID, "cluster.voters": ",".join(voters)} if count > 1 else {}),
            **({"raft.secret_file": str(folder.secret)} if count > 1 and not _has_secret() else {}),
        }
    # -P: a folder named `broker` where `up` is called must not be taken for ours.
    start_broker = [sys.executable, "-P", "-m", "broker.cli.main", "broker"]
    commands = {
        name: [*start_broker, *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]
        for name, values in settings.items()
    }
    env = dict(os.environ)
    url = f"nats://{HOST}:{ports.nats}" if nats is None else nats
    if nats is None:  # ours knows no users; what the environment says of another server does not concern it
        for name in [name for name in env if name.startswith("LIFTLOG_NATS_") and name != "LIFTLOG_NATS_URL"]:
            del env[name]
    env["LIFTLOG_NATS_URLS"] = url  # not in the command line: others could read a password there
    if not detach and sys.stderr.isatty():
        env.setdefault("LIFTLOG_LOG_FORMAT", "console")
    scheme = ""
    for values in settings.values():
        loaded = load(None, env, {**values, **({"cluster.voters": voters} if count > 1 else {})})
        if certificates_of(loaded.http) is not None:
            scheme = HTTPS
        certificates_of(loaded.cluster, broker=loaded.broker_id)
        check_auth_files(loaded)
    record = Record(
        http=f"{scheme}{HOST}:{ports.http}",
        grpc=f"{HOST}:{ports.grpc}",
        nats_url=",".join(shown_urls(url.split(","))),
        nats_embedded=nats is None,
        mode="detached" if detach else "foreground",
        others=tuple((name, f"{scheme}{HOST}:{of.http}", f"{HOST}:{of.grpc}") for name, of in list(each.items())[1:]),
    )
    return Plan(folder=folder, ports=ports, record=record, commands=commands, env=env)


def _running(plan: Plan, timeout_s: float) -> list[Process] | None:
    """All processes, once they are ready; None: one that was found alive was stopping and has ended, so look again."""
    found = plan.folder.load()
    alive = found.alive() if found else {}
    if found and alive:
        _check_same(plan, found, alive)
    running: list[Process] = []
    try:
        if all(name in alive for name in plan.names):
            running = [_kept(plan, name, alive) for name in plan.names]
            _wait_ready(plan, running, timeout_s)
        else:
            _bring_up(plan, alive, running, timeout_s)
    except BaseException as error:
        if not all(name in alive for name in plan.names):
            _undo(plan, running)
        if isinstance(error, LiftlogError) and any(each.has_ended() for each in running if not each.is_new):
            return None
        raise
    return running


def _keep_secret(plan: Plan) -> None:
    """Several brokers need a secret, which stays in the folder. A folder of an earlier build has none yet."""
    from broker.cli.commands.secret import write_secret

    folder = plan.folder
    if len(plan.commands) == 1 or _has_secret() or folder.secret.exists():
        return
    found = folder.load()
    alive = [name for name in (found.alive() if found else ()) if name in plan.commands]
    if alive:
        raise InvalidRequest(
            f"{folder.path}: {', '.join(alive)} have no secret, as in earlier builds, and would not hear those that"
            f" have one; stop them first: {_down_command(folder)}"
        )
    write_secret(str(folder.secret))


def _has_secret() -> bool:
    """The environment names one."""
    return any(os.environ.get(f"LIFTLOG_RAFT_SECRET{suffix}") for suffix in ("", "_FILE"))


def _check_count(plan: Plan) -> None:
    """The folder must have been made with so many brokers, or be new."""
    from broker.storage.folder import brokers_in

    found = [name for name in brokers_in(plan.folder.path) if name.startswith("broker-")]
    count = plan.folder.brokers_count() or len(found)
    if found and count != len(plan.commands):
        raise InvalidRequest(
            f"{plan.folder.path} was made with {counted(count, 'broker')}: --brokers-count {count}",
            value=len(plan.commands),
            limit=count,
        )


def _bring_up(plan: Plan, alive: Mapping[str, ProcessIdentity], running: list[Process], timeout_s: float) -> None:
    """Start what does not run yet, in order; `running` grows as it goes, kept ones included."""
    from broker.cli.local import nats_server
    from broker.cli.local.readiness import check_reachable, wait

    folder, ports = plan.folder, plan.ports
    needs_nats = NATS in plan.names and NATS not in alive
    binary = nats_server.find_binary() if needs_nats else ""
    for number, name in enumerate(plan.commands):
        for port, purpose in ports.of_broker(number).opened(len(plan.commands) > 1) if name not in alive else ():
            _check_free(port, purpose, "--port-base")
    if needs_nats:
        _check_free(ports.nats, "the embedded NATS server", "--port-base, or name the server that runs with --nats")

    if NATS not in plan.names:
        check_reachable(plan.env["LIFTLOG_NATS_URLS"])
    else:
        if needs_nats:
            note(f"starting nats-server on {HOST}:{ports.nats}")
            text = nats_server.config_text(name=f"liftlog-{ports.nats}", host=HOST, port=ports.nats)
            folder.write_nats_config(text)
            command = [binary, "-c", str(folder.nats_config)]
            running.append(start(NATS, command, env=plan.env, log=folder.log(NATS)))
        else:
            running.append(_kept(plan, NATS, alive))
        _save_progress(plan, running)
        wait("nats-server", lambda: nats_server.missing(HOST, ports.nats), running, timeout_s)

    for name, command in plan.commands.items():
        if name in alive:
            running.append(_kept(plan, name, alive))
        else:
            note(f"starting {name} on {plan.http[name]}")
            running.append(start(name, command, env=plan.env, log=folder.log(name)))
    _save_progress(plan, running)
    _wait_ready(plan, running, timeout_s)


def _restart(plan: Plan, name: str) -> Process:
    """Start a broker of several again."""
    return start(name, plan.commands[name], env=plan.env, log=plan.folder.log(name))


def _wait_ready(plan: Plan, processes: list[Process], timeout_s: float) -> None:
    from broker.cli.local.readiness import broker_missing, wait

    for name, http in plan.http.items():
        what = "the broker" if len(plan.commands) == 1 else name
        wait(what, lambda http=http: broker_missing(http), processes, timeout_s)  # type: ignore[misc]


def _save_progress(plan: Plan, running: list[Process]) -> None:
    """So that an `up` that is killed half-way leaves a record of what it had started."""
    plan.folder.save(replace(plan.record, processes=_identities(running)))


def _undo(plan: Plan, running: list[Process]) -> None:
    """Stop what was started now (U3), and leave a record of the rest."""
    for process in reversed(running):
        if process.is_new:
            process.stop(timeout_s=STOP_TIMEOUT_S, force=True)
    plan.folder.forget(replace(plan.record, processes=_identities(running)))
    kept = [process for process in running if not process.is_new]
    if kept:
        _save_progress(plan, kept)


def _identities(processes: list[Process]) -> dict[str, ProcessIdentity]:
    return {process.name: process.identity for process in processes}


def _kept(plan: Plan, name: str, alive: Mapping[str, ProcessIdentity]) -> Process:
    path = plan.folder.logs / f"{name}.log"
    path.touch()
    return Process(name=name, identity=alive[name], log=path, log_position=path.stat().st_size)


def _check_same(plan: Plan, found: Record, alive: Mapping[str, ProcessIdentity]) -> None:
    """Check that the folder's processes are those that are asked for, and are meant to go on."""
    path, wanted = plan.folder.path, plan.record
    who = ", ".join(f"{name} (pid {identity.pid})" for name, identity in sorted(alive.items()))
    for what, has, asked in (
        ("HTTP", _all_http(found), _all_http(wanted)),
        ("NATS", found.nats_url, wanted.nats_url),
    ):
        if has != asked:
            raise InvalidRequest(
                f"{path} is already up with {what} at {has}, not {asked}: {who};"
                f" stop it first: {_down_command(plan.folder)}",
                running=has,
                asked=asked,
            )
    if SUPERVISOR in alive and not all(name in alive for name in plan.names):
        raise FolderInUse(
            f"{path}: another `liftlog up` looks after it, and is starting or stopping it: {who}", path=str(path)
        )


def _all_http(record: Record) -> str:
    return ",".join(record.all_http)


def _check_free(port: int, purpose: str, way_out: str) -> None:
    """Raise PortInUse unless we could listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            raise PortInUse(
                f"port {port}, for {purpose}: {error.strerror}; choose others with {way_out}",
                port=port,
                purpose=purpose,
            ) from error


def _down_command(folder: UpFolder) -> str:
    return f"liftlog down --data {shlex.quote(str(folder.path))}"


def _url(http: str) -> str:
    return http if "://" in http else f"http://{http}"


def _announce(folder: UpFolder, record: Record, *, as_json: bool, already: bool) -> None:
    if as_json:
        json_out({**record.addresses(folder.path), "already_up": already})
        return
    sys.stdout.write("liftlog is already up\n" if already else "liftlog is up\n")
    ends_with_us = record.mode == "foreground" and not already
    rows: list[tuple[str, Any]] = [
        ("  HTTP", _url(record.http)),
        *((f"  {broker}", _url(http)) for broker, http, _ in record.others),
        ("  NATS", record.nats_url + (" (embedded)" if record.nats_embedded else "")),
        ("  data", folder.path),
        ("  stop", "Ctrl-C" if ends_with_us else _down_command(folder)),
    ]
    elsewhere = os.environ.get("LIFTLOG_NATS_URL", record.nats_url)
    if elsewhere != record.nats_url:
        note("LIFTLOG_NATS_URL names another server: `liftlog publish` goes there; `up --nats` would use it")
    usual = Ports()
    if record.others or (record.http, record.nats_url) != (f"{HOST}:{usual.http}", f"nats://{HOST}:{usual.nats}"):
        rows.append(("  use", f"export LIFTLOG_BROKERS={_all_http(record)} LIFTLOG_NATS_URL={record.nats_url}"))
    pairs(rows)
    sys.stdout.flush()
