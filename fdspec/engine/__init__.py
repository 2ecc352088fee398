# SPDX-License-Identifier: Apache-2.0
"""The engine: the step loop, how it is wired up, and the process it runs in."""
