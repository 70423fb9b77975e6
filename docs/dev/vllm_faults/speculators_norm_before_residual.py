"""A missing norm_before_residual is taken for true.

Kind: worked around.
Met by: EAGLE-3 drafts in the speculators format.
Symptom: A draft without the key drafts badly.
Cause: `transformers_utils/configs/speculators/algos.py`, `update_eagle3` falls back to true;
  speculators itself has false.
Releases: 0.32 and 0.33 (run).
Workaround: `families/eagle3/config_writer.py`, `write` writes speculators' default, with a warning
  (`norm_before_residual_is_stated`).
Can go when: `update_eagle3` takes false, or speculators always writes the key.
"""

from vllm.transformers_utils.configs.speculators.algos import update_eagle3

config = {"model_type": "llama"}
update_eagle3({"draft_vocab_size": 8}, config)
if config["norm_before_residual"]:
    print("fault present: norm_before_residual is taken for true where it is missing")
else:
    print("fault gone: norm_before_residual is taken for false where it is missing")
    raise SystemExit(1)
