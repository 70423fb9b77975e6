"""The norms of a P-EAGLE draft in the speculators format are dropped while its config is read."""

from vllm.transformers_utils.configs.speculators.algos import update_peagle

config = {"model_type": "llama"}
update_peagle({"mask_token_id": 0, "fc_norm": True, "norm_output": True}, config)
dropped = [name for name in ("fc_norm", "norm_output") if name not in config]
if dropped:
    print(f"fault present: {' and '.join(dropped)} are not handed on")
else:
    print("fault gone: fc_norm and norm_output are handed on")
    raise SystemExit(1)
