"""What `liftlog doctor` looks at on this machine: versions, data folder, disk, limits, fsync.

A check says what it found and, where that is not as it should be, what to do. `wrong` keeps a broker from working or
endangers records; `warning` makes it slow, or will be wrong later. Nothing is changed; the fsync probe writes a
small file of its own into the data folder and removes it.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.cli.output import bytes_text
from broker.storage.folder import BROKER_FILE, FORMAT_VERSION, STREAMS_FOLDER
from broker.storage.places import owner_of, used_by

OK: Final = "ok"
WARNING: Final = "warning"
WRONG: Final = "wrong"
SKIPPED: Final = "skipped"

PYTHON_LEAST: Final = (3, 11)
LEAST: Final = {"pyarrow": (18,), "numpy": (1, 26), "crc32c": (2, 7), "nats-py": (2, 16), "aiohttp": (3, 10)}
BELOW: Final = {"nats-py": (2, 17), "aiohttp": (4,)}
"""What pyproject.toml asks for; a test compares."""

FREE_SHARE_WRONG: Final = 0.01
FREE_SHARE_LOW: Final = 0.10
FREE_BYTES_WRONG: Final = 256 << 20
FILES_BESIDE: Final = 512
"""Descriptors for sockets, readers and libraries."""
OPEN_LOGS: Final = 8_192
RAISED_TO: Final = 1 << 20
"""Defaults of the broker: logs that keep their file open, and the limit that it asks for at most."""
FSYNC_PROBES: Final = 12
FSYNC_SLOW_MS: Final = 50.0
FSYNC_UNBELIEVABLE_MS: Final = 0.02
NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"})
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: Of the check.
        status: ok, warning, wrong or skipped.
        found: What was found, in words.
        advice: What to do; empty when nothing is.
        values: The numbers behind it.
    """

    name: str
    status: str
    found: str
    advice: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def check_versions() -> Iterator[Check]:
    """Python and the libraries that are particular about their version."""
    version = sys.version_info[:3]
    text = ".".join(map(str, version))
    if version >= PYTHON_LEAST:
        yield Check(name="python", status=OK, found=text)
    else:
        yield Check(name="python", status=WRONG, found=text, advice="install Python 3.11 or later")
    for name, least in LEAST.items():
        below = BELOW.get(name)
        wanted = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
        advice = f"pip install '{name}{wanted}'"
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Check(name=name, status=WRONG, found="not installed", advice=advice)
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
        fits = numbers >= least and (below is None or numbers < below)
        yield Check(name=name, status=OK if fits else WRONG, found=found, advice="" if fits else advice)


def check_compiled(implementation: str) -> Iterator[Check]:
    """The compiled intake, and CRC-32C in hardware. `implementation`: what the configuration asks for."""
    from crc32c import hardware_based

    from broker.ingest import load

    try:
        load("compiled")
        yield Check(name="intake", status=OK, found="compiled")
    except ImportError:
        yield Check(
            name="intake",
            status=WRONG if implementation == "compiled" else WARNING,
            found="only the Python implementation: a fraction of the rate",
            advice="install a C compiler and Python's headers, then install liftlog anew",
        )
    if hardware_based:
        yield Check(name="checksums", status=OK, found="CRC-32C in hardware")
    else:
        advice = "this processor has no CRC-32C instructions that the library uses; expect about a tenth of the rate"
        yield Check(name="checksums", status=WARNING, found="CRC-32C in software", advice=advice)


def check_folder(path: str, broker_id: str) -> Iterator[Check]:
    """Whose the data folder is, who uses it, whether it may be written."""
    if not os.path.isdir(path):
        parent = _existing(path)
        if os.path.exists(path):
            yield Check(
                name="data folder", status=WRONG, found=f"{path} is no folder", advice="set data_dir to a folder"
            )
        elif os.access(parent, os.W_OK | os.X_OK):
            yield Check(name="data folder", status=OK, found=f"{path} is not there yet: the first start makes it")
        else:
            yield Check(
                name="data folder",
                status=WRONG,
                found=f"{path} is not there and {parent} may not be written",
                advice=f"make it, and give it to this user (uid {os.geteuid()}), or set another data_dir",
            )
        return
    yield _permissions(path)
    yield _owner(path, broker_id)
    user = used_by(path)
    if user is None:
        yield Check(name="lock", status=OK, found="no broker has it open")
    else:
        yield Check(name="lock", status=OK, found=f"in use by process {user or 'unknown'}", values={"pid": user})


_CATALOG_GONE: Final = (
    "restore the file from a backup; without it the streams are not known, but their records are there"
)


