"""A process registers from the folder that the catalog means, and behind nobody: lives on folders that come and go."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, cast

import pytest

from broker.api.errors import DeadlineExceeded, InvalidRequest, LiftlogError, NotReady, from_problem
from broker.control import registering
from broker.control.registering import FILE, Registration, seen_in
from broker.control.service import Catalogs
from broker.metadata.catalog import Catalog
from tests.support.simdisk import Crashed, SimDisk

PATH = f"/data/{FILE}"


class Service:
    """The catalog of one voter. `fate`: of the next command, if it is not simply carried out."""

    def __init__(self) -> None:
        self.present = Catalog()
        self.behind: Catalog | None = None  # as this broker has it, if that is another one
        self.fate = ""

    @property
    def catalog(self) -> Catalog:
        return self.behind or self.present

    def read(self) -> Catalog:
        self.behind = None
        return self.present

    def execute(self, command: Mapping[str, Any]) -> Any:
        fate, self.fate = self.fate, ""
        if fate == "lost":
            raise DeadlineExceeded("no answer", sent=True)
        if fate == "not sent":
            raise NotReady("no controller", sent=False)
        result = self.present.apply(json.loads(json.dumps(command)))
        if "error" in result:
            raise from_problem(result["error"])
        if fate == "no answer":
            raise DeadlineExceeded("no answer", sent=True)
        return result["ok"]

    def process(self, disk: SimDisk, name: str, *, has_logs: bool = True) -> Registration:
        command = {"v": 1, "kind": "register_broker", "broker_id": "b", "incarnation": name, "http": "b:1"}
        command |= {"grpc": "b:2", "request_id": f"register/{name}", "sound": {}}
        return Registration(cast(Catalogs, self), disk, "/data", command, has_logs=has_logs)


def new_disk(**options: Any) -> SimDisk:
    disk = SimDisk(**options)
    disk.makedirs("/data")
    return disk


def test_a_folder_is_taken_again_and_again_and_a_former_one_is_not() -> None:
    service, first, second = Service(), new_disk(), new_disk()
    for number in range(3):
        service.process(first, f"p{number}").ask()
    service.process(second, "p3", has_logs=False).ask()
    with pytest.raises(InvalidRequest, match="another data folder"):
        service.process(first, "p4").ask()
    service.process(second, "p5").ask()


def test_an_older_copy_of_the_folder_is_refused() -> None:
    service, disk = Service(), new_disk()
    service.process(disk, "p0").ask()
    copy = disk.after_kill()
    service.process(disk, "p1").ask()
    with pytest.raises(InvalidRequest, match="older copy"):
        service.process(copy, "p2").ask()
    service.process(disk, "p3").ask()


def test_a_folder_without_logs_is_anybodys() -> None:
    """The catalog takes for lost what it lacks."""
    service, first, second = Service(), new_disk(), new_disk()
    service.process(first, "p0").ask()
    service.process(second, "p1", has_logs=False).ask()
    service.process(first, "p2", has_logs=False).ask()


def test_a_catalog_that_is_older_than_the_folder_proves_nothing() -> None:
    """R3: it knows the former folder, or a process of an earlier release."""
    service, first, second = Service(), new_disk(), new_disk()
    service.process(first, "p0").ask()
    older = service.present.brokers["b"]
    service.process(second, "p1", has_logs=False).ask()
    newer = service.present.brokers["b"]
    seen = {name: seen_in(disk, "/data") for name, disk in (("first", first), ("second", second))}
    assert seen["first"] is not None
    assert seen["second"] is not None
    assert not seen["second"].lacks(older.incarnation, older.registration)
    assert not seen["second"].lacks(newer.incarnation, newer.registration)
    assert seen["first"].lacks(newer.incarnation, newer.registration)


def test_a_rescue_begins_with_a_catalog_that_knows_the_former_folder() -> None:
    service, first, second = Service(), new_disk(), new_disk()
    service.process(first, "p0").ask()
    old = json.loads(json.dumps(service.present.snapshot()))
    service.process(second, "p1", has_logs=False).ask()
    service.present = Catalog.restore(old)
    service.present.apply({"v": 1, "kind": "form_cluster", "cluster_id": "c"})
    began = {"v": 1, "kind": "begin_rescue", "cluster_id": "c", "epoch_last": service.present.epoch_last}
    assert "ok" in service.present.apply(began)
    service.process(second, "p2").ask()


def test_a_registration_under_way_when_this_process_began_does_not_end_its_start() -> None:
    """The former process was killed, and its command is carried out behind the back of this one."""
    service, disk = Service(), new_disk()
    service.process(disk, "p0").ask()
    service.behind = Catalog.restore(json.loads(json.dumps(service.present.snapshot())))
    late = service.process(disk, "p1")
    service.fate = "no answer"
    with pytest.raises(DeadlineExceeded):
        late.ask()
    mine = service.process(disk, "p2")
    with pytest.raises(NotReady, match="now has registration"):
        mine.ask()
    number = mine.ask()
    assert service.present.brokers["b"].incarnation == "p2"
    with pytest.raises(InvalidRequest, match=f"now has registration {number}"):
        service.execute({**late._command, "request_id": "", "after": 1})


def test_it_is_counted_from_the_first_time_that_it_may_have_been_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2 of the plane: also if a later try was not sent."""
    clock = iter(range(100, 200))
    monkeypatch.setattr(registering, "boot_ms", lambda: next(clock))
    service = Service()
    mine = service.process(new_disk(), "p0")
    for service.fate in ("not sent", "no answer", "not sent"):
        try:
            mine.ask()
        except LiftlogError:
            continue
    assert mine.ask() == service.present.brokers["b"].registration
    assert min(mine.sent_ms) == 101


