"""Lag out of Spark's progress, and errors into Spark's text."""

from __future__ import annotations

import json
import pickle
import socket
import time
import urllib.request
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.answers import Resolved
from broker.api.errors import DeadlineExceeded, OffsetOutOfRange, Retryable, Unavailable
from broker.client.http.pool import Pool, Request
from spark_liftlog import Lag, lag
from spark_liftlog.errors import LiftlogSparkError, shown_to_spark
from spark_liftlog.progress import lag_listener, query_lag
from spark_liftlog.progress.lag_listener import LagListener, _Shown, as_html
from spark_liftlog.progress.query_lag import report
from spark_liftlog.reading.selection import Selection

REPORT = report({("orders", 0): 100, ("orders", 1): 7}, {("orders", 0): 250, ("orders", 1): 7}, brokers="")


def progress(*latest: Any) -> dict[str, Any]:
    return {"sources": [{"latestOffset": one} for one in latest]}


def test_the_report_says_what_lies_before_each_high_watermark() -> None:
    assert REPORT["streams"]["orders"] == {
        "0": {"high_watermark": 250, "lag": 150},
        "1": {"high_watermark": 7, "lag": 0},
    }


@pytest.mark.parametrize("latest", [REPORT, json.dumps(REPORT)])
def test_lag_reads_the_report_as_spark_hands_it_over(latest: Any) -> None:
    found = lag(progress(latest))
    assert found == Lag({("orders", 0): 150, ("orders", 1): 0})
    assert found is not None
    assert (found.total, found.greatest) == (150, 150)


def test_other_sources_are_passed_over() -> None:
    other = '{"topic": {"0": 5}}'
    assert lag(progress(other, None, "no json", REPORT)) == Lag({("orders", 0): 150, ("orders", 1): 0})
    assert lag(progress(other, None, "7", {"v": 1, "streams": {"s": {"0": 5}}})) is None


def test_before_the_first_progress_there_is_no_lag() -> None:
    class Query:
        lastProgress = None

    assert lag(Query()) is None  # type: ignore[arg-type]


@shown_to_spark
def refused() -> None:
    raise OffsetOutOfRange("offset 5 is gone", log_start_offset=9)


@shown_to_spark
def given_up() -> None:
    try:
        raise ConnectionRefusedError("refused")
    except ConnectionRefusedError as cause:
        raise DeadlineExceeded("nobody answers") from cause


def test_the_code_stands_first_in_the_text() -> None:
    with pytest.raises(LiftlogSparkError, match=r"^LIFTLOG_OFFSET_OUT_OF_RANGE: offset 5 is gone$") as caught:
        refused()
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_not_the_users_fault_keeps_its_cause() -> None:
    with pytest.raises(LiftlogSparkError, match=r"^LIFTLOG_DEADLINE_EXCEEDED: ") as caught:
        given_up()
    assert isinstance(caught.value.__cause__, DeadlineExceeded)


def test_a_listener_tells_prometheus_the_lag_of_each_query_that_runs() -> None:
    listener = LagListener()
    named = {"id": "1", "runId": "a", "name": 'orders "eu"', **progress(REPORT)}
    for value in (named, {"id": "2", "runId": "b", "name": None, **progress("no json")}):
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(value))))
    assert list(listener.lags()) == ['orders "eu"'], "of a query without a liftlog source nothing is told"
    port = listener.serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        listener.close()
    assert 'spark_liftlog_lag_records{query="orders \\"eu\\"",stream="orders",partition="0"} 150\n' in text
    listener.onQueryTerminated(SimpleNamespace(id="1", runId="a"))
    assert listener.lags() == {}


