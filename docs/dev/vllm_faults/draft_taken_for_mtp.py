"""A draft is taken for a multi-token-prediction head.

Kind: refused beforehand.
Met by: EAGLE-3 and DFlash drafts whose config carries the model type of some targets.
Symptom: A draft of type `deepseek_v3`, `qwen3_next` or `qwen3_5_text` ends with an unfitting
  architecture.
Cause: `config/speculative.py`, `SpeculativeConfig.hf_config_override` rewrites such configs into MTP
  heads before the method is looked at.
Releases: 0.32 and 0.33 (run).
Workaround: DeepSeek's types are refused with one that reads the same keys (`model_type_is_readable`).
Remedy: the model type that the refusal names.
Can go when: `hf_config_override` sees the method.
"""

from transformers import DeepseekV3Config
from vllm.config import SpeculativeConfig

draft = DeepseekV3Config(architectures=["Eagle3DeepseekV2ForCausalLM"])
read = SpeculativeConfig.hf_config_override(draft)
if read.architectures == ["Eagle3DeepseekV2ForCausalLM"]:
    print("fault gone: the architecture is kept")
    raise SystemExit(1)
print(f"fault present: Eagle3DeepseekV2ForCausalLM of type deepseek_v3 becomes {read.architectures}")
