# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible HTTP API: bodies, checks, answers, streams, errors and metrics."""
