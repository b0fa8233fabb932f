"""The verbs of the scripts in tests/golden/catalog: commands of the cluster, on one stream `s` with one partition.

register a [sound=yes] [behind=yes] [after=3] [seen=9] [level=0]    with its folder, or without
renew a b, fail a [renewal=0], stop a, leave a, remove a
create 3 min=2, delete, confirm a [0]
add-partitions 2, confirm-partitions a [of=2] [epoch=3] [as-of=3] [stopped=yes] [gives-up=yes], raise 3 [min=2]
settings fsync=interval
opened a, elect-first, preferred, unclean a [seen=9], min-insync 1, reassign a,b,d [min=2]
alter a add=b | remove=b [epoch=1] [pe=2] [incarnation=1,0]
alter-many a +b/0 -c/1 +c/2/7   of each partition, as of its partition epoch or of another one; level 2
report b at=100, step-out a why=damage
                        who names itself may say registration=3, step-outs=1: of an earlier life
join m [timeout=5000] [instance=x], release m 0, end m, fence [forget=yes]    of the consumer group `g`, which reads `s`
form, begin-rescue [last=5], logs a [seen=9] 0=3:7 (epoch:end), excuse a [0], end-rescue [a b c]
"""

from __future__ import annotations

import json
from typing import Any

from broker.metadata.catalog import Catalog
from broker.metadata.growth import stage_of

AT = ("i1", 0)
PARTITION: dict[str, Any] = {"stream": "i1", "partition": 0}
ALL: dict[str, Any] = {"partitions": {"i1": [0]}}


def _verdict(result: dict[str, Any]) -> str:
    return f"{result['error']['reason']}: {result['error']['detail']}" if "error" in result else "altered"


def _answers(said: dict[str, Any]) -> list[str]:
    return [f"{number} {_verdict(result)}" for _, number, result in said.get("answers", ())]