def test_a_folder_of_an_earlier_release_is_taken_once_and_remembered() -> None:
    service, disk, other = Service(), new_disk(), new_disk()
    service.present.apply({**service.process(disk, "p0")._command})
    service.fate = "lost"
    with pytest.raises(DeadlineExceeded):
        service.process(disk, "p1").ask()  # killed before it has registered
    service.process(disk, "p2").ask()
    service.process(other, "p3", has_logs=False).ask()
    with pytest.raises(InvalidRequest, match="another data folder"):
        service.process(disk, "p4").ask()


def test_names_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registering, "KEPT", 3)
    service, disk = Service(), new_disk()
    for number in range(20):
        service.process(disk, f"p{number}").ask()
        names = [line.split()[0] for line in disk.read_file(PATH).decode().splitlines() if line]
        assert len(names) <= 6
        assert names[-3:] == [f"p{n}" for n in range(max(0, number - 2), number + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_killed_the_last_folder_is_taken_and_no_other(seed: int) -> None:
    """Lives on three folders; the power goes at any step, and commands and answers are lost. Nor does what a catalog
    knew at any time speak against the last folder (R3)."""
    rng = random.Random(seed)
    known: list[tuple[str, int]] = []
    service, disks, holder = Service(), [new_disk(seed=seed * 10 + n) for n in range(3)], -1
    lives = [0, 0, 0]
    for number in range(60):
        at = rng.randrange(3) if rng.random() < 0.3 or holder < 0 else holder
        disk = disks[at]
        has_logs = lives[at] > 0
        if rng.random() < 0.3:
            disk = disk.after_kill(crash_at=rng.randrange(1, 6))
        service.fate = rng.choice(("", "", "", "lost", "no answer", "not sent"))
        before = service.present.brokers.get("b")
        try:
            service.process(disk, f"p{number}", has_logs=has_logs).ask()
        except InvalidRequest:
            assert at != holder, "the folder of the last process is refused"
            assert has_logs
        except (LiftlogError, Crashed):
            pass
        else:
            assert at == holder or not has_logs, "a former folder is taken"
        now = service.present.brokers.get("b")
        if now is not None and now is not before:
            holder, lives[at] = at, lives[at] + 1
            known.append((now.incarnation, now.registration))
        disks[at] = disk.after_crash("lost") if rng.random() < 0.5 else disk.after_kill()
        seen = None if holder < 0 else seen_in(disks[holder], "/data")
        assert seen is None or not any(seen.lacks(*each) for each in known)
