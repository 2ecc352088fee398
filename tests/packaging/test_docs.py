# SPDX-License-Identifier: Apache-2.0
"""Examples in the documentation run as they are printed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_offline_page(smollm2_path, capsys):
    page = (ROOT / "docs/offline.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "models/SmolLM2-135M-Instruct.Q4_1.gguf" in code
    exec(code.replace("models/SmolLM2-135M-Instruct.Q4_1.gguf", str(smollm2_path)), {})
    printed = capsys.readouterr().out
    assert "named after" in printed and "Once upon a time" in printed
    assert re.search(r"(stop|length) [01]\.\d+", printed)