class Scenario:
    """A catalog, and the verbs that change it."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.commands: list[dict[str, Any]] = []

    def run(self, verb: str, words: list[str], values: dict[str, str]) -> list[str]:
        command = {"v": 1, **self.command(verb, words, values)}
        self.commands.append(command)
        result = self.catalog.apply(command)
        self.catalog = Catalog.restore(json.loads(json.dumps(self.catalog.snapshot())))
        if "error" in result:
            return [_verdict(result), *_answers(result["error"])]
        told = {k: v for k, v in result["ok"].items() if v and k not in ("state", "stream", "created", "answers")}
        return [*(f"{key} {json.dumps(value)}" for key, value in told.items()), *_answers(result["ok"])]

    def command(self, verb: str, words: list[str], values: dict[str, str]) -> dict[str, Any]:
        state = self.catalog.cluster.partitions.get(AT)
        broker = words[0] if words else ""
        info = self.catalog.brokers.get(broker)
        registration = int(values.get("registration", info.registration if info else 0))
        by = {"broker_id": broker, "registration": registration}
        step_outs = int(values.get("step-outs", state.step_outs_of(broker) if state else 0))
        match verb:
            case "register":
                optional: dict[str, Any] = {"after": int(values["after"])} if "after" in values else {}
                folders = sorted(n for (_, n), s in self.catalog.cluster.partitions.items() if broker in s.replicas)
                for key in ("sound", "behind"):
                    optional[key] = {"i1": folders} if key in values else {}
                return {
                    "kind": "register_broker",
                    "broker_id": broker,
                    "incarnation": f"{broker}-process",
                    "http": f"{broker}:9293",
                    "grpc": f"{broker}:9292",
                    "rack": values.get("rack", ""),
                    **optional,
                    **({"epoch_seen": int(values["seen"])} if "seen" in values else {}),
                    **({"feature_level_max": int(values["level"])} if "level" in values else {}),
                }
            case "renew":
                known = self.catalog.brokers
                return {
                    "kind": "renew_sessions",
                    "renewals": {word: int(values.get("registration", known[word].registration)) for word in words},
                }
            case "fail":
                return {"kind": "fail_broker", **by, "renewal": int(values.get("renewal", info.renewal if info else 0))}
            case "leave":
                return {"kind": "fail_broker", **by}
            case "stop":
                return {"kind": "stop_broker", **by}
            case "remove":
                return {"kind": "remove_broker", "broker_id": broker}
            case "create":
                return {
                    "kind": "create_stream",
                    "name": "s",
                    "incarnation": "i1",
                    "created_us": 1,
                    "settings": {"partitions": int(values["partitions"])} if "partitions" in values else {},
                    "replication_factor": int(words[0]),
                    **({"min_insync_replicas": int(values["min"])} if "min" in values else {}),
                }
            case "add-partitions":
                return {"kind": "add_partitions", "name": "s", "partitions": int(words[0])}
            case "confirm-partitions":
                count = int(values.get("of", self.catalog.streams["s"].partitions_next))
                led = [(n, s) for (_, n), s in self.catalog.cluster.partitions.items() if s.leader == broker]
                leaders = [[n, int(values.get("epoch", s.leader_epoch))] for n, s in led]
                named = {"name": "s", "incarnation": "i1", "partitions": count, "leaders": leaders}
                stage = stage_of(self.catalog.cluster, self.catalog.streams["s"])
                as_of = int(values.get("as-of", stage.as_of if stage else 0))
                keys = {"is_stopped": "stopped", "gives_up": "gives-up"}
                flags = {key: True for key, word in keys.items() if word in values}
                return {"kind": "confirm_partitions", **by, **named, "as_of": as_of, **flags}
            case "raise":
                least = {"min_insync_replicas": int(values["min"])} if "min" in values else {}
                return {"kind": "raise_replication", "name": "s", "replication_factor": int(words[0]), **least}
            case "level":
                return {"kind": "set_feature_level", "level": int(words[0])}
            case "alter-many":
                return {"kind": "alter_isrs", "broker_id": broker, **self.changes(words[1:])}
            case "form":
                return {"kind": "form_cluster", "cluster_id": "c"}
            case "begin-rescue":
                last = int(values.get("last", self.catalog.epoch_last))
                return {"kind": "begin_rescue", "cluster_id": "c", "epoch_last": last}
            case "logs":
                logs = [["i1", int(n), *map(int, end.split(":"))] for n, end in values.items() if n.isdigit()]
                seen = int(values.get("seen", -1))
                return {"kind": "report_logs", **by, "rescue": self.rescue(), "epoch_seen": seen, "logs": logs}
            case "excuse":
                named = {"partitions": {"i1": [int(words[1])]}} if len(words) > 1 else {}
                return {"kind": "excuse_replicas", "broker_id": broker, "rescue": self.rescue(), **named}
            case "end-rescue":
                there = words or sorted(self.catalog.brokers)
                return {"kind": "end_rescue", "rescue": self.rescue(), "brokers": there}
            case "settings":
                return {"kind": "alter_stream", "name": "s", "settings": values}
            case "delete":
                return {"kind": "delete_stream", "name": "s"}
            case "confirm":
                left = sorted(n for _, n in self.catalog.cluster.leftovers.get(broker, ()))
                left = [int(word) for word in words[1:]] or left
                return {"kind": "confirm_deleted", "broker_id": broker, "partitions": {"i1": left}}
            case "opened":
                own = sorted(at for at, s in self.catalog.cluster.partitions.items() if broker in s.replicas)
                return {"kind": "report_opened", **by, "replicas": [[*at, step_outs] for at in own]}
            case "step-out":
                return {"kind": "step_out", **by, "replicas": [[*AT, step_outs]], "why": values["why"]}
            case "elect-first":
                return {"kind": "elect_first", **ALL}
            case "preferred":
                return {"kind": "elect_preferred", **ALL}
            case "unclean":
                seen = {"epoch_seen": int(values["seen"])} if "seen" in values else {}
                return {"kind": "elect_unclean", **PARTITION, "broker_id": broker, **seen}
            case "min-insync":
                return {"kind": "set_min_insync", "stream": "i1", "min_insync_replicas": int(words[0])}
            case "join":
                optional = {"instance": values["instance"]} if "instance" in values else {}
                timeout_ms = int(values.get("timeout", 5_000))
                return {
                    "kind": "join_group",
                    "name": "g",
                    "member": broker,
                    "streams": ["s"],
                    "timeout_ms": timeout_ms,
                    **optional,
                }
            case "release":
                grants = self.catalog.groups.named["g"].grants
                rows = [["s", int(word), grants["s", int(word)].epoch] for word in words[1:]]
                return {"kind": "release_partitions", "name": "g", "member": broker, "partitions": rows}
            case "end":
                members = {word: self.catalog.groups.named["g"].members[word].session for word in words}
                return {"kind": "end_members", "name": "g", "members": members}
            case "fence":
                return {"kind": "fence_group", "name": "g", **({"forget": True} if "forget" in values else {})}
            case "reassign":
                least = {"min_insync_replicas": int(values["min"])} if "min" in values else {}
                return {"kind": "reassign", **PARTITION, "replicas": words[0].split(","), **least}
        assert state is not None
        if verb == "report":
            epoch = {"leader_epoch": int(values.get("epoch", state.leader_epoch))}
            return {"kind": "report_leader", **by, **PARTITION, **epoch, "at_ms": int(values["at"]), "window_ms": 2_000}
        assert verb == "alter", verb
        command: dict[str, Any] = {
            "kind": "alter_isr",
            **PARTITION,
            "broker_id": broker,
            "leader_epoch": int(values.get("epoch", state.leader_epoch)),
            "partition_epoch": int(values.get("pe", state.partition_epoch)),
        }
        if "remove" in values:
            return {**command, "remove": values["remove"]}
        member = self.catalog.brokers[values["add"]]
        present = f"{member.registration},{state.step_outs_of(member.broker_id)}"
        numbers = [int(number) for number in values.get("incarnation", present).split(",")]
        return {**command, "add": [member.broker_id, *numbers]}

    def changes(self, words: list[str]) -> dict[str, Any]:
        added, removed = [], []
        for word in words:
            member, number, *epochs = word[1:].split("/")
            state = self.catalog.cluster.partitions["i1", int(number)]
            row: list[Any] = [
                "i1",
                int(number),
                state.leader_epoch,
                *(map(int, epochs) if epochs else [state.partition_epoch]),
            ]
            if word[0] == "+":
                added.append([*row, member, self.catalog.brokers[member].registration, state.step_outs_of(member)])
            else:
                removed.append([*row, member])
        return {"add": added, "remove": removed}

    def rescue(self) -> int:
        under_way = self.catalog.cluster.rescue
        return under_way.number if under_way else 0

    def state(self) -> str:
        cluster = self.catalog.cluster
        out = {b: info for b, info in sorted(cluster.brokers.items()) if not info.is_live}
        dead = [f"{b} (has left)" if info.has_left else b for b, info in out.items()]
        lines = []
        for (_, number), state in sorted(cluster.partitions.items()):
            words = [f"{number}: {state.leader or 'nobody'} leads epoch {state.leader_epoch}"]
            words.append(f"isr={','.join(state.isr) or '-'} last={','.join(state.last_isr) or '-'}")
            words.append(f"of {','.join(state.replicas)} min={state.min_insync_replicas} pe={state.partition_epoch}")
            words += [f"to {','.join(state.target)}"] if state.target else []
            words += [f"leader-step-outs={state.leader_incarnation[1]}"] if state.leader_incarnation[1] else []
            words += [f"unclean={state.unclean_epoch}"] if state.unclean_epoch else []
            lines.append("  ".join(words))
        for name, stream in self.catalog.streams.items():
            if stream.partitions_next:
                stage = stage_of(cluster, stream)
                present = stream.settings.partitions
                then = " and all are to stop" if stage and stage.is_stopping else ""
                lines.append(f"{name} has {present} partitions, soon {stream.partitions_next}{then}")
        for name, group in sorted(self.catalog.groups.named.items()):
            lines.append(f"group {name}: members {','.join(sorted(group.members)) or '-'}")
            for (stream, number), grant in sorted(group.grants.items()):
                asked = "  asked back" if grant.is_revoked else ""
                lines.append(f"  {stream}/{number} is granted to {grant.member} under {grant.epoch}{asked}")
        if self.rescue():
            lines.append(f"rescue {self.rescue()}")
        if dead:
            lines.append(f"dead: {','.join(dead)}")
        for broker, left in sorted(cluster.leftovers.items()):
            lines.append(f"{broker} has to delete {','.join(f'{s}/{n}' for s, n in sorted(left))}")
        return "\n".join([*lines, f"last number {cluster.epoch_last}"])
