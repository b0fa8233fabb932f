"""The master keys of a broker, as `[encryption]` names them: read once, at the start. They are nowhere else.

key_file, key_command      the key that wraps
former_key_files           those before it, until every log is wrapped anew
"""

from __future__ import annotations

import os
import selectors
import shlex
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Final

from broker.api.errors import InvalidSetting
from broker.api.stream import StreamSettings
from broker.api.tls_files import why_not_private
from broker.config.settings import EncryptionConfig

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring, MasterKey

COMMAND_S: Final = 60
KEY_FILE_BYTES_MAX: Final = 4_096


def load_keyring(config: EncryptionConfig, *, command_s: float = COMMAND_S) -> Keyring | None:
    """The master keys; None: none is named.

    Args:
        command_s: So long `key_command` may take.
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
        _from_command(config.key_command, command_s)
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


def _from_command(command: tuple[str, ...], patience_s: float) -> MasterKey:
    """What a command prints; what it says on stderr is the error. No shell reads it."""
    from broker.storage.encrypted.keys import MasterKey

    setting = "encryption.key_command"

    def wrong(why: str) -> InvalidSetting:
        return InvalidSetting(f"{setting}: {command[0]} {why}", key=setting)

    try:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=True
        )
    except (OSError, ValueError) as error:  # the latter: a NUL in a word
        raise wrong(f"cannot be run: {getattr(error, 'strerror', None) or error}") from error
    with running:
        try:
            printed, said = _read_bounded(running, time.monotonic() + patience_s)
        except TimeoutError:
            raise wrong(f"has not ended in {patience_s:g} s") from None
        finally:
            running.kill()  # if it has not ended
    if len(printed) > KEY_FILE_BYTES_MAX:
        raise wrong(f"prints more than {KEY_FILE_BYTES_MAX:,} bytes, which is no master key")
    if running.returncode:
        raise wrong(f"ended with {running.returncode}: {said.decode(errors='replace').strip()[-500:]}")
    return MasterKey.parse(printed, where=f"{setting}: {command[0]}")


def _read_bounded(running: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes]:
    """What a process prints, and the end of what it says on stderr, until it has ended or has printed too much.

    Raises:
        TimeoutError: it goes on.
    """
    assert running.stdout is not None
    assert running.stderr is not None
    streams = {stream.fileno(): b"" for stream in (running.stdout, running.stderr)}
    of_stdout = running.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        for each in streams:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map() and len(streams[of_stdout]) <= KEY_FILE_BYTES_MAX:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, KEY_FILE_BYTES_MAX + 1)
                streams[key.fd] = (streams[key.fd] + data)[-(KEY_FILE_BYTES_MAX + 1) :]
                if not data:
                    selector.unregister(key.fd)
    if len(streams[of_stdout]) <= KEY_FILE_BYTES_MAX:
        try:
            running.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
    printed, said = streams.values()
    return printed, said
