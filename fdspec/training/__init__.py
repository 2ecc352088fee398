# SPDX-License-Identifier: Apache-2.0
"""Training of draft heads on a model's own answers and hidden states."""
