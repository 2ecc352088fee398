# SPDX-License-Identifier: Apache-2.0
"""The KV cache: who holds which block, and the tensors behind the blocks."""
