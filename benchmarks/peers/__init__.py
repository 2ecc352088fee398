# SPDX-License-Identifier: Apache-2.0
"""Adapters of bench_peers: one small class for each way in which a peer is run."""
