# SPDX-License-Identifier: Apache-2.0
"""The dry run counts what a start would take, and the files of the ERNIE models pass it."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import save_file

from fdspec.config import config_from_options, load_config
from fdspec.core.errors import ConfigError
from fdspec.engine.dry_run import dry_run
from fdspec.entrypoints.api_server import main
from fdspec.models import ModelOptions, load_model
from fdspec.models.mtp_loading import load_own_mtp
from fdspec.worker.head_runner import draft_head_layers
from tests.exactness.mtp_reference import random_weights
from tests.models import oracle

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs/yaml/ernie").glob("*.yaml"))
ERNIE_21B = ROOT / "configs/models/ERNIE-4.5-21B-A3B"


def run(model, **options):
    return dry_run(config_from_options({"model": str(model), **options}).config)


@pytest.mark.parametrize("quantization", [None, "wint4", "wint8_g32", "none"])
@pytest.mark.parametrize(
    "variant",
    ["llama_tied_biased", "qwen2", "qwen3", "ernie_untied_biased", "ernie_moe", "qwen3_moe"],
)
def test_weights_are_those_of_a_loaded_model(tmp_path, variant, quantization):
    oracle.make_tiny(variant, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    options = ModelOptions(quantization, max_model_len=256, dummy_weights=True)
    model = load_model(tmp_path, options)
    result = run(tmp_path, max_model_len=256, quantization=quantization)
    assert result.weight_bytes == model.weight_bytes


def test_a_gguf_file_takes_what_it_takes(smollm2_path):
    result = run(smollm2_path, max_model_len=512)
    loaded = load_model(smollm2_path, ModelOptions(max_model_len=512)).weight_bytes
    assert result.weight_bytes == pytest.approx(loaded, rel=0.03)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_files_of_ernie(path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    loaded = load_config(["--config", str(path)])
    assert all(line.startswith("tensor_parallel_size: 4 divides") for line in loaded.warnings)
    with pytest.raises(SystemExit) as caught:
        main(["--config", str(path), "--memory-gib", "80", "--dry-run"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "fits: yes" in printed and "requests at once: " in printed


def test_weights_of_the_21b_model():
    result = run(ERNIE_21B, quantization="wint4", memory_gib=24, gpu_memory_utilization=0.9)
    assert "21.83 billion, 3.35 for a token; held as wint8, experts wint4" in result.text
    assert 13.0 < result.weight_bytes / 2**30 < 13.5
    assert result.fits and result.pool is not None
    # Keys and values of 4 heads of 128 in 28 layers, 64 tokens, bfloat16.
    assert result.pool.block_bytes == 2 * 4 * 128 * 28 * 64 * 2
    halved = run(ERNIE_21B, quantization="wint4", memory_gib=24, tensor_parallel_size=2)
    assert halved.weight_bytes == pytest.approx(result.weight_bytes / 2, rel=0.03)
    assert halved.pool is not None and halved.pool.block_bytes == result.pool.block_bytes // 2


def test_a_model_that_drafts_counts_too():
    small = str(ROOT / "configs/models/ERNIE-4.5-0.3B")
    options = {"quantization": "wint4", "memory_gib": 24, "gpu_memory_utilization": 0.9}
    alone = run(ERNIE_21B, **options)
    speculative = {"method": "draft_model", "model": small, "quantization": "wint8"}
    both = run(ERNIE_21B, **options, speculative_config=speculative)
    drafter = run(small, quantization="wint8", memory_gib=24)
    assert both.weight_bytes == alone.weight_bytes + drafter.weight_bytes
    assert both.pool and alone.pool and drafter.pool
    assert both.pool.block_bytes == alone.pool.block_bytes + drafter.pool.block_bytes
    assert "draft_model for drafts" in both.text


@pytest.mark.parametrize("quantization", ["none", "wint8"])
def test_a_layer_for_multi_token_prediction_counts_too(tmp_path, quantization):
    oracle.make_tiny("ernie", tmp_path)
    target = load_model(tmp_path, ModelOptions("none", max_model_len=64))
    save_file(random_weights(target.config), tmp_path / "model.safetensors")
    head = load_own_mtp(tmp_path, target, quantization)
    # The rotary tables are the target's.
    head_bytes = head.weight_bytes - 64 * target.config.head_dim * 4
    options = {"quantization": "none", "max_model_len": 64, "memory_gib": 1}
    speculative = {"method": "mtp", "quantization": quantization}
    alone = run(tmp_path, **options)
    both = run(tmp_path, **options, speculative_config=speculative)
    assert both.weight_bytes - alone.weight_bytes == head_bytes
    groups = draft_head_layers(head, dtype="bfloat16", num_scratch_blocks=1)
    assert both.pool and alone.pool
    more_bytes = sum(group.num_arrays * group.block_bytes(64) for group in groups)
    assert both.pool.block_bytes - alone.pool.block_bytes == more_bytes
    assert "mtp for drafts" in both.text


def test_what_does_not_fit_is_said(capsys):
    arguments = ["--model", str(ERNIE_21B), "--quantization", "wint4", "--memory-gib", "8"]
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--dry-run"])
    assert caught.value.code == 1
    assert "fits: no; gpu_memory_utilization 0.5 of 8.0 GiB leaves no" in capsys.readouterr().out
    result = run(ERNIE_21B, quantization="wint4", memory_gib=16, num_gpu_blocks_override=10**5)
    assert not result.fits and "num_gpu_blocks_override 100000 needs" in result.text


def test_ranks_that_cannot_divide_the_model(tmp_path, capsys):
    with pytest.raises(ConfigError, match="tensor_parallel_size 3 divides neither the 20 heads"):
        run(ERNIE_21B, tensor_parallel_size=3)
    with pytest.raises(SystemExit) as caught:
        main(["--model", str(tmp_path), "--dry-run"])
    assert caught.value.code == 2
    assert "no .safetensors" in capsys.readouterr().err


def test_ranks_share_key_value_heads_where_there_are_more_of_them():
    # 64 heads over 16 ranks, but 8 key-value heads: each is on two ranks.
    result = run(
        ROOT / "configs/models/ERNIE-4.5-300B-A47B",
        tensor_parallel_size=16,
        quantization="wint4",
        memory_gib=80,
    )
    assert result.pool is not None
    assert result.pool.block_bytes == 2 * 1 * 128 * 54 * 64 * 2
