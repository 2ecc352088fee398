# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: proposers, verification, the stop walk, adaptive draft length.

Numpy and `fdspec.ops` only; everything here runs and is tested without a model.
"""
