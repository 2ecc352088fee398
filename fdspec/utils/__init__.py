# SPDX-License-Identifier: Apache-2.0
"""Small tools that every package may use. Imports nothing else of fdspec."""
