"""Goal: Spark reads and writes over TLS with files that options name, and nothing of the files is in what it pickles.

Method: the source's and the sink's own parts without Spark: options, what a plan and a task are made of, and calls to a
real server that wants a certificate of each client.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.client.http.calls import Calls, path
from broker.client.http.tls import TlsFiles
from spark_liftlog.datasource import LiftlogDataSource
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.place import Place, brokers_at, client_at, files_of
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.task import session
from spark_liftlog.schema import ROW
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import brokers_of
from tests.support.certificates import Authority, Issued
from tests.unit.serving.server import running

PATHS = {"tlsCa": "/tls/ca.pem", "tlsCert": "/tls/me.pem", "tlsKey": "/tls/me.key"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> Issued:
    return authority.issue("me", "me.example")


@pytest.fixture(scope="module")
def address(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("server")) as server:
        contexts = authority.certificates(tls_client_ca=authority.ca).contexts
        server.api.create("orders")
        yield f"https://127.0.0.1:{server.call(server.listen(contexts))}"


def given(address: str, authority: Authority, mine: Issued) -> dict[str, str]:
    return {"brokers": address, "stream": "orders", "tlsCa": authority.ca, "tlsCert": mine.cert, "tlsKey": mine.key}


def test_every_door_to_the_brokers_takes_the_files(address: str, authority: Authority, mine: Issued) -> None:
    """The driver's questions, a task's session, the sink's calls, the schema of a stream."""
    options = given(address, authority, mine)
    source, sink = source_options(options, "stream"), sink_options(options, "stream")
    assert Cluster(source.brokers).heads_now(["orders"])[1]
    for brokers in (session(source.brokers).brokers, brokers_of(sink), brokers_at(source.brokers)):
        found = Calls(brokers, timeout_s=60, deadline_s=0).json("GET", path("streams", "orders"))
        assert found["name"] == "orders"
    with client_at(source.brokers) as client:
        assert client.describe("orders").name == "orders"
    with pytest.raises(LiftlogSparkError, match="'orders' keeps no schema"):
        LiftlogDataSource({**options, "payload": "json"}).schema()


def test_without_them_nobody_is_believed_and_others_sessions_are_not_used(
    address: str, authority: Authority, mine: Issued
) -> None:
    """A process keeps its sessions: one with a certificate is not for a query without."""
    options = given(address, authority, mine)
    with_files, plain = source_options(options, "batch").brokers, Place(address)
    assert session(with_files) is session(source_options(options, "batch").brokers)
    assert session(with_files) is not session(plain)
    assert with_files != plain
    with client_at(plain) as client, pytest.raises(InvalidRequest, match="not believed"):
        client.streams()


def test_a_variable_counts_where_no_option_does(
    address: str, authority: Authority, mine: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in (("CA", authority.ca), ("CERT", mine.cert), ("KEY", mine.key)):
        monkeypatch.setenv(f"LIFTLOG_TLS_{name}", file)
    with client_at(source_options({"brokers": address, "stream": "orders"}, "batch").brokers) as client:
        client.streams()


def test_only_paths_are_in_what_goes_to_others(address: str, authority: Authority, mine: Issued) -> None:
    """Pickled readers and writers, and their texts. No file is read for them: those of `PATHS` are not there."""
    secret = Path(mine.key).read_text().splitlines()[1].encode()
    for files in (PATHS, {"tlsCa": authority.ca, "tlsCert": mine.cert, "tlsKey": mine.key}):
        options = {"brokers": address, "stream": "orders", **files}
        source = LiftlogDataSource(options)
        made: list[Any] = [
            source,
            source.reader(ROW),
            source.streamReader(ROW),
            source.writer(StructType([StructField("value", BinaryType())]), False),
            source_options(options, "batch"),
            sink_options(options, "batch"),
        ]
        for each in made:
            pickled = pickle.dumps(each)
            assert secret not in pickled
            assert b"PRIVATE KEY" not in pickled
            assert secret.decode() not in repr(each)
    found = pickle.loads(pickle.dumps(source_options({"brokers": address, "stream": "s", **PATHS}, "batch")))
    assert files_of(found.brokers) == TlsFiles(ca="/tls/ca.pem", cert="/tls/me.pem", key="/tls/me.key")
    assert found.brokers == Place(address, files_of(found.brokers))


def test_a_profile_goes_by_its_name_and_is_read_where_the_connection_is_made(
    address: str, authority: Authority, mine: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`place.P2`: the driver's brokers, and on each machine the files of its own."""
    text = (
        f'[job]\nbrokers = "{address}"\ntls_ca = "{authority.ca}"\ntls_cert = "{mine.cert}"\ntls_key = "{mine.key}"\n'
    )
    file = tmp_path / "liftlog/profiles.toml"
    file.parent.mkdir()
    file.write_text(text)
    file.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for profile in ("job", f"{file}#job"):
        options = {"stream": "orders", "profile": profile}
        for read in (source_options, sink_options):
            place = read(options, "batch").brokers
            assert place == Place(address, TlsFiles(profile=profile)), "of the profile no more than the brokers"
            assert mine.cert.encode() not in pickle.dumps(place)
            with client_at(pickle.loads(pickle.dumps(place))) as client:
                client.streams()
    moved = source_options({"stream": "orders", "profile": "job"}, "batch").brokers
    file.write_text(text.replace(address, "https://elsewhere"))
    with client_at(moved) as client:
        client.streams()  # a task asks the brokers of its query
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another-machine"))
    with pytest.raises(InvalidSetting, match=r"profile = '.*another-machine/liftlog/profiles\.toml': cannot be read"):
        session(source_options({"brokers": address, "stream": "orders", "profile": "job"}, "batch").brokers)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"brokers": "a", "tlsCa": "x"}, "option tlsCa='x': is for brokers at https://"),
        ({"brokers": "https://a", "tlsCa": ""}, "option tlsCa='': must be the path"),
        ({"brokers": "https://a", "profile": ""}, "option profile='': must be the name"),
        ({"brokers": "https://a", "tlsCert": "x"}, "option tlsCert='x': needs tlsKey"),
        ({"brokers": "https://a", "tlsKey": "x"}, "option tlsKey='x': needs tlsCert"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], says: str) -> None:
    for read in (source_options, sink_options):
        with pytest.raises(InvalidSetting, match=says):
            read({"stream": "s", **options}, "batch")
