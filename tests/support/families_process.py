"""Serves a small random draft of each family through real engines, one after the other, in one process.

python -m tests.support.families_process JOB RESULT, where JOB names a folder and families.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import HEADS, HIDDEN, INTER, LAYERS, VOCAB, write_target
from tests.support.drafts import LATENT, NOPE, ROTARY, VALUE, valid_draft, write
from tests.support.in_process import close

PROMPTS = [[3, 14, 15, 92, 65, 35, 89, 79], [27, 18, 28], [1]]
MAX_TOKENS = 24
# Where there is AMX vLLM takes another kernel, for bf16 and multiples of 32 alone.
LATENT_ENGINE = {"block_size": 16, "attention_backend": "CPU_MLA"}
LATENT_SIZES = {
    "q_lora_rank": 32,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROTARY,
    "v_head_dim": VALUE,
}


def write_random_target(folder: Path, **overrides: Any) -> Path:
    """A Llama that fits the drafts, with weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    write_target(folder, **overrides)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    for parameter in model.parameters():  # the default scale makes every logit a near-tie
        parameter.data.mul_(4.0 if parameter.ndim == 2 else 1.0)
    model.save_pretrained(folder)
    return folder


def write_latent_target(folder: Path) -> Path:
    """A DeepSeek-V3 of the same sizes: vLLM's CPU backend cannot mix latent and plain attention."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        moe_intermediate_size=INTER,
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        dtype="bfloat16",
        **LATENT_SIZES,
    )
    model = DeepseekV3ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(4.0 if parameter.ndim == 2 else 1.0)
    model.save_pretrained(folder)
    return folder


def speculative_config(name: str, folder: Path) -> dict[str, Any] | None:
    """`name` is a family of drafts.py, "bin" for one in the older format, or "none"."""
    if name == "none":
        return None
    draft = valid_draft("native" if name == "bin" else name)
    path = write(draft, folder / name)
    if name == "bin":
        (path / "model.safetensors").unlink()
        torch.save(draft.tensors, path / "pytorch_model.bin")
    config = {"method": draft.method, "model": str(path), "num_speculative_tokens": draft.k}
    return config | ({"parallel_drafting": True} if name == "p-eagle" else {})


def latent_config(name: str, folder: Path) -> dict[str, Any] | None:
    config = speculative_config(name, folder)
    backend = {"attention_backend": LATENT_ENGINE["attention_backend"]}
    return config and config | backend


def serve(
    target: Path, speculative: dict[str, Any] | None, *, record: bool = False, **engine_args: Any
) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(target),
        dtype="float32",  # no near-ties between a batch of one and a batch of K + 1
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        gpu_memory_utilization=0.2,
        disable_log_stats=False,
        speculative_config=speculative,
        worker_extension_cls="tests.support.recorder.Recorder" if record else "",
        **engine_args,
    )
    if record:
        llm.collective_rpc("start_recording")
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    drafter = llm.collective_rpc(drafter_name)[0] if speculative else None
    recorded = llm.collective_rpc("take_drafts")[0] if record else {}
    close(llm)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "drafts": counters.get("vllm:spec_decode_num_drafts"),
        "drafter": drafter,
        "recorded": list(recorded.values()),
    }


def drafter_name(worker: Any) -> str:
    runner = worker.model_runner
    drafter = runner.speculator if hasattr(runner, "speculator") else runner.drafter
    return type(drafter.model).__name__


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    folder, names = Path(job["folder"]), job["names"]
    target = write_random_target(folder / "target")
    results = {}
    for name in names:
        try:
            if name.startswith("latent"):
                latent = write_latent_target(folder / "latent_target")
                kind = {"latent_none": "none", "latent": "mla"}[name]
                results[name] = serve(latent, latent_config(kind, folder), **LATENT_ENGINE)
                continue
            results[name] = serve(target, speculative_config(name, folder))
        except Exception as error:  # noqa: BLE001 - the next family must have its turn
            results[name] = {
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc(),
            }
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
