"""A broker's configuration, read from a file, the environment and the command line.

A value comes, the later one winning, from

    default  ->  TOML file  ->  environment LIFTLOG_HTTP_PORT=9393  ->  override (a command line option)

K1  Nothing is ignored: an unknown key, an unknown variable that begins with LIFTLOG_, a wrong type or
    a value beyond its limit is an error naming key, value, limit, nearest key and where it was read.
K2  A secret never shows: not in a repr, an error, a log line or `describe`. Credentials inside a NATS
    URL are moved to `nats.user`, `nats.password` or `nats.token` while loading.
K3  TOML has no null: `"none"` or `""` stands for "not set" where a key may be unset.
K4  A broker that others than its own machine reach has TLS and knows who asks, or is said to be insecure.

The keys: settings.py. For people: conf/liftlog.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from broker.api import nats_url
from broker.api.environment import PROFILE_VARIABLE, TLS_VARIABLES, TOKEN_VARIABLE
from broker.api.errors import InvalidName, InvalidRequest, InvalidSetting, UnknownSetting
from broker.api.http import is_loopback
from broker.api.misfit import Misfit, unknown
from broker.api.stream import settings_from
from broker.config.settings import Config, Secret
from broker.config.table import BY_KEY, BY_VARIABLE, PREFIX, SECTIONS, SETTINGS, Setting

__all__ = [
    "CLIENT_VARIABLES",
    "SETTINGS",
    "Config",
    "Secret",
    "Setting",
    "describe",
    "from_text",
    "load",
    "open_doors",
]

CLIENT_VARIABLES: Final = frozenset(
    {
        *("LIFTLOG_BROKERS", "LIFTLOG_NATS_URL", "LIFTLOG_RETRY_S", "LIFTLOG_RACK"),
        *TLS_VARIABLES,
        TOKEN_VARIABLE,
        PROFILE_VARIABLE,
        *("LIFTLOG_PURE", "LIFTLOG_REQUIRE_EXTENSION", "LIFTLOG_COMPILE_ARGS"),
        *("LIFTLOG_PROP_EFFORT", "LIFTLOG_PROP_SEED", "LIFTLOG_UPDATE_GOLDEN"),
    }
)
"""Variables with our prefix that other parts read: the clients, Spark's executors, the installation, tests."""

NOT_SET: Final = ("", "none")


