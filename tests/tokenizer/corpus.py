# SPDX-License-Identifier: Apache-2.0
"""Texts that tokenizers get wrong: scripts, emoji, code, control characters, odd spaces."""

from __future__ import annotations

TEXTS = (
    "",
    " ",
    "   leading and trailing   ",
    "The quick brown fox jumps over the lazy dog.",
    "I'll say we've, he's, DON'T and they'd've",
    "2024-11-30 12:34:56 costs $1,234,567.89 or 3.14159e-10",
    "x1y22z333 ٣٤٥ ½ Ⅷ ²³ 一二三",
    "naïve café Ångström Ελληνικά Русский العربية עברית हिन्दी ไทย",
    "你好，世界！今天天气怎么样？",
    "こんにちは世界。カタカナとひらがな",
    "안녕하세요 세계",
    "😀 👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 ✊🏿 1️⃣",
    "e\u0301 vs \u00e9, A\u030a vs \u00c5",
    "def f(x: int) -> int:\n\treturn x**2 if x >= 0 else -x  # comment\n",
    '{"key": [1, 2, {"nested": null}], "text": "a\\nb"}',
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }\r\n\r\n",
    "line one\nline two\r\nline three\n\n\n   indented\n\t\ttabs\t",
    "control \x00\x01\x07\x08\x0b\x0c\x1b\x7f characters",
    "zero\u200bwidth\u200d joiner\ufeff mark \u00a0nbsp \u3000 ideographic \u2028line",
    "<|im_start|>user\nHello<|im_end|>\n<|endoftext|>",
    "<|im_start|><|im_start|> <|im_end|>x<|im_end|>",
    "almost <|im_start| > <|im_sta rt|>",
    "a" * 300,
    "!?!?!?...---___===~~~+++<<<>>>|||^^^$$$",
    "\U0001f9d1\u200d\U0001f680 \U00020000 \U0010ffff \ue000",
    "http://example.com/path?query=1&other=%20#fragment user@example.org",
    "ＦＵＬＬｗｉｄｔｈ １２３ ﬁ ligature",
    "\u2581 \u2581\u2581 <0x41> <unk> <s> </s>",
)
