# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in the protocol: each a piece of the text of a core, of the catalog or of what drives them, and what
stands there instead. Each is a reading that somebody could have had, or a bug that the field has seen.

Each of `MUTANTS` is found within `seeds` seeds. `seed` is the first one that finds it, and tests try it first. After a
change of the stories of seeds `python -m tests.sim --mutants` tells the others; until then CI searches longer. Those of
`PLAYED` are shown by a script of `tests/golden`, and by no seed that is known; those of `STAGED` by one of
`scenarios.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from broker.replication import follower, leader
from tests.sim import scenarios
from tests.sim.cluster import play
from tests.support.scripts import replay
from tests.unit.metadata.scenario import Scenario as OfCatalog
from tests.unit.replication.following import Following
from tests.unit.replication.scenario import Scenario as OfLeader

GOLDEN: Final = Path(__file__).parents[1] / "golden"
DRIVERS: Final[dict[str, Callable[[], Any]]] = {
    "catalog": OfCatalog,
    "replication": lambda: OfLeader(leader),
    "replication/following": lambda: Following(follower),
}
FOLDERS: Final = {
    "replication": ("insync", "trims", "leader", "follower"),
    "metadata": (
        "partition",
        "partition_commands",
        "broker_commands",
        "cluster",
        "catalog",
        "controller",
        "info",
        "session",
        "rescue",
        "growth",
    ),
    "node": ("placed", "replicas", "partitions.partition"),
    "link": ("following", "answering"),
    "storage": ("log", "opening", "remembered", "recovery"),
    "storage.writing": ("truncate", "state", "checkpoints", "leader_epochs"),
    "storage.segments": ("retention",),
    "storage.rewrite": ("compaction", "rewriting", "giving_up", "gaps"),
}


@dataclass(frozen=True)
class Mutant:
    """A mistake. Each `before` stands once in the module `file`."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    seed: int
    seeds: int
    script: str


def of(name: str, file: str, *texts: str, seed: int = 0, seeds: int = 30, script: str = "") -> Mutant:
    folder = next((f"broker.{folder}" for folder, files in FOLDERS.items() if file in files), "tests.sim")
    return Mutant(name, f"{folder}.{file}", tuple(zip(texts[::2], texts[1::2], strict=True)), seed, seeds, script)


MUTANTS: Final = (
    # what acknowledges
    of("acks before the ISR has it", "leader", "safe_end = in_sync.durable_end(own_end)", "safe_end = own_end"),
    of("acknowledges by fetch offset", "insync", "max(follower.durable_end, fetch.durable_end)", "max(follower.durable_end, fetch.offset)"),
    of("does not count a pending addition", "insync", "or broker == added", "", seed=6),
    of("commits with too few in sync", "leader", "elif len(in_sync.members) >= self.min_insync_replicas:", "elif True:"),
    # fencing
    of("lets a restarted leader lead on in its epoch", "broker_commands", "            after = after.deposed(number)\n", "            pass\n"),
    of("leads on in its epoch when the replicas become others", "partition", "return self if self.leader is None else replace(self, leader_epoch=epoch)", "return self", seed=7),
    # who may be elected
    of("asks in who has not fsynced it", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=-1 if fetch.offset >= max(self.high_watermark, self.epoch_start) else 1 << 60"),
    of("asks in too early", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=0"),
    of("keeps a wiped broker in the ISR", "broker_commands", "if at not in sound and state.knows_log_of(broker):", "if False:", seed=3),
    of("lets who opens late join", "partition", "return state if self.has_led else replace(state, isr=_with(self.isr, broker))", "return replace(state, isr=_with(self.isr, broker))"),
    of("elects whoever is live", "partition", "candidates = [b for b in state.replicas if b in state.electable and b in who.registrations]", "candidates = [b for b in state.replicas if b in who.registrations]", seed=2),
    of("forgets who has failed below the minimum", "partition", "return self.left(broker) if self.has_led else self", "return replace(self, isr=_without(self.isr, broker)) if self.has_led else self"),
    of("leaves who has failed in the ISR", "cluster", "after = self.partitions[at].failed(broker)", "after = self.partitions[at]"),
    # where logs part
    of("truncates by the high watermark alone", "follower", "        if message.found_epoch == log.last_epoch and message.end >= log.log_end:\n            self.phase = Phase.FETCHING\n            return self._ask()\n        cut = min(message.end, own_end)\n        if cut < max(log.log_start, message.log_start):  # F5\n            if message.log_start != log.log_start:\n                return self._reset(message.log_start, message.start_epoch)\n            cut = log.log_start\n", "        cut = log.high_watermark\n", "do_agree = log.log_end == log.log_start or log.last_epoch == self._found_epoch", "do_agree = True", seed=3),
    of("cuts nothing", "follower", "        self.phase = Phase.FETCHING if self.log.last_epoch < 0 else Phase.ASKING\n", "        self.phase = Phase.FETCHING\n", "                self.phase = Phase.ASKING\n                self._parts_below_mark = self._ends_below_mark\n                return self._ask()\n        return NOTHING\n\n    def _end", "                return NOTHING\n        return NOTHING\n\n    def _end", seed=1),
    of("keeps an incomplete group when it leads", "log", "                truncate(self.state, self.epochs, self.checkpoints, self.state.ask(group_start))\n", "                pass\n", seed=5),
    of("commits within a group", "leader", "committed = ends[count - 1]", "committed = safe_end"),
    of("tells an end before the start of its epoch is committed", "leader", "return self.role is Role.LEADING and high_watermark >= self.epoch_start", "return self.role is Role.LEADING", seed=5),
    # sessions
    of("takes for dead whom it has never heard", "controller", "_Seen(info.registration, info.is_live, now_ms, now_ms, ", "_Seen(info.registration, info.is_live, now_ms - 10_000, now_ms, "),
    of("answers heartbeats before they are renewed", "controller", "        self._beats[event.broker] = (event.registration, event.number)\n        return []", "        self._beats[event.broker] = (event.registration, event.number)\n        return [Renewed(broker=event.broker, registration=event.registration, number=event.number, renewal=0)]", seed=4),
    of("goes on as a controller, and asks the next one", "controlling", "if office is not None and office.term < self._known[0]:", "if False:", "metadata.submit_own(\n            self.term, broker.name, command, ", "metadata.submit(\n            broker.name, command, "),
    of("asks for the preferred leader whoever leads", "controller", "return state.leader not in (None, first) and", "return state.leader is not None and"),
    # what is known of repeats
    of("learns nothing from the log when it begins to lead", "remembered", "        if start < end:\n", "        if False:\n", seed=3),
    # what replicas write anew
    of("moves the mark with a pass that did not come to the end", "compaction", "            self.end, now_us=self.now_us, tombstones_to", "            limit, now_us=self.now_us, tombstones_to", seed=6),
    of("takes a copy of a compacted log for whole", "follower", "if is_below else (0, -1)", "if False else (0, -1)", seed=6),
    of("joins batches of two epochs", "rewriting", "header.leader_epoch != self._first.leader_epoch", "False", seed=6),
    # settings that are altered meanwhile
    of("lets retention take what is not committed", "retention", "end_offset=view.high_watermark", "end_offset=view.log_end_offset", seed=5),
    # more partitions
    # brokers that join and leave
    of("removes a broker that lives", "broker_commands", "if info.is_live or assigned:", "if assigned:", seed=17),
    of("takes the folder of a removed broker back", "broker_commands", "    if raft in cluster.removed:\n", "    if False:\n", seed=17),
    of("forgets in a snapshot who was removed", "cluster", "removed=dict(value.get(\"removed\", ())),", "removed={},", seed=48, seeds=50),
    of("moves replicas to whoever is named", "partition_commands", "        if broker not in cluster.brokers:\n            raise InvalidRequest(f\"no broker {broker!r} is registered\")\n", "", seed=17),
    # the catalog
    of("forgets results in a snapshot", "catalog", "_requests=OrderedDict(snapshot[\"requests\"]),", "_requests=OrderedDict(),"),
    # answers, and what they go with
    of("takes the refusal of a second try for the first one's", "partitions.partition", "                partition_epoch=state.partition_epoch,\n                isr=state.isr,\n", "                partition_epoch=state.partition_epoch if request is None else self._core.in_sync.partition_epoch,\n                isr=state.isr if request is None else self._core.in_sync.members,\n"),
)  # fmt: skip

PLAYED: Final = (
    of("counts who is unheard as done", "insync", "*(follower.compacted_to for follower in self.followers.values())])", "*(follower.compacted_to for follower in self.followers.values() if follower.number >= 0)])", script="replication/compaction_marks"),
    of("counts the in-sync replicas for tombstones", "insync", "*(follower.compacted_to for follower in self.followers.values())])", "*(self.followers[broker].compacted_to for broker in self.counting())])", script="replication/compaction_marks"),
    # of the in-sync replicas, and of brokers and partitions that come and go
    of("counts a pending removal out", "insync", "if broker in self.members or", "if broker in self.members and broker != (self.pending.remove if self.pending else None) or", script="replication/removal_pending_still_counts"),
    of("begins no epoch with another count", "growth", "moved = [] if waiting else cluster.begin_epoch(places)", "moved = []", script="catalog/added_partitions"),
    of("removes a broker that has replicas", "broker_commands", "if info.is_live or assigned:", "if info.is_live:", script="catalog/deleted_one_by_one"),
    of("waits for the folders of a removed broker", "broker_commands", "return {\"forgotten\": cluster.confirm(broker, cluster.leftovers.get(broker, frozenset()))}", "return {\"forgotten\": []}", script="catalog/deleted_until_all_confirm"),
    of("drops the old replicas once one of the new ones is in sync", "partition", "if target is None or (self.has_led and not set(target) <= set(self.isr)):", "if target is None or (self.has_led and set(target).isdisjoint(self.isr)):", script="catalog/reassign"),
    of("keeps who was moved away in the ISR", "partition", "isr=tuple(b for b in self.isr if b in target),", "isr=self.isr,", script="catalog/reassign"),
    of("answers a trim that it alone has", "trims", "least = min([self.log_start, *starts])", "least = self.log_start", script="replication/trim"),
    of("takes the members and the minimum from two states", "leader", "        self._minimum(event.min_insync_replicas)\n        return tuple(self._advance())", "        return tuple(self._advance())", script="replication/minimum_of_the_same_state"),
    of("takes the minimum of the settings", "leader", "        if not self._has_minimum:\n", "        if True:\n", script="replication/settings_leave_the_minimum_alone"),
    of("leaves the partition epoch when a session comes back", "broker_commands", ", fresh=set(own))", ")", script="catalog/late_commands_of_a_stale_leader"),
    of("leads on after a failed fsync", "leader", "if self.in_sync is not None:  # L6", "if False:", script="replication/fsync_failed_with_three_replicas"),
    of("minds neither epochs nor what the follower holds", "leader", "is_minded = fetch.epoch == epoch and in_sync.admits(fetch.follower, incarnation)", "is_minded = fetch.follower in in_sync.followers", "elif fetch.offset > self.log_end or not (", "elif fetch.offset > self.log_end or False and not (", script="replication/fetch_answers"),
    of("minds answers of another epoch", "follower", "is_minded = (message.epoch, message.incarnation) == (self.epoch, self.incarnation)", "is_minded = True", script="replication/following/old_epochs_are_not_minded"),
    of("minds answers to another question", "follower", "or message.request != self._request", "", script="replication/following/answer_to_another_question"),
    of("keeps the followers of the leadership before", "leader", "        self.in_sync = None if len(event.replicas) == 1 else InSync(self.me, event, self._requests)\n", "        before = self.in_sync\n        self.in_sync = None if len(event.replicas) == 1 else InSync(self.me, event, self._requests)\n        for who, said in before.followers.items() if before is not None and self.in_sync is not None else ():\n            self.in_sync.followers[who] = said\n", script="replication/followers_are_forgotten"),
    of("asks in who lacks the start of the epoch", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=self.high_watermark", script="replication/addition_needs_the_durable_end"),
    of("adds whoever is called so, in whatever life", "partition_commands", "        if present is None or incarnation > present:\n            raise NotReady(f\"{member} has no incarnation {incarnation} here yet\")\n        if incarnation < present or member not in who.registrations:\n            raise _refusal(state, f\"{member} has incarnation {present}, or is taken for dead\")\n", "", script="catalog/late_commands_of_a_stale_leader"),
    of("changes an ISR whatever it has become", "partition_commands", "    if said != known or broker != state.leader:\n", "    if broker != state.leader:\n", script="catalog/late_commands_of_a_stale_leader"),
    of("keeps a lost folder in the last ISR", "partition", "        if lost:\n            last = _without(last, broker)\n", "", script="catalog/unclean_election"),
    of("forgets who left below the minimum", "partition", "if self.has_led and broker in self.isr and len(isr) < self.min_insync_replicas:", "if self.has_led and broker in self.isr and not isr:", script="catalog/last_isr_is_cumulative"),
    of("asks once where logs part, and believes the fetch", "follower", "do_agree = log.log_end == log.log_start or log.last_epoch == self._found_epoch", "do_agree = True", "            case Diverged() if self.phase is Phase.FETCHING:\n                self.phase = Phase.ASKING\n                self._parts_below_mark = self._ends_below_mark\n                return self._ask()\n", "", script="replication/following/cut_and_ask_again"),
    of("cuts below the leader's log start", "follower", "if cut < max(log.log_start, message.log_start):  # F5", "cut = max(log.log_start, cut)\n        if False:", script="replication/following/reset_below_the_leaders_start"),
    of("begins above what the leader has", "follower", "            if message.log_start != log.log_start:", "            if message.log_start > log.log_start:", script="replication/following/reset_below_its_own_start"),
    of("takes an empty log for one that agrees", "follower", "self.phase = Phase.FETCHING if self.log.last_epoch < 0 else Phase.ASKING", "self.phase = Phase.FETCHING if self.log.log_end == self.log.log_start else Phase.ASKING", script="replication/following/empty_above_the_leaders_end"),
    of("misses only what was reported open", "partition", "broker in {*self.opened, *self.isr, *self.last_isr}", "broker in self.opened", script="catalog/lost_before_it_was_reported_open"),
    of("lets the last one step out", "partition_commands", 'if why == "damage" and state.needs(broker, who):', "if False:", script="catalog/damage_of_the_last_one_is_refused"),
    of("takes a failed fsync for a lost log", "partition_commands", 'lost=why != "fsync"', "lost=True", script="catalog/damage_of_the_last_one_is_refused"),
    of("counts how long from before it led", "insync", "            if follower.caught_up_ms is None or follower.durable_end >= log_end:  # I5\n", "            if follower.caught_up_ms is None:\n                follower.caught_up_ms = 0\n            if follower.durable_end >= log_end:\n", script="replication/no_spurious_shrink_after_led"),
    of("asks in who lacks a state file", "insync", " and not follower.lacks_state", "", script="replication/addition_needs_a_state_file"),
    of("takes a state file of before it led for enough", "leader", "and event.state_offset >= self.epoch_start", "and True", script="replication/state_file_of_before_it_led"),
    of("keeps what it was told beside rewritten records", "follower", "message.offset < message.rewritten_to", "False", script="replication/following/state_of_rewritten_records"),
    of("lets go what only a state file would tell", "follower", " and not event.lacks_state", "", script="replication/following/state_in_pieces"),
    of("asks in who would undo a trim", "insync", "and follower.log_start >= least_start", "", script="replication/trim"),
    of("lets an older mark stand again", "insync", "if fetch.number > follower.number:", "if True:", script="replication/compaction_marks"),
    of("minds what was read before a cut", "follower", "is_since = answer.number > self._cut_number", "is_since = True", script="replication/following/answers_of_before_a_cut"),
    of("keeps what was compacted above a cut", "follower", "if cut < log.superseded_to:", "if False:", script="replication/following/cut_below_the_mark"),
    of("asks for the record before the mark, and never where it parts", "follower", "if self._parts_below_mark or not", "if not", script="replication/following/parts_below_the_mark"),
    of("goes on with half a copy, whoever leads", "follower", "        if self._ends_below_mark:  # F10\n", "        if False:\n", script="replication/following/copy_below_the_mark"),
    of("lets tombstones go below what an earlier leader told", "follower", "        self.tombstones_below = self.compact_to = 0  # F11\n", "", script="replication/following/compaction_marks"),
    of("begins anew as if nothing had been before", "follower", "return (Reset(to, last_epoch),)", "return (Reset(to, -1),)", script="replication/following/reset_below_the_leaders_start"),
    of("takes a time-out for an answer", "insync", "        if self.pending is not None:\n            return self.pending\n        if worst is None", "        self.pending = None\n        if worst is None", script="replication/pending_addition_counts"),
    # found by mutations that nobody had listed (decision record 91)
    of("takes the state file of before records were rewritten", "follower", "            self._taking = None  # what it tells of may end below\n", "            pass\n", script="replication/following/state_of_before_records_were_rewritten"),
    of("takes the state file of before a cut", "follower", "        self.generation += 1\n        self._taking = None\n        self._cut_number", "        self.generation += 1\n        self._cut_number", script="replication/following/state_of_before_a_cut"),
    of("appends while it asks", "follower", "return self.phase is Phase.FETCHING and is_since and answer.offset == self.log.log_end", "return is_since and answer.offset == self.log.log_end", script="replication/following/records_while_it_asks"),
    of("forgets a failed fsync of before a cut", "follower", "if event.generation < self._recovered:", "if event.generation != self.generation:", script="replication/following/fsync_of_before_a_cut_fails"),
    of("steps out for an fsync of before the log recovered", "follower", "if event.generation < self._recovered:", "if False:", script="replication/following/sync_failed_of_an_earlier_incarnation"),
    of("starts above its own high watermark", "follower", "told.log_start <= self.log.high_watermark", "told.log_start <= self.log.log_end", script="replication/following/log_start_within_a_group"),
    of("hears a leader that only fences", "follower", "or not is_minded or isinstance(message, Fenced):  # F2", "or not is_minded:", script="replication/following/fenced_for_ever"),
    of("keeps in sync who has no room", "leader", ") or in_sync.reduction(least_in_sync=self.min_insync_replicas)", ")", script="replication/no_room_at_a_follower"),
    of("asks out whom a trim waits for", "insync", " or len(self.members) <= least_in_sync", "", script="replication/no_room_below_the_minimum"),
    of("asks in who has no room", "insync", "        is_ready &= not follower.lacks_room or len(self.members) < least_in_sync\n", "", script="replication/no_room_at_a_follower"),
    of("lets no trim reach who has no room", "follower", "(event.lacks_room or not event.is_refused)", "not event.is_refused", script="replication/following/no_room_and_a_log_start"),
    of("answers a trim that who is asked in has not", "insync", "return [self.followers[broker].log_start for broker in self.counting()]", "return [self.followers[broker].log_start for broker in self.members if broker != self._me]", script="replication/trim_waits_for_who_is_asked_in"),
    of("asks out who is out", "insync", "elif broker in self.members and follower", "elif follower", script="replication/who_is_out_is_not_asked_out"),
    of("takes who always comes too late for caught up", "insync", "follower.caught_up_ms = now_ms if at_end else max(follower.caught_up_ms, follower.mark_ms)", "follower.caught_up_ms = now_ms", script="replication/who_is_slow_for_ever_is_asked_out"),
    of("answers a repeat that the leader alone has", "leader", "waiting = self._for_all if acks is ALL else", "waiting = self._for_all if acks is ALL and event.group_ends else", script="replication/repeat_waits_for_all"),
    of("minds what is said to the leader of a later epoch", "leader", "is_minded = fetch.epoch == epoch and", "is_minded = fetch.epoch >= epoch and", script="replication/later_epochs_are_another_leaders"),
    of("minds commands of a former process", "cluster", "if info.registration > number or not info.is_live:", "if not info.is_live:", script="catalog/earlier_life"),
    of("registers over a process that it has not heard of", "broker_commands", "if \"after\" in command and fields.whole(command, \"after\") != before:", "if False:", script="catalog/earlier_life"),
    of("renews by the heartbeat of a former process", "broker_commands", "i.registration == renewals.get(b)", "i.registration >= renewals.get(b, i.registration + 1)", script="catalog/earlier_life"),
    of("renews the session of who has left", "broker_commands", " and not i.has_left)", ")", script="catalog/a_stop_is_final"),
    of("counts no renewals", "broker_commands", "renewal=info.renewal + 1,", "renewal=info.renewal,", script="catalog/earlier_life"),
    of("gives an epoch again that logs have", "broker_commands", "max(cluster.epoch_last, fields.epoch_seen(command)) + 1", "cluster.epoch_last + 1", script="catalog/unclean_forgets_the_last_isr"),
    of("keeps the last ISR beside who was chosen unclean", "partition_commands", "replace(state, isr=(broker,), last_isr=(), unclean_epoch=epoch)", "replace(state, isr=(broker,), last_isr=tuple(b for b in state.last_isr if b != broker), unclean_epoch=epoch)", script="catalog/unclean_forgets_the_last_isr"),
    of("minds reports of another leadership", "partition_commands", "state.leader is None or state.leader_epoch != epoch or reporter", "state.leader is None or reporter", script="catalog/reports_of_another_leadership"),
    of("takes an empty log that knows no epoch for one that agrees", "leader", "agrees_on_less = fetch.last_epoch >= 0 or fetch.follower in in_sync.members", "agrees_on_less = True", script="replication/empty_and_of_no_known_epoch"),
    of("leaves the fsync to a clock although there are others", "leader", "self.fsync_each_batch = self._wants_each_batch or self.in_sync is not None  # L12", "self.fsync_each_batch = self._wants_each_batch", script="replication/interval_log_gets_replicas"),
    of("keeps who is behind among those that may lead", "partition", "last_isr=_without(self.last_isr, broker))\n        return replace(left, opened", "last_isr=_with(self.last_isr, broker))\n        return replace(left, opened", script="catalog/who_is_behind"),
    of("makes the last one that is behind unelectable", "partition", "        if members == {broker}:\n            return replace(self, unclean_epoch=epoch)\n", "", script="catalog/who_is_behind"),
    of("gives a replica to who has its former one", "partition_commands", "if broker not in state.replicas and at in cluster.leftovers.get(broker, ()):", "if False:", script="catalog/reassign_there_and_back"),
    of("hands over to who is not in sync", "cluster", "fit = [b for b in state.replicas if b in state.isr and b in who", "fit = [b for b in state.replicas if b in who", script="catalog/who_leads_after_a_stop"),
    of("elects who is about to stop", "partition", "candidates.sort(key=lambda broker: broker in who.stopping)", "candidates.sort(key=lambda broker: broker not in who.stopping)", script="catalog/who_leads_after_a_stop"),
    of("forgets all folders when one is gone", "cluster", "left = {**self.leftovers, broker: had - gone}", "left = {**self.leftovers, broker: frozenset()}", script="catalog/deleted_one_by_one"),
    of("names who leads by its registration alone", "partition", "incarnation = (who.registrations[broker], self.step_outs_of(broker))", "incarnation = (who.registrations[broker], 0)", script="catalog/damage_of_the_last_one_is_refused"),
    of("counts who has stopped as of an earlier moment", "growth", "said is not None and said[0] == as_of and", "said is not None and", script="catalog/added_partitions_amid_a_stop"),
    # before the first leader, and when a broker fails
    of("elects the first leader from too few", "partition_commands", "need=s.min_insync_replicas)", "need=1)", script="catalog/first_election_at_the_deadline"),
    of("takes who has opened it and died for in sync", "partition", "            state = replace(state, isr=tuple(sorted(ready)))\n", "            pass\n", script="catalog/first_isr_is_open_and_live"),
    of("takes who fails before the first leader out", "partition", "return self.left(broker) if self.has_led else self", "return self.left(broker)", script="catalog/first_isr_is_open_and_live"),
    of("answers a trim while too few are in sync", "leader", "        else:\n            safe_end = before\n        if safe_end", "        else:\n            safe_end = before\n            effects += self.trims.advance(in_sync.log_starts())\n        if safe_end", script="replication/trim_below_min"),
    of("takes no trim for answered when it begins to lead", "trims", "self.log_start = self.answered = log_start", "self.log_start, self.answered = log_start, 0", script="replication/trim_below_min"),
    of("waits with a trim for who is out", "insync", "return [self.followers[broker].log_start for broker in self.counting()]", "return [follower.log_start for follower in self.followers.values()]", script="replication/trim"),
    of("lets an earlier release in", "broker_commands", "    if level < cluster.feature_level:\n", "    if False:\n", script="catalog/an_earlier_release_is_refused"),
    of("forgets in a snapshot what is left to delete", "cluster", "leftovers={broker: frozenset((s, n) for s, n in places) for broker, places in value[\"leftovers\"]},", "leftovers={},", script="catalog/deleted_until_all_confirm"),
    of("forgets in a snapshot which streams were deleted", "catalog", "deleted=dict(snapshot[\"deleted\"]),", "deleted={},", script="catalog/deleted_until_all_confirm"),
)  # fmt: skip

STAGED: Final = (
    of("fails a broker that has renewed its session since", "broker_commands", "if info.renewal != fields.whole(command, \"renewal\", info.renewal):", "if False:", script="a_lapse_is_committed_after_the_broker_is_back"),
    of("counts a long session as short as others", "controller", "self._brokers[broker].heard_ms > lapse_ms(info.session_ms):", "self._brokers[broker].heard_ms > lapse_ms(2_000):", script="sessions_become_longer_and_would_become_shorter"),
    of("lets a renewal make a session shorter", "broker_commands", "session_ms=max(info.session_ms, session_ms))", "session_ms=session_ms)", script="sessions_become_longer_and_would_become_shorter"),
    of("forgets in a snapshot how long a session is", "info", "!= _UNSAID.get(k)}", "!= _UNSAID.get(k) and k != \"session_ms\"}", script="sessions_become_longer_and_would_become_shorter"),
    of("takes a folder back that was replaced", "broker_commands", "    if known is not None and raft not in (\"\", known.raft):\n", "    if False:\n", script="an_operator_puts_an_old_disk_back"),
    of("believes a tail that a header disproves", "recovery", "self.committed_to if self.committed_to > end and not self.is_sole else 0", "0", script="acknowledged_records_go_that_no_checkpoint_tells_of"),
    of("forgets that it is behind before anybody was told", "checkpoints", "return max(self._state.high_watermark, self._state.committed_to)", "return self._state.high_watermark", script="acknowledged_records_go_that_no_checkpoint_tells_of"),
    of("takes what is lost at its end for an end", "state", "(ends_lost or self.committed_to > 0)", "self.committed_to > 0", script="acknowledged_records_go_that_no_checkpoint_tells_of"),
    of("takes a log without a checkpoint for a young one", "opening", "if (report.notes or is_missing) and not", "if report.notes and not", script="a_checkpoint_is_gone"),
    of("believes an old file of epochs", "leader_epochs", " or _is_older(stored, checkpoint, found.new_epochs):", ":", script="an_old_file_of_epochs_is_put_back"),
    of("steps out one by one", "replicas", "for at, step in keys])", "for at, step in keys[:1]])", script="fsyncs_fail_on_all_logs_of_a_broker"),
    of("goes on when a step-out does not come through", "replicas", "        if late and not self._has_halted:  # G4\n", "        if False:\n", script="a_step_out_does_not_come_through"),
    of("elects unclean by itself", "partition", "return frozenset(self.isr or self.last_isr)", "return frozenset((*self.isr, *self.last_isr) if self.isr and not self.last_isr and len(self.isr) > 1 else self.opened)", script="an_operator_elects_who_lacks_records"),
    of("begins anew as if nothing had been told", "following", "lacks_state=opened.handover.lacks,", "lacks_state=False,", script="replicas_that_began_anew_lead"),
    of("keeps its mark of compaction when it is cut", "truncate", "        lower_clean_state(state.disk, state.folder, to)\n        point", "        point", script="a_follower_ends_within_a_joined_batch"),
    of("takes records away before it says by how much", "compaction", "if staged.records_gone and not self._note_superseded(staged.path, cuts):", "if False:", script="an_operator_elects_who_lacks_a_newer_value"),
    of("serves the rest of a joined batch", "leader", "if 0 <= event.batch_start < fetch.offset:", "if False:", script="a_follower_ends_within_a_joined_batch"),
    of("lets tombstones go below the least durable end", "insync", "[own_mark, *(follower.compacted_to for", "[1 << 60, *(follower.durable_end for", script="a_copy_stops_between_a_value_and_its_tombstone"),
    of("compacts no further than who is away", "compaction", "        limit = segments[-1][1]\n", "        limit = max(state.cleaned_to, min(segments[-1][1], self.tombstones_below))\n", script="a_replica_is_away_while_a_key_is_deleted"),
    of("tells of what it has removed only while it removes", "answering", "rewritten_to=opened.handover.rewritten_to(),", "rewritten_to=opened.handover.rewritten_to() if opened.state.settings.is_compacted else 0,", "max(records.rewritten_to, opened.handover.rewritten_to())", "max(records.rewritten_to, opened.handover.rewritten_to() if opened.state.settings.is_compacted else 0)", script="a_stream_is_compacted_no_more"),
    of("tells nobody that a tombstone waits", "insync", "return max([own_wait, *(follower.waits_to for follower in self.followers.values())])", "return 0", script="tombstones_go_once_all_have_compacted"),
    of("lets the shortest log lead after a rescue", "rescue", "if end == max(logs.values()))", "if end[1] == min(e[1] for e in logs.values()))", script="the_catalog_loses_commands"),
    of("ends a rescue that somebody is missing in", "rescue", "    if missing[\"brokers\"] or missing[\"replicas\"]:", "    if False:", script="the_catalog_loses_commands"),
    of("gives up under its own epoch", "giving_up", "copy.add_empty(begin, end, max(epoch, copy.epoch))", "copy.add_empty(begin, end, self.leader_epoch)", script="an_operator_gives_up_the_damaged_range_alone"),
    of("gives up what stands behind the damage", "gaps", "                copy.add(header.first_offset, header.max_timestamp_us, message)\n", "                if closed:\n                    copy.add_empty(header.first_offset, header.next_offset, header.leader_epoch)\n                else:\n                    copy.add(header.first_offset, header.max_timestamp_us, message)\n", script="an_operator_gives_up_the_damaged_range_alone"),
    of("lets ids go by the time of day", "log", "None, self.state.ages.now_us\n", "None, wall_us\n", script="clocks_are_apart_and_are_set"),
    of("does not say who was excused", "rescue", "        state = replace(state, unclean_epoch=epoch)\n", "        pass\n", script="the_catalog_loses_commands_and_a_broker_is_gone"),
)  # fmt: skip


def named(name: str, among: Sequence[Mutant] = (*MUTANTS, *STAGED, *PLAYED)) -> Mutant:
    """The one of that name.

    Raises:
        ValueError: there is none; it says which one is nearest, and which there are.
    """
    known = {mutant.name: mutant for mutant in among}
    if name not in known:
        nearest = get_close_matches(name, known, 1)
        hint = f" (the nearest name is {nearest[0]!r})" if nearest else ""
        raise ValueError(f"no mutant {name!r}{hint}; there are: {', '.join(sorted(known))}")
    return known[name]


@contextmanager
def applied(mistake: Mutant | str | None) -> Iterator[None]:
    """Play with this mistake, or the one of that name; with none for None."""
    if mistake is None:
        yield
        return
    swapped = _swapped(named(mistake) if isinstance(mistake, str) else mistake)
    before = [(function, function.__code__) for function, _ in swapped]
    try:
        for function, code in swapped:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def found_by(mutant: Mutant, *, in_order: bool = False) -> str:
    """Which seed finds it, and how; empty: none of so many as are stated. `in_order`: the first one, whatever is stated."""
    with applied(mutant.name):
        for seed in sorted(range(mutant.seeds), key=lambda seed: not in_order and seed != mutant.seed):
            _, failure = play(seed)
            if failure and not failure.startswith("AttributeError"):  # that would be a mistake in the mistake
                return f"seed {seed}: {failure[:110]}"
    return ""


def staged_by(mutant: Mutant) -> str:
    """The rule that does not hold in its scenario; empty: all do."""
    with applied(mutant.name):
        for seed in range(3):
            failure = scenarios.played(scenarios.made(mutant.script, seed), mutant.script)
            if failure:
                return f"seed {seed}: {failure[:110]}"
    return ""


def shown_by(mutant: Mutant) -> bool:
    """Whether its script comes out otherwise."""
    text = (GOLDEN / f"{mutant.script}.txt").read_text()
    return _replayed(mutant, text) != text


def script_with(mutant: Mutant) -> str:
    """The lines of its script, and those that come with the mistake: where they differ."""
    text = (GOLDEN / f"{mutant.script}.txt").read_text()
    lines = text.splitlines(), _replayed(mutant, text).splitlines()
    return "\n".join(unified_diff(*lines, f"{mutant.script}: as it should be", "with the mistake", lineterm="", n=4))


def _replayed(mutant: Mutant, text: str) -> str:
    folder, _, _ = mutant.script.rpartition("/")
    with applied(mutant.name):
        scenario = DRIVERS[folder]()
        try:
            return replay(text, scenario.run, scenario.state)
        except AssertionError as error:  # of the core
            return f"the core's own assertion: {error}"


def _swapped(mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
    """Functions of the module, and what the changed text makes of them: so whoever has them by name runs that."""
    module = import_module(mutant.file)
    text = Path(module.__file__ or "").read_text()
    for before, after in mutant.changes:
        assert text.count(before) == 1, f"{mutant.name}: {before!r} stands there {text.count(before)} times"
        text = text.replace(before, after)
    made = ModuleType(module.__name__)
    sys.modules["tests.sim.mutated"] = made  # dataclasses look themselves up
    made.__dict__["__name__"] = "tests.sim.mutated"
    exec(compile(text, f"<mutated {mutant.file}>", "exec"), made.__dict__)
    ours, theirs = _functions(module, module.__name__), _functions(made, "tests.sim.mutated")
    assert ours.keys() == theirs.keys(), f"{mutant.name}: it changes more than what functions do"
    swapped = [(ours[key], theirs[key].__code__) for key in ours if _differ(ours[key].__code__, theirs[key].__code__)]
    assert swapped, f"{mutant.name}: nothing is another"
    return swapped


def _differ(a: CodeType, b: CodeType) -> bool:
    def plain(code: CodeType) -> Any:
        consts = [plain(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
        return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts

    return bool(plain(a) != plain(b))


def _functions(module: ModuleType, name: str) -> dict[str, FunctionType]:
    found: dict[str, FunctionType] = {}
    for holder in (module, *(each for each in vars(module).values() if isinstance(each, type))):
        if holder is not module and holder.__module__ != name:
            continue
        for key, value in vars(holder).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            if isinstance(function, FunctionType) and function.__module__ == name:
                found[f"{getattr(holder, '__qualname__', '')}.{key}"] = function
    return found