@pytest.mark.parametrize("has_progress", [True, False])
def test_a_query_that_is_started_again_at_once_is_told_of_also_while_it_hangs(has_progress: bool) -> None:
    """Spark tells of a start in the thread that starts it, and of all else through its bus: the end of the former run,
    and what it did last, come after the start of the new one."""
    now_s = 100.0
    listener = LagListener(clock=lambda: now_s)

    def progressed(run: str, records: int) -> None:
        told = report({("orders", 0): 0}, {("orders", 0): records}, brokers="")
        value = {"id": "1", "runId": run, "name": "q", **progress(told)}
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(value))))

    listener.onQueryStarted(SimpleNamespace(id="1", runId="a", name="q"))
    listener.onQueryStarted(SimpleNamespace(id="1", runId="b", name="q"))
    if has_progress:
        progressed("a", 7)
        listener.onQueryIdle(SimpleNamespace(id="1", runId="a"))
    listener.onQueryTerminated(SimpleNamespace(id="1", runId="a"))
    now_s = 130.0
    text = listener.prometheus()
    assert 'spark_liftlog_progress_age_seconds{query="q"} 30.000\n' in text
    assert text.count('spark_liftlog_progress_age_seconds{query="q"}') == 1
    progressed("b", 9)
    assert listener.lags() == {"q": Lag({("orders", 0): 9})}
    listener.onQueryTerminated(SimpleNamespace(id="1", runId="b"))
    assert listener.lags() == {}
    assert 'query="q"' not in listener.prometheus()


def test_two_runs_of_a_query_have_one_line_each_metric() -> None:
    """While the end of the former run is on its way: Prometheus refuses what is there twice."""
    listener = LagListener(clock=lambda: 100.0)
    for run, records in (("a", 7), ("b", 9)):
        listener.onQueryStarted(SimpleNamespace(id="1", runId=run, name="q"))
        value = {
            "id": "1",
            "runId": run,
            "name": "q",
            **progress(report({("orders", 0): 0}, {("orders", 0): records}, brokers="")),
        }
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(value))))
    lines = [line for line in listener.prometheus().splitlines() if not line.startswith("#")]
    assert len(lines) == len({line.rpartition(" ")[0] for line in lines}) == 3
    assert 'spark_liftlog_lag_records{query="q",stream="orders",partition="0"} 9' in lines


def test_a_query_that_makes_no_progress_is_seen_by_its_age() -> None:
    """Its first batch hangs: there is no progress, so there is no lag either."""
    now_s = 100.0
    listener = LagListener(clock=lambda: now_s)
    listener.onQueryStarted(SimpleNamespace(id="1", runId="a", name="q"))
    now_s = 130.0
    assert 'spark_liftlog_progress_age_seconds{query="q"} 30.000\n' in listener.prometheus()
    assert "spark_liftlog_lag_age_seconds{" not in listener.prometheus()
    listener.onQueryIdle(SimpleNamespace(id="1", runId="a"))
    assert 'spark_liftlog_progress_age_seconds{query="q"} 0.000\n' in listener.prometheus()


def test_a_lag_that_no_broker_tells_grows_old() -> None:
    now_s = 100.0
    listener = LagListener(clock=lambda: now_s)
    nobody = report({("orders", 0): 1}, {("orders", 0): 3}, brokers="127.0.0.1:9")
    end = {"v": 1, "consumer": "c", "streams": {"orders": {"incarnation": "a", "partitions": {"0": [1, 0]}}}}
    value = {"id": "1", "runId": "a", "name": "q", "sources": [{"latestOffset": nobody, "endOffset": json.dumps(end)}]}
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(value))))
    now_s = 130.0
    text = listener.prometheus()
    assert 'spark_liftlog_lag_records{query="q",stream="orders",partition="0"} 2\n' in text
    assert 'spark_liftlog_lag_age_seconds{query="q"} 30.000\n' in text
    with pytest.raises(Retryable):
        lag(SimpleNamespace(lastProgress=value))  # type: ignore[arg-type]


