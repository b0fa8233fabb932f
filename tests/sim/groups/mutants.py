"""Mistakes in the rules of consumer groups: each takes one out. Within so many seeds each is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from broker.groups import fencing
from broker.groups.fencing import CommitVerdict, GroupProgress
from broker.metadata import assignment, groups
from broker.metadata.groups import ConsumerGroup, Groups
from tests.sim.groups.world import World


class Mutant(NamedTuple):
    """`seeds`: it is found within so many, from 0 on; `known`: by this one. `what`: is taken out."""

    seeds: int
    known: int
    what: str
    patches: Callable[[], list[Any]]


def _release_of_any_epoch() -> list[Any]:
    return [patch.object(groups, "_is_grant", lambda grant, member, _: grant is not None and grant.member == member)]


def _grants_at_once() -> list[Any]:
    def granted(self: Groups, group: ConsumerGroup) -> ConsumerGroup:
        kept = {each: grant for each, grant in group.grants.items() if grant.member == group.target.get(each)}
        return before(self, ConsumerGroup(group.members, group.target, kept))

    before = Groups._granted
    return [patch.object(Groups, "_granted", granted)]


def _place_keeps_epochs() -> list[Any]:
    def join(self: Groups, name: str, member: str, *args: Any, **options: Any) -> int:
        group = self.named.get(name, ConsumerGroup())
        session = before(self, name, member, *args, **options)
        after = self.named[name]
        taken = {
            each: grant._replace(epoch=group.grants[each].epoch)
            if each in group.grants and group.grants[each].member not in after.members
            else grant
            for each, grant in after.grants.items()
        }
        self.named = {**self.named, name: ConsumerGroup(after.members, after.target, taken)}
        return session

    before = Groups.join
    return [patch.object(Groups, "join", join)]


def _any_epoch_commits() -> list[Any]:
    def judge(newest: GroupProgress, epoch: int, start: int, offset: int) -> CommitVerdict:
        return commit(newest._replace(epoch=epoch), epoch, start, offset)

    commit = fencing.judge_commit
    return [patch.object(fencing, "judge_commit", judge)]


def _begin_writes_nothing() -> list[Any]:
    def judge_begin(
        newest: GroupProgress, member: str, epoch: int, granted: tuple[str, int] | None, last: int
    ) -> CommitVerdict:
        verdict = begin(newest, member, epoch, granted, last)
        return CommitVerdict.DONE if verdict is CommitVerdict.APPEND else verdict

    def judge_commit(newest: GroupProgress, epoch: int, start: int, offset: int) -> CommitVerdict:
        return commit(newest._replace(epoch=max(epoch, newest.epoch)), epoch, start, offset)

    begin, commit = fencing.judge_begin, fencing.judge_commit
    return [patch.object(fencing, "judge_begin", judge_begin), patch.object(fencing, "judge_commit", judge_commit)]


def _answers_at_once() -> list[Any]:
    def answer(self: World, verdict: CommitVerdict, kind: str, **fields: Any) -> None:
        committed, self.committed = self.committed, len(self.log)
        before(self, verdict, kind, **fields)
        self.committed = committed

    before = World._answer
    return [patch.object(World, "_answer", answer)]


def _goes_back() -> list[Any]:
    def judge(newest: GroupProgress, epoch: int, start: int, offset: int) -> CommitVerdict:
        return CommitVerdict.APPEND if epoch == newest.epoch else CommitVerdict.FENCED

    return [patch.object(fencing, "judge_commit", judge)]


def _any_start_commits() -> list[Any]:
    def judge(newest: GroupProgress, epoch: int, start: int, offset: int) -> CommitVerdict:
        if epoch != newest.epoch:
            return CommitVerdict.FENCED
        return CommitVerdict.APPEND if offset > newest.offset else CommitVerdict.DONE

    return [patch.object(fencing, "judge_commit", judge)]


def _epochs_anew() -> list[Any]:
    def fence(self: Groups, name: str, *, forget: bool) -> int:
        epoch = before(self, name, forget=forget)
        self.last = self._count = 0 if forget else self.last
        return epoch

    before = Groups.fence
    return [patch.object(Groups, "fence", fence)]


def _late_fence_counts() -> list[Any]:
    return [patch.object(fencing, "judge_fence", lambda newest, epoch: CommitVerdict.APPEND)]


def _nothing_moves() -> list[Any]:
    return [patch.object(assignment, "_next_move", lambda has, readers: None)]


MUTANTS: Final = {
    "release_of_any_epoch": Mutant(1500, 309, "G3: a late release counts", _release_of_any_epoch),
    "grants_at_once": Mutant(100, 36, "G2: granted before it was released", _grants_at_once),
    "place_keeps_epochs": Mutant(50, 1, "G4: who takes a place has the epochs of its predecessor", _place_keeps_epochs),
    "any_epoch_commits": Mutant(50, 0, "H2: commits of epochs before count", _any_epoch_commits),
    "begin_writes_nothing": Mutant(50, 0, "H1: a begin leaves no record", _begin_writes_nothing),
    "answers_at_once": Mutant(50, 3, "H1: what is not committed yet is answered", _answers_at_once),
    "goes_back": Mutant(20, 0, "H4: a commit that comes late is stored", _goes_back),
    "any_start_commits": Mutant(3000, 2434, "H4: a commit counts from wherever its member read on", _any_start_commits),
    "epochs_anew": Mutant(20, 1, "G1: epochs begin anew with a group that was forgotten", _epochs_anew),
    "late_fence_counts": Mutant(300, 23, "H5: a reset counts after a later begin", _late_fence_counts),
    "nothing_moves": Mutant(20, 0, "T2: who joins gets what is free, and nothing else", _nothing_moves),
}


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """With this mistake."""
    with contextlib.ExitStack() as stack:
        for each in [] if name is None else MUTANTS[name].patches():
            stack.enter_context(each)
        yield
