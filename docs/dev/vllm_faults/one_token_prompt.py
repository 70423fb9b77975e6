"""A prompt of one token gets placeholder drafts.

Kind: worked around.
Met by: hybrid targets with any draft.
Symptom: A prompt of one token that joins running requests gets a wrong text.
Cause: `v1/core/sched/scheduler.py`, `Scheduler.schedule` pads it to 1 + K rows, though it has no state.
  V1 starts from the state that the block's last owner left; V2 takes the placeholders into the state.
Releases: 0.32 and 0.33 (run).
Also shown by: `tests/e2e/test_one_token_prompts.py`.
Workaround: `start/schedulers.py`, `build_scheduler`.
Remedy: a schedule of K.
Can go when: only requests with computed tokens are padded.
"""

import json
import tempfile

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, SamplingParams
from vllm.v1.structured_output import StructuredOutputManager

K, shape = 3, {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 100}
model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 64, **shape}
with tempfile.TemporaryDirectory() as folder, open(f"{folder}/config.json", "w") as file:
    json.dump(model, file)
    file.flush()
    drafts = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 2}
    args = EngineArgs(model=folder, skip_tokenizer_init=True, speculative_config=drafts)
    config = args.create_engine_config()
config.cache_config.num_gpu_blocks = 64
spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)
cache = KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], spec)])
structured = StructuredOutputManager(config)
scheduler = config.scheduler_config.get_scheduler_cls()(
    vllm_config=config, kv_cache_config=cache, structured_output_manager=structured, block_size=16
)
params = SamplingParams(max_tokens=32, ignore_eos=True)
scheduler.add_request(Request("running", [1] * 8, params, None))
scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput(["running"], {"running": 0}, [[1]]))
scheduler.add_request(Request("new", [1], params, None))
rows = scheduler.schedule().num_scheduled_tokens["new"]
if rows == 1 + K:
    print(f"fault present: a prompt of one token, none of it computed, has {rows} rows")
else:
    print(f"fault gone: it has {rows} row")
    raise SystemExit(1)
