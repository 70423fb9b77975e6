"""P-EAGLE norms are dropped.

Kind: worked around.
Met by: P-EAGLE drafts in the speculators format.
Symptom: A draft with `fc_norm` does not load; `norm_output` is ignored.
Cause: `transformers_utils/configs/speculators/algos.py`, `update_peagle` hands on only
  `norm_before_fc`, unlike `transformers_utils/configs/speculators/algos.py`, `update_eagle3`.
Releases: 0.32 and 0.33 (run).
Workaround: `families/eagle3/config_writer.py`, `write` writes both flags.
Can go when: `update_peagle` hands on the three flags.
"""

from vllm.transformers_utils.configs.speculators.algos import update_peagle

config = {"model_type": "llama"}
update_peagle({"mask_token_id": 0, "fc_norm": True, "norm_output": True}, config)
dropped = [name for name in ("fc_norm", "norm_output") if name not in config]
if dropped:
    print(f"fault present: {' and '.join(dropped)} are not handed on")
else:
    print("fault gone: fc_norm and norm_output are handed on")
    raise SystemExit(1)
