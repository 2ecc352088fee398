# SPDX-License-Identifier: Apache-2.0
"""From a server's role to its engine's end of the handoff, with the sockets and keys it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fdspec.config import EngineConfig, HandoffConfig
from fdspec.core.kv_memory import KVMemory
from fdspec.core.protocols import KVHandoff
from fdspec.engine.decode_handoff import DecodeHandoff
from fdspec.engine.no_handoff import NoHandoff
from fdspec.engine.prefill_handoff import LayerCounter, PrefillHandoff
from fdspec.scheduler.broker.curve_keys import load_member_keys
from fdspec.transfer import (
    ClientKeys,
    HandoffServer,
    HandoffSink,
    KVLayout,
    PullLimits,
    ServerKeys,
    ServerOptions,
    SinkOptions,
    TransportOptions,
)
from fdspec.utils.logging import get_logger
from fdspec.utils.private_folder import make_private_folder

logger = get_logger(__name__)

# Of kv_transfer_timeout, so that there is time for another transport after a read that hangs.
_READ_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class BuiltHandoff:
    """An engine's end of the handoff.

    Attributes:
        handoff: the end.
        endpoints: ways to the cache, for people.
        close: stops it; before the cache is closed.
    """

    handoff: KVHandoff
    endpoints: tuple[str, ...]
    close: Callable[[], None]


def build_handoff(
    config: EngineConfig, memory: KVMemory, layout: KVLayout, layers: LayerCounter
) -> BuiltHandoff:
    """The end that `splitwise_role` asks for.

    Args:
        config: of the engine.
        memory: its KV cache; stays valid until `close`.
        layout: of it.
        layers: how far the engine's running step is.

    Raises:
        ConfigError: keys, address or transport cannot be used.
    """
    role = config.topic.splitwise_role
    if not config.topic.hands_over:
        nothing = NoHandoff()
        return BuiltHandoff(nothing, (), nothing.close)
    folder = make_private_folder()
    try:
        options = _transport_options(config.handoff, folder)
        # The first write to a page is slow; this is the time for it.
        memory.prefault()
        if role == "prefill":
            built = _prefill(config.handoff, memory, layout, layers, options)
        else:
            built = _decode(config.handoff, memory, layout, options)
    except BaseException:
        shutil.rmtree(folder)
        raise

    def close() -> None:
        built.close()
        shutil.rmtree(folder, ignore_errors=True)

    return BuiltHandoff(built.handoff, built.endpoints, close)


def _prefill(
    config: HandoffConfig,
    memory: KVMemory,
    layout: KVLayout,
    layers: LayerCounter,
    options: TransportOptions,
) -> BuiltHandoff:
    server_options = ServerOptions(
        options,
        transports=config.kv_transfer_transports,
        lease_s=config.kv_transfer_lease,
        checksums=config.kv_transfer_checksums,
    )
    handoff = PrefillHandoff(
        lambda free: HandoffServer(memory, layout, server_options, free),
        block_size=layout.block_size,
        layers=layers,
    )
    endpoints = (handoff.address, *config.kv_transfer_transports)
    logger.info("offering KV caches at %s by %s", endpoints[0], ", ".join(endpoints[1:]))
    return BuiltHandoff(handoff, endpoints, handoff.close)


def _decode(
    config: HandoffConfig, memory: KVMemory, layout: KVLayout, options: TransportOptions
) -> BuiltHandoff:
    sink_options = SinkOptions(
        options,
        transports=config.kv_transfer_transports,
        limits=PullLimits(
            deadline_s=config.kv_transfer_timeout,
            read_s=config.kv_transfer_timeout * _READ_SHARE,
        ),
    )
    handoff = DecodeHandoff(HandoffSink(memory, layout, sink_options))
    logger.info("taking KV caches over by %s", ", ".join(config.kv_transfer_transports))
    return BuiltHandoff(handoff, (), handoff.close)


def _transport_options(config: HandoffConfig, folder: Path) -> TransportOptions:
    if config.kv_transfer_curve_keys is None:
        return TransportOptions(folder, config.kv_transfer_listen)
    keys = load_member_keys(Path(config.kv_transfer_curve_keys).expanduser())
    return TransportOptions(
        folder,
        config.kv_transfer_listen,
        ServerKeys(keys.public, keys.secret, frozenset((keys.public,))),
        ClientKeys(keys.public, keys.secret),
    )
