# SPDX-License-Identifier: Apache-2.0
"""Keys of a ZMQ broker and of its members: CurveZMQ proves who both are, and encrypts.

`make_keys` writes two folders: `broker` stays where the broker runs, `member` is copied to all who
may join.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import zmq.auth

from fdspec.core import ConfigError

_ALLOWED = "allowed"


@dataclass(frozen=True, slots=True)
class BrokerKeys:
    """What a broker needs: its own pair, and the folder with the public keys of its members."""

    public: bytes
    secret: bytes
    allowed: Path


@dataclass(frozen=True, slots=True)
class MemberKeys:
    """What a member needs: its own pair, and the public key of the broker."""

    public: bytes
    secret: bytes
    broker: bytes


def make_keys(folder: Path) -> None:
    """Write new keys into `folder`/broker and `folder`/member.

    Raises:
        ConfigError: there are keys already.
    """
    broker, member = folder / "broker", folder / "member"
    if broker.exists() or member.exists():
        raise ConfigError(f"{folder} has keys already; remove broker/ and member/ to make new ones")
    old_mask = os.umask(0o077)
    try:
        for part, name in ((broker, "broker"), (member, "member")):
            part.mkdir(parents=True)
            zmq.auth.create_certificates(part, name)
        (broker / _ALLOWED).mkdir()
        shutil.copy(member / "member.key", broker / _ALLOWED / "member.key")
        shutil.copy(broker / "broker.key", member / "broker.key")
    finally:
        os.umask(old_mask)


def load_broker_keys(folder: Path) -> BrokerKeys:
    """Keys of a broker.

    Raises:
        ConfigError: the folder has none.
    """
    public, secret = _load_pair(folder / "broker.key_secret", "broker")
    allowed = folder / _ALLOWED
    if not allowed.is_dir():
        raise ConfigError(f"{allowed} is missing: it holds the public key of each member")
    return BrokerKeys(public, secret, allowed)


def load_member_keys(folder: Path) -> MemberKeys:
    """Keys of a member.

    Raises:
        ConfigError: the folder has none.
    """
    public, secret = _load_pair(folder / "member.key_secret", "member")
    return MemberKeys(public, secret, _load(folder / "broker.key", "member")[0])


def _load_pair(path: Path, part: str) -> tuple[bytes, bytes]:
    public, secret = _load(path, part)
    if secret is None:
        raise ConfigError(f"{path} holds no secret key")
    return public, secret


def _load(path: Path, part: str) -> tuple[bytes, bytes | None]:
    try:
        return zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the key {path} ({error}); `python -m fdspec.entrypoints.broker "
            f"make-keys FOLDER` makes keys, and the folder to name here is FOLDER/{part}"
        ) from None
