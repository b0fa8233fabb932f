"""What a liftlog needs to be secured, made on the spot, all in one folder: certificates, tokens, profiles.

    FOLDER/tls/ca.pem, ca.key        a CA for this liftlog alone
              broker.pem, broker.key one certificate for all its brokers, of HTTP and between them
    FOLDER/admin.token               the first token: of the admin, who makes the others
    FOLDER/PART.token                the token of each part that talks to the brokers
    FOLDER/profiles.toml             brokers, CA and token of each part under its name; `nobody` has no token

X1  Everything is in the folder, and goes with it. Nothing of the user's home is read or written.
X2  Tokens and keys are in files that their owner alone can read. They go through no command line and no variable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ADMIN: Final = "admin"
NOBODY: Final = "nobody"
HOSTS: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Secrets:
    """The files of one liftlog.

    Attributes:
        folder: An absolute path.
    """

    folder: Path

    def profile(self, part: str) -> str:
        """Its name, as `--profile`, `connect` and Spark's option take it."""
        return f"{self.folder}/profiles.toml#{part}"

    def token(self, part: str) -> Path:
        return self.folder / f"{part}.token"

    def commands(self, brokers_count: int) -> list[list[str]]:
        """What makes them, before anything runs."""
        tls = str(self.folder / "tls")
        hosts = [word for host in HOSTS for word in ("--host", host)]
        brokers = [word for number in range(brokers_count) for word in ("--broker", f"broker-{number}")]
        return [
            ["certs", "init", tls],
            ["certs", "issue", tls, "broker", *hosts, *brokers],
            ["auth", "init", str(self.token(ADMIN))],
        ]

    def environment(self, brokers_count: int) -> dict[str, str]:
        """The settings of the brokers: paths alone."""
        tls = self.folder / "tls"
        files = {"CERT": "broker.pem", "KEY": "broker.key", "CA": "ca.pem"}
        ports = ("HTTP", "CLUSTER") if brokers_count > 1 else ("HTTP",)
        found = {f"LIFTLOG_{port}_TLS_{name}": str(tls / file) for port in ports for name, file in files.items()}
        return {**found, "LIFTLOG_AUTH_MODE": "enforce", "LIFTLOG_AUTH_ADMIN_TOKEN_FILE": str(self.token(ADMIN))}

    def note_brokers(self, brokers: str) -> None:
        """Begin the file of profiles, with the admin's and nobody's."""
        file = self.folder / "profiles.toml"
        file.touch(mode=0o600)
        self.note_part(ADMIN, brokers)
        self.note_part(NOBODY, brokers)

    def note_part(self, part: str, brokers: str) -> None:
        """Add the profile of a part."""
        values = {"brokers": brokers, "tls_ca": "tls/ca.pem"}
        if part != NOBODY:
            values["token_file"] = self.token(part).name
        lines = [f"[{part}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
        with open(self.folder / "profiles.toml", "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
