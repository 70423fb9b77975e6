"""What `vllm-eagle check` says, vLLM's own front end does with the command that is printed."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.support.engine import TINY, has_gpu
from tests.support.releases import is_release
from vllm_eagle_ext import plugin
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.preflight.check import CheckRequest, run_check
from vllm_eagle_ext.preflight.serve import serve_command

pytestmark = [
    pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does"),
    pytest.mark.promise("`check` says what a start would say"),
]
DENSE, HYBRID = "target", "hybrid_target"
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, 2], [5, 8, 0]]}
NEEDS_ALL = is_release("0.32")  # a CPU's kernels, with one state block per draft token


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    import vllm.plugins

    plugin.register()
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")


def start(command):
    """As `vllm serve` builds its config."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = [word for word in shlex.split(command) if not word.startswith("VLLM_")]
    assert words[:2] == ["vllm", "serve"]
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = parser.parse_args(["--model", *words[2:]])
    return AsyncEngineArgs.from_cli_args(arguments).create_engine_config()


@pytest.mark.parametrize(
    ("published", "replays"), [("float16", False), ("float32", True), ("bfloat16", True)]
)
def test_a_hybrid_target_in_the_dtype_that_it_was_published_in(tmp_path, published, replays):
    for file in (TINY / HYBRID).iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((TINY / HYBRID / "config.json").read_text()) | {"dtype": published}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    request = CheckRequest(
        draft=str(TINY / "dflash"), target=str(tmp_path), k=7, platform="cpu", options={}
    )
    result = run_check(request)
    assert (result.state or "").startswith("replay") is replays
    architecture = start(serve_command(result)).model_config.architecture
    assert ("EagleExt" in architecture) is replays


@pytest.mark.parametrize(
    ("draft", "target", "asked", "served"),
    [
        ("postnorm", DENSE, {"k": 4}, True),
        ("gated", DENSE, {"options": {"gate_layout": "interleaved"}}, True),
        ("dflash", HYBRID, {"k": 7}, True),
        ("dflash", HYBRID, {"k": 2, "options": {"hybrid_state": "replay"}}, True),
        ("dflash", HYBRID, {"k": 7, "engine": {"enable_prefix_caching": True}}, False),
        ("dflash", HYBRID, {"k": 8}, False),
        ("postnorm", DENSE, {"options": {"hybrid_state": "replay"}}, False),
        ("postnorm", DENSE, {"engine": {"tensor_parallel_size": 3}}, False),
        ("postnorm", DENSE, {"k": 70, "engine": {"max_model_len": 64}}, False),
        ("postnorm", HYBRID, {}, False),
        ("dflash", HYBRID, {"k": 2, "speculative": SCHEDULE}, True),
        ("dflash", HYBRID, {"k": 7, "speculative": SCHEDULE}, True),
        (
            "dflash",
            HYBRID,
            {"k": 7, "options": {"hybrid_state": "per_token"}, "speculative": SCHEDULE},
            not NEEDS_ALL,
        ),
        ("postnorm", DENSE, {"k": 4, "speculative": SCHEDULE}, True),
        ("dflash", HYBRID, {"k": 7, "speculative": {"enable_adaptive_verification": True}}, False),
    ],
    ids=str,
)
def test_the_verdict_is_the_starts(draft, target, asked, served):
    request = CheckRequest(
        draft=str(TINY / draft), target=str(TINY / target), platform="cpu", **{"options": {}} | asked
    )
    result = run_check(request)
    assert result.exit_code == int(not served), result.inspection.findings
    if served:
        config = start(serve_command(result))
        assert "EagleExt" in config.speculative_config.draft_model_config.architecture
        replays = "EagleExt" in config.model_config.architecture
        assert replays is (result.state or "").startswith("replay")
        return
    with pytest.raises(EagleExtError) as caught:
        start(serve_command(result))
    first = result.inspection.causes[0].problem
    assert (caught.value.field, caught.value.value) == (first.field, first.value)
