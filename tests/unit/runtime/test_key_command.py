"""`encryption.key_command`: whatever goes wrong with it, the error names it, and no broker starts half.

Seen before: a command that printed without end filled the memory for the whole minute that it was given.
"""

from __future__ import annotations

import base64
import errno
import os
import sys
from pathlib import Path

import pytest

from broker.api.errors import InvalidSetting
from broker.config.master_keys import COMMAND_S, KEY_FILE_BYTES_MAX, load_keyring
from broker.config.settings import EncryptionConfig
from broker.storage.encrypted.keys import MasterKey
from tests.support.processes import BrokerProcess

pytestmark = pytest.mark.process
KEY = bytes(range(32))
TEXT = base64.b64encode(KEY).decode()
NO_KEY = "a master key is 32 random bytes in base64"


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


FAULTS = {
    "exit 1": (("sh", "-c", f"echo {TEXT}; echo no such key >&2; exit 1"), "sh ended with 1: no such key"),
    "killed": (("sh", "-c", "kill -9 $$"), "sh ended with -9"),
    "not there": (("no-such-kms", "decrypt"), "no-such-kms cannot be run: No such file or directory"),
    "a folder": (("/",), "/ cannot be run: Permission denied"),
    "a word with NUL": (("cat", "a\0b"), "cat cannot be run: embedded null byte"),
    "junk": (("echo", "not a key"), f"echo: {NO_KEY}"),
    "bytes": (python(r"import os; os.write(1, b'\xff' * 32)"), f"{sys.executable}: {NO_KEY}"),
    "nothing": (("true",), f"true: {NO_KEY}"),
    "too short": (("echo", base64.b64encode(KEY[:-1]).decode()), f"echo: {NO_KEY}"),
    "a key and more": (("echo", TEXT, TEXT), f"echo: {NO_KEY}"),
    "without end": (("cat", "/dev/zero"), f"cat prints more than {KEY_FILE_BYTES_MAX:,} bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_that_names_the_command(fault: str) -> None:
    command, says = FAULTS[fault]
    with pytest.raises(InvalidSetting) as found:
        load_keyring(EncryptionConfig(key_command=command))
    assert found.value.message.startswith("encryption.key_command: ")
    assert says in found.value.message
    assert TEXT not in found.value.message


@pytest.mark.parametrize("program", ["exec cat {}", "exec >&- 2>&-; read x <{}", "echo " + TEXT + "; exec cat {}"])
def test_one_that_takes_too_long_is_ended(tmp_path: Path, program: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = ("sh", "-c", program.format(fifo))  # nobody ever writes into the pipe
    with pytest.raises(InvalidSetting, match=r"^encryption\.key_command: sh has not ended in 5 s$"):
        load_keyring(EncryptionConfig(key_command=command), command_s=5)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):  # nobody is there to read from it
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_much_on_stderr_holds_nothing_up() -> None:
    program = f"import os; os.write(2, b'x' * {1 << 20}); print({TEXT!r})"
    keyring = load_keyring(EncryptionConfig(key_command=python(program)), command_s=COMMAND_S)
    assert keyring is not None
    assert keyring.current == MasterKey(KEY).id


def test_no_broker_starts_by_one_that_fails_and_the_next_start_goes_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, None, env={"LIFTLOG_ENCRYPTION_KEY_COMMAND": "cat,/dev/zero"})
    broker.start(wait=False)
    assert broker.process is not None
    assert broker.process.popen.wait(120) > 0
    assert "encryption.key_command: cat prints more than" in broker.output()
    assert "Traceback" not in broker.output()
    assert "broker.started" not in broker.output()
    broker.env["LIFTLOG_ENCRYPTION_KEY_COMMAND"] = f"echo,{TEXT}"
    try:
        broker.start()
    finally:
        broker.stop()
