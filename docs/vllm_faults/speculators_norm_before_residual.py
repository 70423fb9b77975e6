"""`norm_before_residual` is false in speculators where a config leaves it out, and true in vLLM."""

from vllm.transformers_utils.configs.speculators.algos import update_eagle3

config = {"model_type": "llama"}
update_eagle3({"draft_vocab_size": 8}, config)
if config["norm_before_residual"]:
    print("fault present: norm_before_residual is taken for true where it is missing")
else:
    print("fault gone: norm_before_residual is taken for false where it is missing")
    raise SystemExit(1)
