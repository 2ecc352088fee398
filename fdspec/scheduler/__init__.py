# SPDX-License-Identifier: Apache-2.0
"""What runs next: the batch scheduler; and the topic on which requests arrive."""