def check_catalog(path: str) -> tuple[list[Check], int]:
    """Whether the catalog can be read and all folders it speaks of are there. Returns how many partitions, too."""
    from broker.metadata.catalog import Catalog
    from broker.metadata.journal import decode_lines

    name = f"{path}/catalog.log"
    catalog = Catalog()
    try:
        lines, _ = decode_lines(Path(name).read_bytes(), where=name)
        for line in lines:
            if "snapshot" in line:
                catalog = Catalog.restore(line["snapshot"])
            else:
                catalog.apply(line)
    except FileNotFoundError:
        if not _unknown_folders(path, set()):
            return [Check(name="catalog", status=OK, found="none yet")], 0
        return [Check(name="catalog", status=WRONG, found=f"{name} is missing", advice=_CATALOG_GONE)], 0
    except OSError as error:
        return [Check(name="catalog", status=WRONG, found=f"{name}: {error.strerror}", advice=_READABLE)], 0
    except (LiftlogError, KeyError, TypeError, ValueError) as error:
        return [Check(name="catalog", status=WRONG, found=str(error), advice=_CATALOG_GONE)], 0
    missing, count = [], 0
    for info in catalog.streams.values():
        count += info.settings.partitions
        for number in range(info.settings.partitions):
            folder = f"{path}/{STREAMS_FOLDER}/{info.name}/{info.incarnation}/{number}"
            if not os.path.exists(f"{folder}/partition.json"):
                missing.append(folder)
    known = {(info.name, info.incarnation) for info in catalog.streams.values()}
    unknown = _unknown_folders(path, known)
    if missing:
        found = f"{len(missing)} partition folders are missing or have no partition.json, the first: {missing[0]}"
        advice = "put the folders back, or delete the stream; it stays offline until then"
        wrong = Check(name="catalog", status=WRONG, found=found, advice=advice, values={"missing": missing})
        return [wrong, *unknown], count
    found = f"{len(catalog.streams)} streams, {count} partitions"
    return [Check(name="catalog", status=OK, found=found, values={"partitions": count}), *unknown], count


def _unknown_folders(path: str, known: Collection[tuple[str, str]]) -> list[Check]:
    """Folders of streams that the catalog does not name."""
    from broker.runtime.orphans import unnamed_folders
    from broker.storage.disk import OsDisk

    try:
        found = [
            f"{path}/{STREAMS_FOLDER}/{a}/{b}" for a, b in unnamed_folders(OsDisk(), f"{path}/{STREAMS_FOLDER}", known)
        ]
    except OSError:
        return []  # the check of the folder tells
    if not found:
        return []
    return [
        Check(
            name="stream folders",
            status=WARNING,
            found=f"{len(found)} that the catalog does not name, the first: {found[0]}",
            advice="left by a change that was cut short, or copied there: look (liftlog log dump), then remove it",
            values={"unknown": found},
        )
    ]


def check_disk(path: str) -> Iterator[Check]:
    """Free space, free inodes, and what kind of file system it is."""
    path = _existing(path)
    space = os.statvfs(path)
    total, free = space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail
    share = free / total if total else 0.0
    status, advice = OK, ""
    if share < FREE_SHARE_WRONG or free < FREE_BYTES_WRONG:
        status, advice = WRONG, "free space, or lower retention_bytes or retention_ms: a full disk refuses appends"
    elif share < FREE_SHARE_LOW:
        status, advice = WARNING, "look at retention before it fills: a full disk refuses appends"
    found = f"{bytes_text(free)} free of {bytes_text(total)} ({share:.0%})"
    yield Check(
        name="disk", status=status, found=found, advice=advice, values={"free_bytes": free, "total_bytes": total}
    )
    if space.f_files:
        share = space.f_favail / space.f_files
        is_low = share < FREE_SHARE_LOW
        yield Check(
            name="inodes",
            status=WRONG if share < FREE_SHARE_WRONG else WARNING if is_low else OK,
            found=f"{space.f_favail} free of {space.f_files} ({share:.0%})",
            advice="every segment takes two files: use a larger segment_bytes, or a file system with more" * is_low,
            values={"free": space.f_favail, "total": space.f_files},
        )
    kind = _file_system(path)
    if kind in VOLATILE:
        advice = "records are gone with the machine: put data_dir on a disk"
        yield Check(name="file system", status=WARNING, found=kind, advice=advice)
    elif kind in NETWORK:
        advice = "locks and fsync of network file systems are weaker than promised: use a local disk"
        yield Check(name="file system", status=WARNING, found=kind, advice=advice)
    elif kind:
        yield Check(name="file system", status=OK, found=kind)


