# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can cause or must see; everything else is an assertion."""

from __future__ import annotations


class FdspecError(Exception):
    """Base of every error that fdspec raises on purpose."""


class InvalidParameter(FdspecError, ValueError):
    """A request parameter is wrong: HTTP 400 with `param`, or a ValueError offline.

    Args:
        param: name of the request field, as the client wrote it.
        message: what is wrong, the value, and what is allowed.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class ConfigError(FdspecError, ValueError):
    """A configuration value is wrong; the message names file, key, value and remedy."""


class CheckpointError(FdspecError):
    """A checkpoint cannot be used; the message names file, tensor and shapes."""


class EngineDead(FdspecError):
    """The engine process has ended; requests in flight are answered with an error."""
