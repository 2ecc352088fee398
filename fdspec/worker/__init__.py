# SPDX-License-Identifier: Apache-2.0
"""The model runner: step plans to tensors, tensors to logits, and the KV of what was accepted."""
