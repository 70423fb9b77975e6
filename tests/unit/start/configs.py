"""What the preflight makes of a draft, on vLLM's own EngineArgs."""

from __future__ import annotations

DRAFTER = "Eagle3EagleExtLlamaForCausalLM"


def engine_args(target, draft, *, options=None, arguments=None, **keys):
    from vllm.engine.arg_utils import EngineArgs

    given = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4, **keys}
    return EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        speculative_config={k: v for k, v in given.items() if v is not None} or None,
        **{"additional_config": {"eagle_ext": options} if options is not None else {}}
        | (arguments or {}),
    )


def speculative_config(target, draft, **asked):
    """Of a whole start, which the engine's rules judge."""
    return engine_args(target, draft, **asked).create_engine_config().speculative_config


def before_the_engine(target, draft, **asked):
    """What a start makes of the draft, also on a runner that a CPU lacks. The engine is not judged."""
    from vllm.config import ParallelConfig

    given = engine_args(target, draft, **asked)
    return given.create_speculative_config(given.create_model_config(), ParallelConfig())
