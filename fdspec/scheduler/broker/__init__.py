# SPDX-License-Identifier: Apache-2.0
"""The broker of a scheduler topic: the contract, and who keeps it.

`Broker` is one member's connection, made by `connect`; behind it is a Redis or Valkey server, a ZMQ
broker, or a book in this process. What members say to each other is in `values.py`.
"""
