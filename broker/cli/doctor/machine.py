"""Checks of `liftlog doctor` on this machine: versions, what is compiled, disk, limits, fsync.

The fsync probe writes a small file of its own into the data folder and removes it.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from broker.cli.doctor.checks import OK, SKIPPED, WARNING, WRONG, Check
from broker.cli.output import bytes_text, counted

PYTHON_LEAST: Final = (3, 11)
LEAST: Final = {"pyarrow": (18,), "numpy": (1, 26), "crc32c": (2, 7), "nats-py": (2, 16), "aiohttp": (3, 14, 4)}
BELOW: Final = {"nats-py": (2, 17), "aiohttp": (3, 15)}
"""The versions that pyproject.toml asks for; a test compares."""

FREE_SHARE_WRONG: Final = 0.01
FREE_SHARE_LOW: Final = 0.10
FREE_BYTES_WRONG: Final = 256 << 20
DAY_S: Final = 86_400
EXPIRES_SOON_S: Final = 14 * DAY_S
FSYNC_PROBES: Final = 12
FSYNC_SLOW_MS: Final = 50.0
FSYNC_UNBELIEVABLE_MS: Final = 0.02
NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"})
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})


def check_versions() -> Iterator[Check]:
    """Python and the libraries that are particular about their version."""
    version = sys.version_info[:3]
    text = ".".join(map(str, version))
    if version >= PYTHON_LEAST:
        yield Check("python", OK, text)
    else:
        yield Check("python", WRONG, text, "install Python 3.11 or later")
    for name, least in LEAST.items():
        below = BELOW.get(name)
        wanted = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
        advice = f"pip install '{name}{wanted}'"
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Check(name, WRONG, "not installed", advice)
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
        fits = numbers >= least and (below is None or numbers < below)
        yield Check(name, OK if fits else WRONG, found, "" if fits else advice)


def check_compiled(implementation: str) -> Iterator[Check]:
    """The compiled intake, and CRC-32C in hardware. `implementation`: what the configuration asks for."""
    from crc32c import hardware_based

    from broker.ingest import load

    try:
        load("compiled")
        yield Check("intake", OK, "compiled")
    except ImportError:
        yield Check(
            "intake",
            WRONG if implementation == "compiled" else WARNING,
            "only in Python, at a fraction of the rate: the compiled one cannot be loaded",
            "install a C compiler and Python's headers, then install liftlog again",
        )
    if hardware_based:
        yield Check("checksums", OK, "CRC-32C in hardware")
    else:
        advice = "this processor has no CRC-32C instructions that the library uses; expect about a tenth of the rate"
        yield Check("checksums", WARNING, "CRC-32C in software", advice)


def check_disk(path: str) -> Iterator[Check]:
    """Free space, free inodes, and what kind of file system it is."""
    path = existing_folder(path)
    space = os.statvfs(path)
    total, free = space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail
    share = free / total if total else 0.0
    status, advice = OK, ""
    if share < FREE_SHARE_WRONG or free < FREE_BYTES_WRONG:
        status, advice = WRONG, "free space, or lower retention_bytes or retention_ms: a full disk refuses appends"
    elif share < FREE_SHARE_LOW:
        status, advice = WARNING, "check retention before the disk is full: a full disk refuses appends"
    found = f"{bytes_text(free)} free of {bytes_text(total)} ({share:.0%})"
    yield Check("disk", status, found, advice, {"free_bytes": free, "total_bytes": total})
    if space.f_files:
        share = space.f_favail / space.f_files
        is_low = share < FREE_SHARE_LOW
        yield Check(
            "inodes",
            WRONG if share < FREE_SHARE_WRONG else WARNING if is_low else OK,
            f"{space.f_favail} free of {space.f_files} ({share:.0%})",
            "every segment takes two files: use a larger segment_bytes, or a file system with more" * is_low,
            {"free": space.f_favail, "total": space.f_files},
        )
    kind = _file_system(path)
    if kind in VOLATILE:
        advice = "records are lost when the machine stops: put data_dir on a disk"
        yield Check("file system", WARNING, kind, advice)
    elif kind in NETWORK:
        advice = "locks and fsync of network file systems are weaker than promised: use a local disk"
        yield Check("file system", WARNING, kind, advice)
    elif kind:
        yield Check("file system", OK, kind)


def check_limits(partitions: int, pid: int | None, *, open_files_max: int, connections_max: int) -> Iterator[Check]:
    """Open files: of the running broker where it can be seen, else of this shell.

    Args:
        open_files_max, connections_max: `limits.open_files_max` and `http.connections_max` of its configuration.
    """
    from broker.node.partitions.open_logs import BESIDE, CONNECTIONS_SHARE, LEAST, RAISED_TO

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = hard if hard != resource.RLIM_INFINITY else RAISED_TO  # a broker raises the soft limit by itself
    whose = "of this shell (hard)"
    found = _limit_of(pid) if pid else None
    if found is not None:
        soft, whose = found, f"of process {pid}"
    taken = min(connections_max, max(LEAST, soft // CONNECTIONS_SHARE))
    for_logs, for_connections = BESIDE + min(open_files_max, partitions), CONNECTIONS_SHARE * connections_max
    wanted = max(for_logs, for_connections)
    advice = f"raise it to {max(65_536, wanted)}: `ulimit -n`, or LimitNOFILE= of the service"
    status = WRONG if soft < BESIDE + LEAST else WARNING if soft < wanted else OK
    yield Check(
        "open files",
        status,
        f"limit {soft} {whose}: {counted(partitions, 'partition')} may need up to {for_logs} of them;"
        f" it allows {taken} HTTP connections at once,"
        f" and http.connections_max = {connections_max} needs {for_connections}",
        "" if status == OK else advice,
        {"soft": soft, "hard": hard, "wanted": wanted, "connections": taken},
    )


def check_fsync(path: str) -> Iterator[Check]:
    """How long an fsync takes in the data folder: the median of a few."""
    if not os.path.isdir(path):
        yield Check("fsync", SKIPPED, "there is no data folder yet")
        return
    name = f"{path}/.doctor-{os.getpid()}.tmp"
    took_ms = []
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(FSYNC_PROBES):
                os.write(fd, bytes(4096))
                begun = time.perf_counter()
                os.fdatasync(fd)
                took_ms.append((time.perf_counter() - begun) * 1000)
        finally:
            os.close(fd)
            os.unlink(name)
    except OSError as error:
        advice = "free space" if error.errno == errno.ENOSPC else "check the disk and its permissions"
        yield Check("fsync", WRONG, f"{name}: {error.strerror}", advice)
        return
    median, worst = statistics.median(took_ms), max(took_ms)
    status, advice = OK, ""
    if median > FSYNC_SLOW_MS:
        status, advice = WARNING, "every ack waits for one: use a disk with power-loss protection, or fsync = interval"
    elif median < FSYNC_UNBELIEVABLE_MS:
        status, advice = (
            WARNING,
            "too quick for a disk: something answers before the bytes are safe (tmpfs, a VM's cache)",
        )
    found = f"median {median:.2f} ms, longest {worst:.2f} ms, of {FSYNC_PROBES} in the data folder"
    values = {"median_ms": round(median, 3), "max_ms": round(worst, 3)}
    yield Check("fsync", status, found, advice, values)


def check_certificate(whose: str, expires: datetime, now_s: float) -> Iterator[Check]:
    """How long a certificate of this broker is good for."""
    left_s = expires.timestamp() - now_s
    found = f"that {whose} is good until {expires.isoformat()}: {left_s / DAY_S:.0f} days"
    values = {"expires": expires.isoformat(), "left_s": round(left_s)}
    if left_s < EXPIRES_SOON_S:
        advice = "renew it: files that change are taken without a restart"
        yield Check("certificate", WARNING, found, advice, values)
    else:
        yield Check("certificate", OK, found, values=values)


def existing_folder(path: str) -> str:
    """The folder, or the nearest one above it that is there."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _file_system(path: str) -> str:
    """The type of the file system, by the longest mount point above the path; empty where it is not known."""
    path, best, kind = os.path.realpath(path), "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, kind = point, found
    return kind


def _limit_of(pid: int) -> int | None:
    """The soft limit of open files of another process; None where it is not shown."""
    try:
        text = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^Max open files\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
