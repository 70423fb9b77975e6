"""Quantisation lists must name modules as vLLM does.

Kind: worked around.
Met by: quantised drafts that leave some layers plain.
Symptom: Plain layers are built quantised, with uninitialised weights.
Cause: A draft's layers are numbered after the target's (`model_executor/models/llama_eagle3.py`,
  `LlamaModel.__init__`, `layers.N`), which the list of a published draft cannot know;
  `model_executor/models/qwen3_eagle3.py`, `Qwen3Eagle3DecoderLayer.__init__` names `qkv_proj` without
  `self_attn` besides. q, k and v are one module there, as gate and up are, and
  `model_executor/models/utils.py`, `get_draft_quant_config` hands no table of such modules to the
  draft's config.
Releases: 0.32 and 0.33 (by reading).
No script: it takes a quantised checkpoint of each kind; `pytest
  tests/unit/families/test_quantised_names.py` loads such drafts.
Workaround: `draft/quantisation.py`, `named_for_vllm` adds the names that vLLM gives the modules
  which are plain in the files.
Can go when: VLLM maps the list's names to its own, as it does for DFlash.
"""
