"""A target with images, without a draft and with one: what it says of the same words and other images.

python -m tests.support.images_process JOB RESULT, where JOB names a folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.drafts import valid_draft, write
from tests.support.families_process import drafter_name
from tests.support.in_process import close
from tests.support.llava import picture, write_llava

WORDS = "w3 w14 <image> w15 w92"
TEXTS = (f"{WORDS} w6", f"{WORDS} w6", "w27 w18 w28")  # the last one without an image
MAX_TOKENS = 24


def serve(target: Path, speculative: dict[str, Any] | None) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(target),
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        gpu_memory_utilization=0.2,
        limit_mm_per_prompt={"image": 1},
        disable_log_stats=False,
        speculative_config=speculative,
    )
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    images = [{"multi_modal_data": {"image": picture(seed)}} for seed in (0, 1)] + [{}]
    prompts: Any = [{"prompt": text, **image} for text, image in zip(TEXTS, images, strict=True)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "prompt_lengths": [len(output.prompt_token_ids or ()) for output in outputs],
        "drafts": counters.get("vllm:spec_decode_num_drafts"),
        "drafter": llm.collective_rpc(drafter_name)[0] if speculative else None,
    }
    close(llm)
    return result


def main() -> None:
    folder = Path(json.loads(Path(sys.argv[1]).read_text())["folder"])
    target = write_llava(folder / "target")
    draft = valid_draft("native")
    path = write(draft, folder / "draft")
    speculative = {"method": draft.method, "model": str(path), "num_speculative_tokens": draft.k}
    results = {"plain": serve(target, None), "drafted": serve(target, speculative)}
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
