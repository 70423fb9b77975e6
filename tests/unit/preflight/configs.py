"""What the preflight makes of a draft, on vLLM's own EngineArgs."""

from __future__ import annotations

DRAFTER = "Eagle3EagleExtLlamaForCausalLM"


def speculative_config(target, draft, *, options=None, arguments=None, **keys):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    given = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4, **keys}
    engine_args = EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        speculative_config={k: v for k, v in given.items() if v is not None} or None,
        **{"additional_config": {"eagle_ext": options} if options is not None else {}}
        | (arguments or {}),
    )
    return engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())