def load(path: str | None, env: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read the configuration of one broker.

    Args:
        path: A TOML file, or None for defaults.
        env: The environment; only names that begin with `LIFTLOG_` are looked at.
        overrides: Values by dotted key, as the command line sets them; they win.
    Raises:
        UnknownSetting: a key or variable that does not exist; fields key, nearest, source.
        InvalidSetting: a value of a wrong type or beyond its limit; fields key, value, limit, source.
        InvalidRequest: the file cannot be read; field source.
    """
    values: dict[str, _Given] = {}
    if path is not None:
        values.update(_from_file(path))
    values.update(_from_environment(env))
    for key, value in (overrides or {}).items():
        values[_known(key, "option").key] = _Given(value, "option")
    checked = {key: _Given(_checked(BY_KEY[key], given), given.source) for key, given in values.items()}
    _split_credentials(checked)
    config = _build(checked)
    _check_together(config)
    if not config.insecure:
        _check_doors(config)
    return config


def from_text(key: str, text: str, *, source: str) -> Any:
    """The value that a text stands for, as `overrides` of `load` take it; `load` checks it.

    Raises:
        UnknownSetting: no such key.
    """
    return _from_text(_known(key, source), text)


def describe(config: Config, *, changed_only: bool = False) -> dict[str, Any]:
    """Every key with its value, secrets as `***`: fit for a log line or a table.

    Args:
        changed_only: Leave out what has its default.
    """
    shown: dict[str, Any] = {}
    for setting in SETTINGS:
        value: Any = config
        for part in setting.key.split("."):
            value = getattr(value, part)
        if not (changed_only and value == setting.default):
            shown[setting.key] = str(value) if isinstance(value, Secret) else value
    return shown


@dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    source: str


def _from_file(path: str) -> Iterator[tuple[str, _Given]]:
    try:
        tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}", source=path) from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: numbers of 5,000 digits, deep nesting
        raise InvalidRequest(f"{path}: not TOML: {error}", source=path) from error
    for name, value in tree.items():
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise InvalidSetting(f"{path}: [{name}] must be a table", key=name, value=repr(value), source=path)
            for inner, inner_value in value.items():
                yield _known(f"{name}.{inner}", path).key, _Given(inner_value, path)
        else:
            yield _known(name, path).key, _Given(value, path)


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name in sorted(env):
        if not name.startswith(PREFIX) or name in CLIENT_VARIABLES:
            continue
        setting = BY_VARIABLE.get(name)
        if setting is None:
            what, known = f"environment variable {name}: no such setting", [*BY_VARIABLE, *CLIENT_VARIABLES]
            raise _unknown(what, name, known, "environment")
        yield setting.key, _Given(_from_text(setting, env[name]), f"environment variable {name}")


def _from_text(setting: Setting, text: str) -> Any:
    """Read the text of a variable; an impossible one is left as text and refused with the others."""
    if setting.kind == "bool":
        text = {"1": "true", "0": "false"}.get(text.strip(), text.strip().lower())
    return setting.shape.read(text.strip(" \t") if setting.kind == "int" else text)


def _known(key: str, source: str) -> Setting:
    if key in BY_KEY:
        return BY_KEY[key]
    raise _unknown(f"{source}: no such setting {key[:100]!r}", key, [*BY_KEY, *SECTIONS], source)


def _unknown(what: str, key: str, known: Iterable[str], source: str) -> UnknownSetting:
    nearest = unknown(key, None, known).nearest
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    return UnknownSetting(what + hint, key=key[:100], nearest=nearest, source=source)


def _checked(setting: Setting, given: _Given) -> Any:
    value = given.value
    if setting.nullable and isinstance(value, str) and value.lower() in NOT_SET:
        return None
    if setting.kind == "list" and isinstance(value, str):
        value = setting.shape.read(value)
    elif value == "" and not setting.limit:
        raise _invalid(setting, given, "must be text, not empty")
    try:
        return setting.shape.take(value)
    except Misfit as misfit:
        raise _invalid(setting, given, misfit.what.replace(" or null", " or none")) from None
    except InvalidName as error:
        raise _invalid(setting, given, str(error)) from error


def _invalid(setting: Setting, given: _Given, why: str) -> InvalidSetting:
    value = "***" if setting.kind == "secret" else given.value
    if setting.key == "nats.urls":
        value = nats_url.shown_urls(url if isinstance(url, str) else repr(url) for url in _listed(value))
    refused = Misfit(why, value)
    return InvalidSetting(
        f"{given.source}: {setting.key} = {refused.shown}: {why}",
        key=setting.key,
        value=value if setting.key == "nats.urls" else refused.fact,
        limit=list(setting.limit) if setting.limit else None,
        source=given.source,
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _split_credentials(values: dict[str, _Given]) -> None:
    """Move `user:password@` or `token@` out of the NATS URLs (K2); all URLs must then say the same."""
    given = values.get("nats.urls")
    if given is None:
        return
    found: set[tuple[str, str | None]] = set()
    split = [_split_url(given, url) for url in given.value]
    for parts in split:
        if parts.username is not None:
            found.add((unquote(parts.username), unquote(parts.password) if parts.password is not None else None))
    if len(found) > 1:
        raise _invalid(BY_KEY["nats.urls"], given, "the URLs hold different credentials; one set serves all servers")
    values["nats.urls"] = _Given(tuple(map(nats_url.bare, split)), given.source)
    for name, password in found:
        moved: dict[str, Any] = {"nats.token": Secret(name)}
        if password is not None:
            moved = {"nats.user": name, "nats.password": Secret(password)}
        for key, value in moved.items():
            if key in values and values[key].value is not None and values[key].value != value:
                raise _invalid(BY_KEY["nats.urls"], given, f"the URL and {key} hold different credentials")
            values[key] = _Given(value, given.source)


def _split_url(given: _Given, url: str) -> SplitResult:
    try:
        return nats_url.split_url(url)
    except ValueError as error:
        raise _invalid(BY_KEY["nats.urls"], given, f"each {error}") from None


def _build(values: Mapping[str, _Given]) -> Config:
    top: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, given in values.items():
        section, _, name = key.rpartition(".")
        (inner[section] if section else top)[name] = given.value
    for name, cls in SECTIONS.items():
        if name != "defaults":
            top[name] = cls(**inner[name])
    sources = {given.source for key, given in values.items() if key.startswith("defaults.")}
    try:
        top["defaults"] = settings_from(inner["defaults"])
    except InvalidSetting as error:
        source = ", ".join(sorted(sources))
        raise InvalidSetting(f"{source}: [defaults] {error.message}", **{**error.fields, "source": source}) from error
    return Config(**top)


def open_doors(config: Config) -> dict[str, str]:
    """The addresses by which a stranger could come in, by key, each with the settings that are missing (K4)."""
    http, cluster, found = config.http, config.cluster, dict[str, str]()
    missing = []
    if http.tls_cert is None:
        missing.append("http.tls_cert and http.tls_key")
    elif http.tls != "required":
        missing.append('http.tls = "required"')
    if config.auth.mode != "enforce" and (http.tls_client_ca is None or http.tls != "required"):
        missing.append('auth.mode = "enforce"')
    places = {"http.host": http.host}
    if config.liftbridge.place is not None:
        places["liftbridge.listen"] = config.liftbridge.place[0]
    found |= {key: " and ".join(missing) for key, host in places.items() if missing and not is_loopback(host)}
    if cluster.voters and (cluster.tls_cert is None or cluster.tls != "required"):
        lacks = "cluster.tls_cert, cluster.tls_key and cluster.tls_ca"
        for key, host in (("grpc.host", config.grpc.host), ("raft.host", config.raft.host)):
            if not is_loopback(host):
                found[key] = lacks if cluster.tls_cert is None else 'cluster.tls = "required"'
    return found


def _check_doors(config: Config) -> None:
    """K4."""
    for key, missing in open_doors(config).items():
        section, _, name = key.partition(".")
        host = getattr(getattr(config, section), name)
        raise InvalidSetting(
            f"{key} = {host} can be reached by others, so the broker does not start without {missing}"
            " (docs/guides/security.md). Where everybody who reaches it may read, change and delete all streams, say"
            " so: insecure = true in the file, LIFTLOG_INSECURE=true, or --insecure",
            key=key,
            value=host,
        )


def _check_together(config: Config) -> None:
    """Keys that need each other."""
    nats, http = config.nats, config.http
    problems = {
        "nats.password": nats.password is not None and nats.user is None and "needs nats.user",
        "nats.tls_cert": nats.tls_cert is not None and nats.tls_key is None and "needs nats.tls_key",
        "nats.tls_key": nats.tls_key is not None and nats.tls_cert is None and "needs nats.tls_cert",
        "http.tls_cert": http.tls_cert is not None and http.tls_key is None and "needs http.tls_key",
    }
    for key in ("tls_key", "tls_client_ca", "tls_ca"):
        problems[f"http.{key}"] = (
            getattr(http, key) is not None and http.tls_cert is None and "needs http.tls_cert and http.tls_key"
        )
    of_cluster = [key for key in ("tls_cert", "tls_key", "tls_ca") if getattr(config.cluster, key) is None]
    if 0 < len(of_cluster) < 3:
        [given, *_] = [key for key in ("tls_cert", "tls_key", "tls_ca") if key not in of_cluster]
        problems[f"cluster.{given}"] = "needs " + " and ".join(f"cluster.{key}" for key in of_cluster)
    problems["http.tls_crl"] = http.tls_crl is not None and http.tls_client_ca is None and "needs http.tls_client_ca"
    problems["cluster.tls_crl"] = (
        config.cluster.tls_crl is not None and config.cluster.tls_cert is None and "needs cluster.tls_cert"
    )
    for section, of in (("http", http), ("cluster", config.cluster)):
        problems[f"{section}.tls"] = of.tls != "required" and of.tls_cert is None and f"needs {section}.tls_cert"
    if config.cluster.tls_names == "required" and config.cluster.tls_cert is None:
        problems["cluster.tls_names"] = "needs cluster.tls_cert"
    of_jwt = [key for key in ("issuer", "audience", "keys") if getattr(config.jwt, key) is None]
    if 0 < len(of_jwt) < 3:
        [given, *_] = [key for key in ("issuer", "audience", "keys") if key not in of_jwt]
        problems[f"jwt.{given}"] = "needs " + " and ".join(f"jwt.{key}" for key in of_jwt)
    ways = [key for key in ("user", "token", "creds", "nkey_seed") if getattr(nats, key) is not None]
    if len(ways) > 1:
        problems["nats." + ways[1]] = f"cannot stand beside nats.{ways[0]}: choose one way to log in"
    cluster, raft = config.cluster, config.raft
    problems["cluster.voters"] = bool(cluster.voters) and cluster.id is None and "needs cluster.id"
    problems["cluster.id"] = not cluster.voters and cluster.id is not None and "needs cluster.voters"
    problems["raft.secret_file"] = (
        raft.secret is not None and raft.secret_file is not None and "cannot stand beside raft.secret"
    )
    encryption = config.encryption
    problems["encryption.key_command"] = (
        bool(encryption.key_command) and encryption.key_file is not None and "cannot stand beside encryption.key_file"
    )
    problems["encryption.former_key_files"] = (
        bool(encryption.former_key_files)
        and encryption.key_file is None
        and not encryption.key_command
        and "needs encryption.key_file or encryption.key_command"
    )
    names = [voter.partition("@")[0] for voter in cluster.voters]
    if len(set(names)) < len(names) or len({voter.partition("@")[2] for voter in cluster.voters}) < len(names):
        problems["cluster.voters"] = f"{', '.join(cluster.voters)}: names a broker or an address twice"
    liftbridge = config.liftbridge
    problems["liftbridge.advertised"] = (
        liftbridge.advertised is not None and liftbridge.listen is None and "needs liftbridge.listen"
    )
    if liftbridge.place is not None and (port := liftbridge.place[1]):
        others = {"http.port": http.port}
        if cluster.voters:
            others |= {"grpc.port": config.grpc.port, "raft.port": raft.port}
        taken = next((key for key, other in others.items() if other == port), None)
        problems["liftbridge.listen"] = taken is not None and f"has the port of {taken}, {port}: give one another port"
    for key, problem in problems.items():
        if problem:
            raise InvalidSetting(f"{key} {problem}", key=key)
    open_ports = [p for p in (config.http.port, config.grpc.port, config.raft.port) if p]
    if len(open_ports) != len(set(open_ports)):
        raise InvalidSetting(
            f"http.port, grpc.port and raft.port must differ: {config.http.port}, {config.grpc.port},"
            f" {config.raft.port}",
            key="http.port",
            value=config.http.port,
        )
