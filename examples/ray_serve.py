"""Serves the tiny pair with Ray Serve, on a CPU: `python -m examples.ray_serve [llm|plain]`.

`llm` is Ray's OpenAI server, `plain` a deployment of one's own around vLLM's AsyncLLM. Install the extra
`ray` first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray
from ray import serve

TINY = Path(__file__).resolve().parent / "tiny"
ENGINE = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "speculative_config": {
        "method": "eagle3",
        "model": str(TINY / "postnorm"),
        "num_speculative_tokens": 4,
    },
    "per_request_spec_decode_metrics": "summary",  # acceptance in each answer
}

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB; leave it out for GPUs


def llm() -> serve.Application:
    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": "tiny", "model_source": str(TINY / "target")},
        accelerator_config={"kind": "cpu"},  # leave it out for GPUs
        deployment_config={"num_replicas": 1},
        runtime_env={"env_vars": CPU},
        engine_kwargs=ENGINE,
    )
    return build_openai_app({"llm_configs": [config]})


# For a GPU add "num_gpus": 1 to its options.
@serve.deployment(
    ray_actor_options={"num_cpus": 2, "runtime_env": {"env_vars": CPU}}, health_check_timeout_s=120
)
class Plain:
    def __init__(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(TINY / "target"), **ENGINE))

    async def __call__(self, request: Any) -> dict[str, Any]:
        from uuid import uuid4

        from vllm import SamplingParams

        asked = await request.json()
        sampling = SamplingParams(temperature=0, max_tokens=asked["max_tokens"])
        async for output in self.engine.generate(asked["prompt"], sampling, uuid4().hex):
            (last,) = output.outputs
        return {"text": last.text, "acceptance": last.spec_decode_metrics.to_dict()}

    async def check_health(self) -> None:
        await self.engine.check_health()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=["llm", "plain"], default="llm")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    # On a cluster: ray.init() only. Ray's CPUs are logical: two cores do.
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=128 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": asked.port})
    serve.run(llm() if asked.kind == "llm" else Plain.bind(), blocking=True)


if __name__ == "__main__":
    main()
