# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, and chat templates. No paddle; frontend and engine both use it."""

from fdspec.tokenizer.detokenizer import Detokenizer
from fdspec.tokenizer.loading import load_tokenizer
from fdspec.tokenizer.token_table import TokenTable, load_token_table
from fdspec.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "TokenTable", "Tokenizer", "load_token_table", "load_tokenizer"]