def check_limits(partitions: int, pid: int | None) -> Iterator[Check]:
    """Open files: of the running broker where it can be seen, else of this shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = hard if hard != resource.RLIM_INFINITY else RAISED_TO  # a broker raises the soft limit by itself
    whose = "here"
    found = _limit_of(pid) if pid else None
    if found is not None:
        soft, whose = found, f"of process {pid}"
    wanted = FILES_BESIDE + min(OPEN_LOGS, partitions)
    advice = f"raise it to {max(65_536, wanted)}: `ulimit -n`, or LimitNOFILE= of the service"
    status = WRONG if soft < FILES_BESIDE + 16 else WARNING if soft < wanted else OK
    yield Check(
        name="open files",
        status=status,
        found=f"limit {soft} {whose}, {partitions} partitions want up to {wanted}",
        advice="" if status == OK else advice,
        values={"soft": soft, "hard": hard, "wanted": wanted},
    )


def check_fsync(path: str) -> Iterator[Check]:
    """How long an fsync takes in the data folder: the median of a few."""
    if not os.path.isdir(path):
        yield Check(name="fsync", status=SKIPPED, found="no data folder yet")
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
        advice = "free space" if error.errno == errno.ENOSPC else "look after the disk and its permissions"
        yield Check(name="fsync", status=WRONG, found=f"{name}: {error.strerror}", advice=advice)
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
    found = f"median {median:.2f} ms, greatest {worst:.2f} ms of {FSYNC_PROBES}"
    values = {"median_ms": round(median, 3), "max_ms": round(worst, 3)}
    yield Check(name="fsync", status=status, found=found, advice=advice, values=values)


def check_file_times(path: str, now_s: float) -> Iterator[Check]:
    """Whether the clock went back: files of the data folder that are newer than now."""
    newest = 0.0
    for name in ("catalog.log", BROKER_FILE, "lock"):
        if os.path.exists(f"{path}/{name}"):
            newest = max(newest, os.stat(f"{path}/{name}").st_mtime)
    ahead_s = newest - now_s
    if newest and ahead_s > 60:
        yield Check(
            name="clock",
            status=WRONG,
            found=f"the data folder was written {ahead_s:.0f} s after now: the clock went back",
            advice="set the clock (NTP) before starting: retention and timestamps go by it",
            values={"ahead_s": round(ahead_s)},
        )


_READABLE: Final = "give it to the user that runs the broker"


def _permissions(path: str) -> Check:
    refused = [
        name
        for name in (path, f"{path}/{STREAMS_FOLDER}", f"{path}/{BROKER_FILE}", f"{path}/catalog.log", f"{path}/lock")
        if os.path.exists(name) and not os.access(name, os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(name) else 0))
    ]
    if refused:
        advice = f"chown -R to the user that runs the broker (here uid {os.geteuid()}), or mount it writable"
        return Check(name="data folder", status=WRONG, found=f"may not be written: {', '.join(refused)}", advice=advice)
    return Check(name="data folder", status=OK, found=path)


def _owner(path: str, broker_id: str) -> Check:
    owner = owner_of(path)
    if owner is None:
        if os.path.exists(f"{path}/{BROKER_FILE}"):
            advice = (
                "restore it: {format_version, cluster_id, broker_id}; partition.json of any partition has the cluster"
            )
            return Check(name="owner", status=WRONG, found=f"{BROKER_FILE} cannot be read", advice=advice)
        if os.path.isdir(f"{path}/{STREAMS_FOLDER}"):
            advice = "restore it from a backup; nobody knows whose these streams are"
            return Check(name="owner", status=WRONG, found=f"streams but no {BROKER_FILE}", advice=advice)
        return Check(name="owner", status=OK, found="nobody's yet")
    if owner.get("format_version") != FORMAT_VERSION:
        found = f"format version {owner.get('format_version')}, this release reads {FORMAT_VERSION}"
        return Check(name="owner", status=WRONG, found=found, advice="use the release that wrote it, or a later one")
    if owner.get("broker_id") != broker_id:
        found = f"belongs to broker {owner.get('broker_id')!r}, the configuration says {broker_id!r}"
        return Check(name="owner", status=WRONG, found=found, advice="set broker_id or data_dir so that they agree")
    found = f"broker {broker_id} of cluster {owner.get('cluster_id')}, format version {FORMAT_VERSION}"
    return Check(name="owner", status=OK, found=found)


def _existing(path: str) -> str:
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


def worst_of(checks: list[Check]) -> str:
    """wrong, warning or ok."""
    statuses = {check.status for check in checks}
    return next((status for status in (WRONG, WARNING) if status in statuses), OK)


def as_json(checks: list[Check], more: Mapping[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    return {**more, "status": worst_of(checks), "checks": [asdict(check) for check in checks]}
