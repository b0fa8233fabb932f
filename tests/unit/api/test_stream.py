"""Settings of a stream: every value is checked, and the error names key, value and limit."""

from __future__ import annotations

import pytest

from broker.api.errors import InvalidName, InvalidSetting, InvalidSubject, UnknownSetting
from broker.api.stream import (
    LIMITS,
    SINCE,
    StreamSettings,
    check_name,
    check_new_subject,
    check_subject,
    new_values,
    settings_from,
)


def test_defaults_are_within_their_own_limits() -> None:
    assert settings_from(StreamSettings().as_dict()) == StreamSettings()


@pytest.mark.parametrize("key", LIMITS)
def test_number_is_held_to_its_limits(key: str) -> None:
    least, greatest = LIMITS[key]
    for good in (least, greatest):
        assert getattr(settings_from({key: good}), key) == good
    for bad in (least - 1, greatest + 1, "1", "1d", 1.5, float("inf"), float("nan"), -(10**40), 10**4_000, True, [1]):
        with pytest.raises(InvalidSetting, match=f"from {least} to {greatest}") as caught:
            settings_from({key: bad})
        assert (caught.value.key, caught.value.limit) == (key, [least, greatest])
        assert str(caught.value).startswith(f"{key}={repr(bad)[:100]}: must be ")
        assert caught.value.value in (bad, repr(bad)[:100])
        assert len(str(caught.value)) < 300


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(UnknownSetting, match="did you mean 'retention_ms'") as caught:
        settings_from({"retention_m": 5})
    assert caught.value.nearest == "retention_ms"


@pytest.mark.parametrize(
    "values",
    [
        {"acks": "most"},
        {"fsync": "never"},
        {"partition_by": "token:0"},
        {"partition_by": "random"},
        {"subject": "a.b", "partition_by": "token:3"},
        {"subject": "a.>", "partitions": 2},
        {"reply_acks": 1},
        {"partitions": None},
        {"subject": 5},
    ],
    ids=str,
)
def test_bad_value_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        settings_from(values)


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", "a b", "a.>.b", "a\tb", "x" * 513, "a\x00b", "\ud800"])
def test_subject_that_nats_would_refuse_is_refused(subject: str) -> None:
    with pytest.raises(InvalidSubject):
        check_subject(subject)


@pytest.mark.parametrize("subject", [">", "*", "*.x", "$JS.API", "$SYS.>", "_INBOX.x"])
def test_subject_that_would_capture_replies_needs_acks_off(subject: str) -> None:
    with pytest.raises(InvalidSubject):
        settings_from({"subject": subject})
    if not subject.startswith("_INBOX"):
        assert settings_from({"subject": subject, "reply_acks": False}).subject == subject


def test_a_subject_that_no_suffix_can_follow_is_partitioned_by_itself_where_nobody_says_how() -> None:
    usual = StreamSettings()
    by_key = settings_from({"partition_by": "key"})
    for values, defaults, existing, found in (
        ({"subject": "a.>"}, usual, None, "subject"),
        ({"subject": "a.>", "partitions": 3}, usual, None, "subject"),
        ({"subject": "a.*"}, usual, None, "subject_suffix"),
        ({}, usual, None, "subject_suffix"),
        ({"subject": "a.>", "partition_by": "subject_suffix"}, usual, None, "subject_suffix"),
        ({"subject": "a.>"}, by_key, None, "key"),
        ({"subject": "a.>"}, usual, settings_from({"subject": "a.>"}), "subject_suffix"),
        ({"subject": "a.>"}, usual, settings_from({"subject": "b.>"}), "subject"),
        ({"subject": "a.>"}, usual, settings_from({"subject": "a.>", "partition_by": "key"}), "key"),
    ):
        assert settings_from(new_values(values, defaults, existing)).partition_by == found, values


def test_a_new_stream_over_a_subject_opens_envelopes_where_all_brokers_can() -> None:
    """One that is there stays as it is, if nobody says otherwise."""
    usual, since = StreamSettings(), SINCE["envelopes"]
    there, open_, kept = ({"subject": "a", "envelopes": each} for each in (None, "open", "keep"))
    for values, existing, level, found in (
        ({"subject": "a"}, None, None, "open"),
        ({"subject": "a"}, None, since, "open"),
        ({"subject": "a"}, None, since - 1, None),
        ({}, None, since, None),
        (kept, None, since, "keep"),
        (there, None, since, None),
        ({"subject": "a"}, there, since, None),
        ({"subject": "a"}, open_, since, "open"),
        ({"subject": "a"}, kept, None, "keep"),
        (open_, kept, None, "open"),
    ):
        before = None if existing is None else settings_from(existing)
        assert settings_from(new_values(values, usual, before, level=level)).envelopes == found, (values, existing)


@pytest.mark.parametrize("subject", ["$JS.API", "$SYS.>", "$KV.b.>", "$"])
def test_no_new_stream_is_over_the_servers_own_subjects(subject: str) -> None:
    """One of before is still read."""
    settings = settings_from({"subject": subject, "reply_acks": False})
    with pytest.raises(InvalidSubject, match="never captured"):
        check_new_subject(settings)
    assert check_new_subject(settings_from({"subject": "a.$"})).subject == "a.$"
    assert check_new_subject(settings_from({})).subject is None


@pytest.mark.parametrize("subject", ["orders.**", "a*", "a.>>", "a.b>", ">a.b", "*.x*.>"])
def test_no_new_stream_has_a_wildcard_within_a_token(subject: str) -> None:
    """One of before is still read."""
    settings = settings_from({"subject": subject, "reply_acks": False})
    with pytest.raises(InvalidSubject, match="within a token"):
        check_new_subject(settings)
    assert check_new_subject(settings_from({"subject": "a.*.b.>"})).subject == "a.*.b.>"


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a b", "x" * 129, "__a", "é", "a\n"])
def test_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name(name)
