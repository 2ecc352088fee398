# SPDX-License-Identifier: Apache-2.0
"""Building blocks of models: paddle.nn.Layers over fdspec.ops, for inference.

Layers get their final weights when they are made. Activations may be numpy arrays or Paddle
tensors; the model runner passes numpy, whose calls cost less. Inside a model, layers call each
other's `forward`, so hooks of inner layers do not run.
"""