def test_brokers_that_do_not_answer_are_asked_once_for_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question waits for some seconds. If each query asked, whoever scrapes would give up, and lose all gauges
    just when brokers hang."""
    asked = list[str]()

    def unanswered(progress: dict[str, Any]) -> Lag:
        asked.append(progress["runId"])
        if progress["sources"][0]["latestOffset"]["brokers"] == "here:1":
            raise Unavailable("nobody answers")
        return Lag({("orders", 0): 5})

    monkeypatch.setattr(lag_listener, "lag_now", unanswered)
    now_s = 100.0
    listener = LagListener(clock=lambda: now_s)
    for run, brokers in (("a", "here:1"), ("b", "here:1"), ("c", "there:1"), ("d", "here:1")):
        told = report({("orders", 0): 1}, {("orders", 0): 3}, brokers=brokers)
        value = {"id": run, "runId": run, "name": run, **progress(told)}
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(value))))
    for _ in range(2):
        now_s += 30.0
        asked.clear()
        assert listener.lags() == {run: Lag({("orders", 0): 5 if run == "c" else 2}) for run in "abcd"}
        assert asked == ["a", "c"]


@pytest.mark.parametrize("age_ms", [90_000, 0, None])
def test_an_age_goes_by_the_clock_of_brokers(monkeypatch: pytest.MonkeyPatch, age_ms: int | None) -> None:
    """The driver's may be another one. It counts only beside brokers of an earlier release."""
    stamped_us = time.time_ns() // 1_000 - 7_200_000_000
    found = Resolved(
        stream="orders",
        partition=0,
        incarnation="a",
        offset=1,
        leader_epoch=0,
        log_start_offset=0,
        high_watermark=3,
        bytes_ahead=9,
        timestamp_us=stamped_us,
        age_ms=age_ms,
    )
    client = SimpleNamespace(resolve=lambda asked: [found])
    monkeypatch.setattr(query_lag, "client_at", lambda *_, **__: nullcontext(client))
    at = report({("orders", 0): 1}, {("orders", 0): 3}, brokers="here:1")
    end = {"v": 1, "consumer": "c", "streams": {"orders": {"incarnation": "a", "partitions": {"0": [1, 0]}}}}
    told = query_lag.lag_now({"sources": [{"latestOffset": at, "endOffset": json.dumps(end)}]})
    assert told is not None
    assert told.total == 2
    assert told.behind_s == pytest.approx(7_200 if age_ms is None else age_ms / 1_000, abs=60)


def test_a_lag_is_asked_for_with_little_patience() -> None:
    """Of a broker that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_lag, "ASK_S", 0.1)
        waits = list[float]()
        exchange = Pool.exchange

        def timed(pool: Pool, address: Any, request: Request, **more: Any) -> Any:
            waits.append(request.timeout_s)
            return exchange(pool, address, request, **more)

        patch.setattr(Pool, "exchange", timed)
        brokers = f"127.0.0.1:{silent.getsockname()[1]}"
        at = report({("orders", 0): 1}, {("orders", 0): 3}, brokers=brokers, selection=Selection(names=("orders",)))
        end = {"v": 1, "consumer": "c", "streams": {"orders": {"incarnation": "a", "partitions": {"0": [1, 0]}}}}
        value = {"sources": [{"latestOffset": at, "endOffset": json.dumps(end)}]}
        with pytest.raises(Retryable):
            lag(SimpleNamespace(lastProgress=value))  # type: ignore[arg-type]
        assert set(waits) == {0.1}


def test_a_notebook_shows_rate_and_lag() -> None:
    assert "no progress yet" in as_html(None, None)
    of = {"id": "1", "name": "<q>", "batchId": 7, "processedRowsPerSecond": 1234.5, **progress(REPORT)}
    shown = as_html(of, lag(of))
    for part in ("&lt;q&gt;", "batch 7", "1,234 records/s", "150 behind", "<td>orders</td><td>0</td><td>150</td>"):
        assert part in shown


def test_where_no_html_is_shown_progress_is_a_line() -> None:
    progress_of = {"id": "1", "name": "<q>", "batchId": 7, "processedRowsPerSecond": 1234.5, **progress(REPORT)}
    assert repr(_Shown(SimpleNamespace(lastProgress=progress_of))) == "<q>: batch 7, 1,234 records/s, 150 behind"
    assert repr(_Shown(SimpleNamespace(lastProgress=None))) == "no progress yet"
