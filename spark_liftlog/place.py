"""Where a query's brokers are, and the files of TLS that it talks to them with.

P1  The files are named by their paths, here and in everything that is pickled. They are read where a connection is
    made: on the driver and on each executor, each time a process connects first. No content of a file is in a plan.
P2  A profile goes by its name, likewise. The brokers are those that the driver has found in it, so that all of a query
    speaks to one cluster; the files are those that it names on each machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.client.http.brokers import Brokers
from broker.client.http.profiles import files_for
from broker.client.http.tls import TlsFiles

if TYPE_CHECKING:
    from broker.client.client import Client


class Place(str):
    """Addresses of brokers, as text, with the options `tlsCa`, `tlsCert`, `tlsKey`, `tokenFile` and `profile`. Equal if
    both are."""

    tls: TlsFiles
    """Paths on each machine. None: of the profile there, or of the environment."""

    def __new__(cls, addresses: str, tls: TlsFiles = TlsFiles()) -> Place:  # noqa: B008 it is frozen
        made = super().__new__(cls, addresses)
        made.tls = tls
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) and files_of(self) == files_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __reduce__(self) -> tuple[type[Place], tuple[str, TlsFiles]]:
        return Place, (str(self), self.tls)


def files_of(brokers: object) -> TlsFiles:
    """The files that go with addresses; of plain text: none are given."""
    return brokers.tls if isinstance(brokers, Place) else TlsFiles()


def brokers_at(brokers: str) -> Brokers:
    """Connections to these brokers. Raises InvalidRequest: a file of TLS cannot be used here."""
    return Brokers(brokers, tls=files_for(files_of(brokers)))


def client_at(brokers: str, **options: Any) -> Client:
    """A client of these brokers; `options`: of `connect`. Raises as `brokers_at`."""
    from broker.client.client import connect

    files = files_of(brokers)
    return connect(
        brokers,
        tls_ca=files.ca,
        tls_cert=files.cert,
        tls_key=files.key,
        token_file=files.token,
        profile=files.profile,
        **options,
    )
