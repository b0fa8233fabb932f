"""Goal: a broker whose `auth.mode` is weaker than others' is seen by these, and each says its own mode.

Method: the real catalog with three brokers, as one of them sees it; commands that fail; a clock that the test moves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.api.errors import NotReady
from broker.control.auth_modes import REMIND_S, AuthModes
from broker.metadata.catalog import MODES_SINCE
from broker.metadata.cluster import FEATURE_LEVEL
from tests.support.placed import Cluster


class Refusing(Cluster):
    refusals = 0

    def execute(self, command: Mapping[str, Any], **more: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise NotReady("no controller")
        return super().execute(command, **more)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def cluster() -> Refusing:
    made = Refusing()
    for broker in "abc":
        made.register(broker, feature_level_max=FEATURE_LEVEL)
    return made


def modes(cluster: Cluster, executor: ThreadPoolExecutor, broker: str, mode: str, now: list[float]) -> AuthModes:
    process = cluster.catalog.brokers[broker].incarnation
    made = AuthModes(broker, process, mode, cluster, executor=executor, clock_s=lambda: now[0])
    made.begin()
    return made


def done(executor: ThreadPoolExecutor) -> None:
    executor.submit(int).result(60)


def said(cluster: Cluster) -> list[str]:
    return [cluster.catalog.brokers[broker].auth_mode for broker in "abc"]


def test_each_says_its_mode_and_who_enforces_says_who_does_not(
    cluster: Refusing, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1_000.0]
    caplog.set_level(logging.INFO)
    a = modes(cluster, executor, "a", "enforce", now)
    b = modes(cluster, executor, "b", "off", now)
    done(executor)
    assert said(cluster) == ["", "", ""], "no broker of an earlier release would know the command"
    cluster.apply(kind="set_feature_level", level=MODES_SINCE)
    done(executor)
    assert said(cluster) == ["enforce", "off", ""]
    assert (a.weaker(), b.weaker()) == ({"b": "off"}, {})

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.getMessage().startswith("auth.")]

    assert lines() == ["auth.weaker_brokers mine=enforce brokers=b:off"]
    for _ in range(3):
        a.look()
    assert len(lines()) == 1
    now[0] += REMIND_S
    a.look()
    assert len(lines()) == 2
    cluster.register("b", feature_level_max=FEATURE_LEVEL)
    modes(cluster, executor, "b", "enforce", now)
    done(executor)
    assert said(cluster) == ["enforce", "enforce", ""]
    assert lines()[2:] == ["auth.no_weaker_broker mine=enforce"]
    b.look()
    done(executor)
    assert said(cluster)[1] == "enforce", "another process of its name says it now"


def test_a_mode_that_could_not_be_told_is_told_later(cluster: Refusing, executor: ThreadPoolExecutor) -> None:
    cluster.apply(kind="set_feature_level", level=MODES_SINCE)
    cluster.refusals = 2
    a = modes(cluster, executor, "a", "permissive", [0.0])
    for _ in range(3):
        done(executor)
        a.look()
    done(executor)
    assert said(cluster)[0] == "permissive"
