# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the parts of an engine, and the comparisons that both they and real models pass."""
