# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.launch`: all servers of one machine, from one file."""
