"""norm_before_fc is not read by the DeepSeek drafter.

Kind: refused beforehand.
Met by: MLA drafts with norm_before_fc.
Symptom: The norm's weight is unknown; without it, the draft runs without its norm.
Cause: `model_executor/models/deepseek_eagle3.py`, `DeepseekV2Eagle3Model.__init__` has no such norm.
Releases: 0.32 and 0.33 (by reading).
No script: a search of the file for the key finds nothing.
Workaround: Refused (`mla_has_no_norm_before_fc`).
Can go when: The class has the norm.
"""
