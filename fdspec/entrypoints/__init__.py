# SPDX-License-Identifier: Apache-2.0
"""Ways into fdspec: the HTTP server and offline generation. Never imports paddle by itself."""
