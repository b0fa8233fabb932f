"""Profiles of clients: brokers, files of TLS and a token under one name, in a file of the user's.

    ~/.config/liftlog/profiles.toml
        [prod]
        brokers = ["https://broker-a.example.net:9293", "https://broker-b.example.net:9293"]
        tls_ca = "ca.pem"
        token_file = "prod.token"

For each value the nearest source counts, and a certificate comes with its own key:

    said directly  >  the profile that is said directly  >  a LIFTLOG_* variable  >  the profile of LIFTLOG_PROFILE

P1  A profile is read where it is named, and nowhere else: none is used by default, and an empty name means none.
P2  A file that every user of the machine can read is refused, as files of tokens are (`token_files`).
P3  A token of a profile goes over TLS alone, also on this machine, unless the brokers of that profile are without TLS:
    it is for those, and somebody else's program may have the local port that is asked in their place.
P4  What is wrong with a profile is an error that names the file, the key, and what there is. It shows no value but
    addresses and paths: no token that is given in the place of its path.
P5  A profile that is said directly and names brokers stands alone: a variable is about other brokers, and so is the
    token that it names. It may go over TLS, but to whom it is not for.
P6  Paths are relative to the folder of the file, wherever the client runs. `~/` is the user's home.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.api import environment
from broker.api.errors import InvalidRequest, InvalidSetting, UnknownSetting
from broker.api.principals import is_secret
from broker.api.tls_files import check_private, read
from broker.client.http.address import parse_addresses
from broker.client.http.tls import TlsFiles, files_of_environment

FILE: Final = "liftlog/profiles.toml"
KEYS: Final = ("brokers", "tls_ca", "tls_cert", "tls_key", "token_file")
NO_FILES: Final = TlsFiles()
SHOWN_MAX: Final = 20
"""So many names of profiles an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one profile says.

    Attributes:
        brokers: As text, separated by commas. None: it names none.
        files: With whole paths.
    """

    brokers: str | None = None
    files: TlsFiles = NO_FILES


def brokers_for(given: str | None, profile: str | None, *, default: str = "localhost:9293") -> str:
    """The brokers that a client asks, separated by commas. `given`, `profile`: what was said directly.

    Raises:
        InvalidRequest: the profile cannot be used.
    """
    if given is not None:
        return given
    of_environment = Profile(brokers=environment.brokers())
    found = [source.brokers for source in _in_order(profile, of_environment) if source.brokers is not None]
    return found[0] if found else default


def files_for(given: TlsFiles | None = None) -> TlsFiles:
    """The files that a client uses. `given`: what was said directly; its `profile` is read here.

    Raises:
        InvalidRequest: the profile cannot be used.
    """
    given = given or NO_FILES
    sources = [given, *(each.files for each in _in_order(given.profile, Profile(files=files_of_environment())))]
    ca = next((each.ca for each in sources if each.ca is not None), None)
    cert, key = next(((each.cert, each.key) for each in sources if each.cert or each.key), (None, None))
    bearer = next((each for each in sources if each.token is not None), NO_FILES)
    if bearer.token is not None and is_secret(bearer.token):
        raise InvalidSetting("token_file: must be the path of a file with a token, and is a token", key="token_file")
    return TlsFiles(ca=ca, cert=cert, key=key, token=bearer.token, token_over_tls=bearer.token_over_tls)


def profile_of(name: str | None) -> Profile:
    """The profile of this name; None or empty: the one of the environment, or none.

    Args:
        name: Of a profile in the user's file, or `PATH#NAME` of one in another file.
    Raises:
        InvalidSetting, UnknownSetting: P2, P4.
    """
    name = environment.profile() if name is None else name
    return read_profile(name) if name else Profile()


def read_profile(text: str) -> Profile:
    """A profile by its name. Raises as `profile_of`."""
    import tomllib

    path, _, name = text.rpartition("#")
    path = path or os.path.join(environment.config_home(), FILE)
    content = read("profile", path)
    check_private("profile", path)
    try:
        profiles = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # of TOML; of UTF-8; numbers of 5,000 digits; deep nesting
        why = "it is not in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidSetting(f"{path}: cannot be read as TOML: {why}", key="profile", value=path) from None
    for key, value in profiles.items():
        if not isinstance(value, dict):
            raise _invalid(path, f"{key} stands outside of a profile; begin one with a line such as [prod]", key)
    if name not in profiles:
        there = ", ".join([*list(profiles)[:SHOWN_MAX], *(["…"] if len(profiles) > SHOWN_MAX else [])])
        raise InvalidSetting(f"{path} has no profile {name!r}; it has {there or 'none'}", key="profile", value=name)
    return _checked(path, name, profiles[name])


def _in_order(profile: str | None, of_environment: Profile) -> tuple[Profile, ...]:
    """The sources of what is not said directly, value by value: the nearer one first (P5)."""
    found = profile_of(profile)
    if profile is None:
        return of_environment, found
    return (found, of_environment) if found.brokers is None else (found,)


def _checked(path: str, name: str, given: Mapping[str, Any]) -> Profile:
    """P4, P6."""
    where = f"{path}: profile {name!r}"
    for key, value in given.items():
        if key not in KEYS:
            import difflib

            nearest = next(iter(difflib.get_close_matches(key, KEYS, n=1)), None)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise UnknownSetting(
                f"{where}: unknown key {key!r}; a profile has {', '.join(KEYS)}{hint}", key=key, nearest=nearest
            )
        is_list = key == "brokers" and isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (is_list or isinstance(value, str)) or not value:
            what = "addresses, as text or a list" if key == "brokers" else "the path of a file"
            raise _invalid(where, f"{key} must be {what}", key)
    for key, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if key in given and other not in given:
            raise _invalid(where, f"{key} needs {other}", key)
    brokers, is_tls = None, True
    if "brokers" in given:
        try:
            addresses = parse_addresses(given["brokers"])
        except InvalidRequest as error:
            raise _invalid(where, f"brokers: {error}", "brokers") from None
        brokers, is_tls = ",".join(map(str, addresses)), addresses[0].is_tls
        for key in KEYS:
            if key.startswith("tls_") and key in given and not is_tls:
                raise _invalid(where, f"{key} is for brokers at https://, and {brokers} is not", key)
    folder = os.path.dirname(os.path.abspath(path))
    home = {
        key: os.path.expanduser(value) if value.startswith("~/") else value
        for key, value in given.items()
        if key != "brokers"
    }
    paths = {key: os.path.join(folder, value) for key, value in home.items()}
    files = TlsFiles(
        ca=paths.get("tls_ca"),
        cert=paths.get("tls_cert"),
        key=paths.get("tls_key"),
        token=paths.get("token_file"),
        token_over_tls=is_tls,  # P3
    )
    return Profile(brokers=brokers, files=files)


def _invalid(where: str, why: str, key: str) -> InvalidSetting:
    return InvalidSetting(f"{where}: {why}", key=key, value=None)
