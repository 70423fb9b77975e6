"""An EAGLE-3 draft with the model type of some targets is taken for a multi-token-prediction head."""

from transformers import DeepseekV3Config
from vllm.config import SpeculativeConfig

draft = DeepseekV3Config(architectures=["Eagle3DeepseekV2ForCausalLM"])
read = SpeculativeConfig.hf_config_override(draft)
if read.architectures == ["Eagle3DeepseekV2ForCausalLM"]:
    print("fault gone: the architecture is kept")
    raise SystemExit(1)
print(f"fault present: Eagle3DeepseekV2ForCausalLM of type deepseek_v3 becomes {read.architectures}")
