# SPDX-License-Identifier: Apache-2.0
"""The nouns of fdspec and the Protocols of its parts. Standard library and numpy only."""

from fdspec.core.command import (
    Abort,
    ClearCache,
    Command,
    DraftStats,
    FinishReason,
    Submit,
    TokenEvent,
    TokenLogprob,
)
from fdspec.core.draft import Draft, DraftContext
from fdspec.core.errors import (
    CheckpointError,
    ConfigError,
    EngineDead,
    FdspecError,
    InvalidParameter,
)
from fdspec.core.plan import ModelOutput, SequencePlan, StepPlan, Verdict
from fdspec.core.request import Request, SequenceId, Status, Swapped, TokenBuffer
from fdspec.core.sampling_params import SamplingParams

__all__ = [
    "Abort",
    "CheckpointError",
    "ClearCache",
    "Command",
    "ConfigError",
    "Draft",
    "DraftContext",
    "DraftStats",
    "EngineDead",
    "FdspecError",
    "FinishReason",
    "InvalidParameter",
    "ModelOutput",
    "Request",
    "SamplingParams",
    "SequenceId",
    "SequencePlan",
    "Status",
    "StepPlan",
    "Submit",
    "Swapped",
    "TokenBuffer",
    "TokenEvent",
    "TokenLogprob",
    "Verdict",
]
