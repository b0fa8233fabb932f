"""The master keys of a broker, as `[encryption]` names them: read once, at the start. They are nowhere else.

key_file, key_command      the key that wraps
former_key_files           those before it, until every log is wrapped anew
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from typing import TYPE_CHECKING, Final

from broker.api.errors import InvalidSetting
from broker.api.stream import StreamSettings
from broker.api.tls_files import why_not_private
from broker.runtime.config.settings import EncryptionConfig

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring, MasterKey

COMMAND_S: Final = 60
KEY_FILE_BYTES_MAX: Final = 4_096


def load_keyring(config: EncryptionConfig) -> Keyring | None:
    """The master keys; None: none is named.

    Raises:
        InvalidSetting: one cannot be read, others can read its file, or it is no key.
        NotSupported: this system cannot serve what is encrypted.
    """
    if config.key_file is None and not config.key_command:
        return None
    from broker.storage.encrypted.keys import Keyring  # most brokers need none of it
    from broker.storage.encrypted.plans import check_machine

    check_machine()
    first = (
        _from_command(config.key_command)
        if config.key_file is None
        else from_file(config.key_file, setting="encryption.key_file")
    )
    former = [from_file(path, setting="encryption.former_key_files") for path in config.former_key_files]
    return Keyring([first, *former])


def check_encryption(settings: StreamSettings, *, has_key: bool) -> StreamSettings:
    """Return the settings of a stream that is to be created, if a broker may make it.

    Raises:
        InvalidSetting: it is to be encrypted, and the broker has no master key.
    """
    if settings.encryption is not None and not has_key:
        raise InvalidSetting(
            f"encryption={settings.encryption}: this broker has no master key; set encryption.key_file or"
            " encryption.key_command in its configuration, and start it again",
            key="encryption",
            value=settings.encryption,
        )
    return settings


def from_file(path: str, *, setting: str) -> MasterKey:
    """The key in a file, or in a pipe. Raises InvalidSetting."""
    from broker.storage.encrypted.keys import MasterKey

    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            why = why_not_private(stat.S_IMODE(about.st_mode), about.st_uid, os.geteuid())
            if why and stat.S_ISREG(about.st_mode):
                raise InvalidSetting(f"{setting}: {path} {why}: chmod 600 {shlex.quote(path)}", key=setting)
            text = file.read(KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidSetting(f"{setting}: {path} cannot be read: {error.strerror}", key=setting) from error
    return MasterKey.parse(text, where=f"{setting}: {path}")


def _from_command(command: tuple[str, ...]) -> MasterKey:
    """What a command prints; what it says on stderr is the error. No shell reads it."""
    from broker.storage.encrypted.keys import MasterKey

    setting = "encryption.key_command"
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False, close_fds=True
        )
    except OSError as error:
        raise InvalidSetting(f"{setting}: {command[0]} cannot be run: {error.strerror}", key=setting) from error
    except subprocess.TimeoutExpired:
        raise InvalidSetting(f"{setting}: {command[0]} has not ended in {COMMAND_S} s", key=setting) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise InvalidSetting(f"{setting}: {command[0]} ended with {done.returncode}: {said}", key=setting)
    return MasterKey.parse(done.stdout, where=setting)
