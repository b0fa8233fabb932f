"""Goal: a configuration is what was asked for, or an error that says what to change.

Method: real files and a plain mapping as environment; the files in conf/ are held against the table.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, Final

import pytest

from broker.api.errors import InvalidRequest, InvalidSetting, UnknownSetting
from broker.config.configuration import (
    CLIENT_VARIABLES,
    SETTINGS,
    Config,
    Secret,
    describe,
    load,
)
from broker.config.table import BY_VARIABLE, PREFIX, annotated

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
SECRETS = {"LIFTLOG_NATS_USER": "ann", "LIFTLOG_NATS_PASSWORD": "hunter2"}


def _file(folder: Path, text: str) -> str:
    path = folder / "liftlog.toml"
    path.write_text(text)
    return str(path)


def test_nothing_given_is_all_defaults() -> None:
    assert load(None, {}) == Config()


def test_the_annotated_file_is_the_table_and_changes_nothing() -> None:
    path = CONF / "liftlog.toml"
    assert path.read_text() == annotated(), "write it anew: liftlog broker --defaults > conf/liftlog.toml"
    assert load(str(path), {}) == Config()
    for setting in SETTINGS:
        assert f"\n{setting.key.rpartition('.')[2]} = " in path.read_text()


def test_the_production_example_loads_and_says_something() -> None:
    config = load(str(CONF / "production.toml"), {"LIFTLOG_NATS_PASSWORD": "from the environment"})
    changed = describe(config, changed_only=True)
    assert {"http.advertised", "nats.urls", "nats.password", "data_dir"} <= changed.keys()
    assert "log.level" not in changed
    assert describe(Config(), changed_only=True) == {}


SECURE: Final = {"http.tls_cert": "a", "http.tls_key": "b", "auth.mode": "enforce"}
CLUSTER: Final = {"cluster.id": "c", "cluster.voters": ["broker-0@10.0.0.1:9294"]}
BETWEEN: Final = {"cluster.tls_cert": "a", "cluster.tls_key": "b", "cluster.tls_ca": "c"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "logs.example", "::ffff:10.0.0.1", "127.example"])
def test_a_broker_that_others_reach_has_tls_and_knows_who_asks_or_does_not_start(host: str) -> None:
    """K4. Each port; the error names what is missing and the way out."""
    at: dict[str, Any] = {"http.host": host}
    for given, missing in (
        ({}, r'http\.tls_cert and http\.tls_key and auth\.mode = "enforce"'),
        ({"auth.mode": "permissive"}, r'auth\.mode = "enforce"'),
        ({"auth.mode": "enforce"}, r"without http\.tls_cert and http\.tls_key \("),
        ({"http.tls_cert": "a", "http.tls_key": "b"}, r'without auth\.mode = "enforce" \('),
    ):
        with pytest.raises(InvalidSetting, match=missing) as refused:
            load(None, {}, {**at, **given})
        assert refused.value.key == "http.host"
        assert "insecure = true in the file, LIFTLOG_INSECURE=true, or --insecure" in str(refused.value)
        assert load(None, {}, {**at, **given, "insecure": True}).http.host == host
    assert load(None, {"LIFTLOG_INSECURE": "true"}, at).insecure
    assert load(None, {}, {**at, **SECURE}).http.host == host
    for step in ("accept", "dial"):
        with pytest.raises(InvalidSetting, match=r'without http\.tls = "required" \('):
            load(None, {}, {**at, **SECURE, "http.tls": step})
        with pytest.raises(InvalidSetting, match=r'without cluster\.tls = "required" \('):
            load(None, {}, {"raft.host": host, **CLUSTER, **BETWEEN, "cluster.tls": step})
    of_clients = {"http.tls_cert": "a", "http.tls_key": "b", "http.tls_client_ca": "c"}
    assert load(None, {}, {**at, **of_clients}).http.host == host, "each client has a certificate of this CA"
    for key in ("grpc.host", "raft.host"):
        assert load(None, {}, {key: host}), "one that is alone does not open it"
        with pytest.raises(InvalidSetting, match=r"cluster\.tls_cert, cluster\.tls_key and cluster\.tls_ca") as refused:
            load(None, {}, {key: host, **CLUSTER})
        assert refused.value.key == key
        assert load(None, {}, {key: host, **CLUSTER, **BETWEEN})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "localhost", "LOCALHOST", "::1"])
def test_on_loopback_nothing_is_asked_for(host: str) -> None:
    """K4."""
    assert load(None, {}, {"http.host": host, "grpc.host": host, "raft.host": host, **CLUSTER})


def test_every_key_has_a_line_and_a_default_within_its_limit() -> None:
    for setting in SETTINGS:
        assert setting.doc or setting.key.startswith("defaults.")
        if setting.default is None:
            assert setting.nullable
        elif setting.limit and setting.kind == "int":
            assert setting.limit[0] <= setting.default <= setting.limit[1], setting.key
        elif setting.limit:
            assert setting.default in setting.limit, setting.key


def test_urls_in_one_text_are_a_list_wherever_they_stand(tmp_path: Path) -> None:
    both = ("nats://a:1", "tls://b:2")
    assert load(_file(tmp_path, 'nats.urls = "nats://a:1, tls://b:2"'), {}).nats.urls == both
    assert load(None, {"LIFTLOG_NATS_URLS": "nats://a:1, tls://b:2"}).nats.urls == both
    assert load(None, {}, {"nats.urls": "nats://a:1, tls://b:2"}).nats.urls == both
    for wrong in ("nats://a,nats://b", "nats://a b:1"):  # one item of a list: such a host is never found
        with pytest.raises(InvalidSetting, match=r"nats\.urls"):
            load(_file(tmp_path, f'nats.urls = ["{wrong}"]'), {})


@pytest.mark.parametrize(
    "wrong", ["http://a:1", "a", "a:", ":1", "a:0", "a:65536", "::1:9293", "u@a:1", "a:1/x", "a b:1"]
)
def test_an_advertised_address_that_nobody_could_connect_to_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=r"http\.advertised = .*must be host:port"):
        load(None, {"LIFTLOG_HTTP_ADVERTISED": wrong})


@pytest.mark.parametrize("right", ["a:1", "liftlog-0.example.net:9293", "10.0.0.1:65535", "[::1]:9293"])
def test_an_advertised_address_is_taken_as_it_is(right: str) -> None:
    assert load(None, {"LIFTLOG_HTTP_ADVERTISED": right}).http.advertised == right


@pytest.mark.parametrize("wrong", ["*.x", ">", "$SYS.", "a b", '["_INBOX."]', "é", "a" * 61])
def test_a_reply_prefix_that_no_inbox_begins_with_is_refused(wrong: str) -> None:
    """It would be taken in silence, and no publisher be answered."""
    with pytest.raises(InvalidSetting, match=r"nats\.reply_prefixes = .*must be how a subject begins"):
        load(None, {}, {"nats.reply_prefixes": [wrong]})
    assert load(None, {}, {"nats.reply_prefixes": ["_INBOX.", "my-inbox."]}).nats.reply_prefixes[1] == "my-inbox."


def test_a_host_with_a_wildcard_is_refused() -> None:
    """It would match nothing."""
    with pytest.raises(InvalidSetting, match=r"http\.hosts = .*must be a name"):
        load(None, {"LIFTLOG_HTTP_HOSTS": "*.example"})


def test_option_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    path = _file(tmp_path, "[http]\nport = 1001\nhost = '10.0.0.1'\n[fsync]\nthreads = 7\n")
    config = load(
        path,
        {"LIFTLOG_HTTP_PORT": "1002", "LIFTLOG_HTTP_HOST": "10.0.0.2", "LIFTLOG_INSECURE": "1"},
        {"http.port": 1003},
    )
    assert (config.http.port, config.http.host, config.fsync.threads) == (1003, "10.0.0.2", 7)
    assert config.grpc.port == 9292


def test_every_key_can_be_set_from_the_environment() -> None:
    """Set each to its own default as text; what is unset stays so by "none"."""
    for setting in SETTINGS:
        value = setting.default
        text = ",".join(value) if isinstance(value, tuple) else "none" if value is None else str(value)
        assert load(None, {setting.variable: text}) == Config(), setting.key


def test_a_list_is_split_at_commas_and_a_single_url_needs_no_brackets(tmp_path: Path) -> None:
    assert load(None, {"LIFTLOG_NATS_URLS": "nats://a:1, nats://b:2"}).nats.urls == ("nats://a:1", "nats://b:2")
    assert load(_file(tmp_path, "[nats]\nurls = 'nats://a:1'\n"), {}).nats.urls == ("nats://a:1",)


def test_none_unsets_what_may_be_unset(tmp_path: Path) -> None:
    assert load(_file(tmp_path, "[defaults]\nretention_ms = 'none'\n"), {}).defaults.retention_ms is None
    assert load(None, {"LIFTLOG_HTTP_ADVERTISED": ""}).http.advertised is None
    with pytest.raises(InvalidSetting, match="data_dir"):
        load(None, {"LIFTLOG_DATA_DIR": ""})


@pytest.mark.parametrize(
    "text, nearest",
    [
        ("[http]\nprot = 1\n", "http.port"),
        ("[htpp]\nport = 1\n", "http"),
        ("data_dri = 'x'\n", "data_dir"),
        ("[defaults]\nretention = 1\n", "defaults.retention_ms"),
    ],
)
def test_an_unknown_key_names_file_key_and_nearest(tmp_path: Path, text: str, nearest: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(UnknownSetting) as caught:
        load(path, {})
    assert caught.value.nearest == nearest
    assert caught.value.source == path
    assert path in str(caught.value)
    assert nearest in str(caught.value)


def test_an_unknown_variable_names_the_nearest_and_client_variables_pass() -> None:
    with pytest.raises(UnknownSetting) as caught:
        load(None, {"LIFTLOG_HTTP_PRT": "1"})
    assert caught.value.nearest == "LIFTLOG_HTTP_PORT"
    assert load(None, {**dict.fromkeys(CLIENT_VARIABLES, "x"), "HOME": "/"}) == Config()


def test_no_variable_that_another_part_reads_is_taken_for_a_setting() -> None:
    """`LIFTLOG_RETRY_S` of the command line, once exported, stopped every broker."""
    read = re.compile(r"""(?:environ(?:\.get\(|\[)|envvar=|Final = )"(LIFTLOG_[A-Z_]+)\"""")
    paths = [ROOT / "setup.py"]
    for top in ("broker", "spark_liftlog", "pyspark_liftlog", "examples", "tests/support"):
        paths += (ROOT / top).rglob("*.py")
    found = {name for path in paths for name in read.findall(path.read_text())} - BY_VARIABLE.keys() - {PREFIX}
    assert {"LIFTLOG_BROKERS", "LIFTLOG_RETRY_S", "LIFTLOG_RACK", "LIFTLOG_COMPILE_ARGS"} <= found
    assert found <= CLIENT_VARIABLES


@pytest.mark.parametrize(
    "text, key, limit",
    [
        ("[http]\nport = 70000\n", "http.port", [0, 65_535]),
        ("[http]\nport = '9293'\n", "http.port", [0, 65_535]),
        ("[http]\nport = true\n", "http.port", [0, 65_535]),
        ("[http]\nport = 1.5\n", "http.port", [0, 65_535]),
        ("[intake]\nenabled = 'yes'\n", "intake.enabled", None),
        ("[intake]\nimplementation = 'fast'\n", "intake.implementation", ["auto", "compiled", "pure"]),
        ("[nats]\nurls = []\n", "nats.urls", None),
        ("[nats]\nurls = ['localhost']\n", "nats.urls", None),
        ("[nats]\nurls = ['nats://h:99999']\n", "nats.urls", None),
        ("[log]\nlevel = 'loud'\n", "log.level", ["debug", "info", "warning", "error"]),
        ("broker_id = 'a b'\n", "broker_id", None),
        ("broker_id = 7\n", "broker_id", None),
        ("[defaults]\npartitions = 0\n", "defaults.partitions", [1, 1024]),
        ("[defaults]\nlinger_ms = 'inf'\n", "defaults.linger_ms", [0, 10_000]),
        ("[defaults]\nlinger_ms = inf\n", "defaults.linger_ms", [0, 10_000]),
        ("[defaults]\nlinger_ms = '1d'\n", "defaults.linger_ms", [0, 10_000]),
        ("[defaults]\nlinger_ms = -1\n", "defaults.linger_ms", [0, 10_000]),
        (f"[defaults]\nlinger_ms = {10**40}\n", "defaults.linger_ms", [0, 10_000]),
        ("[defaults]\npartition_by = 'random'\n", "defaults.partition_by", None),
        ("http = 3\n", "http", None),
    ],
)
def test_a_bad_value_names_file_key_value_and_limit(tmp_path: Path, text: str, key: str, limit: Any) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(InvalidSetting) as caught:
        load(path, {})
    assert caught.value.key == key
    assert caught.value.source == path
    assert caught.value.fields.get("limit") == limit
    assert path in str(caught.value)
    if limit and isinstance(limit[0], int):
        assert f"from {limit[0]} to {limit[1]}" in str(caught.value)


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "1d", "1e400", "9" * 30, "9" * 5_000], ids=lambda text: text[:16])
def test_a_duration_that_cannot_be_names_variable_value_and_limit(text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load(None, {"LIFTLOG_HTTP_BODY_TIMEOUT_MS": text})
    message = str(caught.value)
    for part in ("LIFTLOG_HTTP_BODY_TIMEOUT_MS", "http.body_timeout_ms", text[:90], "from 100 to 3600000 ms"):
        assert part in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "text",
    ["[http\n", "\x00", "a = 1\na = 2\n", f"a = {'9' * 5_000}", f"a = {'[' * 100_000}"],
    ids=lambda text: text[:16],
)
def test_what_is_not_toml_names_the_file(tmp_path: Path, text: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(InvalidRequest, match=r"liftlog\.toml: not TOML"):
        load(path, {})


def test_a_missing_or_binary_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load(str(tmp_path / "none.toml"), {})
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load(str(tmp_path), {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="not TOML"):
        load(str(tmp_path / "binary"), {})


@pytest.mark.parametrize(
    "values, key",
    [
        ({"nats.password": "x"}, "nats.password"),
        ({"nats.tls_cert": "a.pem"}, "nats.tls_cert"),
        ({"nats.tls_key": "a.key"}, "nats.tls_key"),
        ({"nats.user": "a", "nats.token": "b"}, "nats.token"),
        ({"http.port": 9294}, "http.port"),
        ({"http.tls": "dial"}, "http.tls"),
        ({"cluster.tls": "accept"}, "cluster.tls"),
    ],
)
def test_keys_that_need_or_exclude_each_other(values: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load(None, {}, values)
    assert caught.value.key == key


def test_secrets_do_not_show_in_repr_table_or_error(tmp_path: Path) -> None:
    config = load(None, SECRETS)
    assert config.nats.password == Secret("hunter2")
    assert config.nats.password.value == "hunter2"
    for shown in (repr(config), str(config.nats.password), f"{config.nats.password}", repr(describe(config))):
        assert "hunter2" not in shown
    with pytest.raises(InvalidSetting) as caught:
        load(_file(tmp_path, "[nats]\nuser = 'ann'\npassword = ['hunter2']\n"), {})
    assert "hunter2" not in str(caught.value) + repr(caught.value.fields)
    assert pickle.loads(pickle.dumps(config)) == config


def test_credentials_in_a_url_move_out_of_it() -> None:
    config = load(None, {"LIFTLOG_NATS_URLS": "nats://ann:hunt%40er@a:1,nats://b:2"})
    assert config.nats.urls == ("nats://a:1", "nats://b:2")
    assert config.nats.user == "ann"
    assert config.nats.password == Secret("hunt@er")
    assert load(None, {"LIFTLOG_NATS_URLS": "nats://tok@a:1"}).nats.token == Secret("tok")


@pytest.mark.parametrize(
    "env",
    [
        {"LIFTLOG_NATS_URLS": "nats://a:hunter2@a:1,nats://b:hunter2@b:2"},
        {"LIFTLOG_NATS_URLS": "http://a:hunter2@a:1"},
        {"LIFTLOG_NATS_URLS": "nats://a:hunter2@a:1", "LIFTLOG_NATS_PASSWORD": "other", "LIFTLOG_NATS_USER": "a"},
    ],
)
def test_credentials_in_a_refused_url_do_not_show(env: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load(None, env)
    assert "hunter2" not in str(caught.value) + repr(caught.value.fields)
