"""A lone prompt of one token ends an engine without a draft.

Kind: explains an observation.
Met by: hybrid targets on a CPU, without a draft: the plain runs of `bench` and `verify`.
Symptom: `causal_conv1d_fwd_cpu: expect x to be transposed`, and the engine ends.
Cause: In the compiled kernel that is called by `model_executor/layers/mamba/ops/cpu/gdn_attention.py`,
  `_causal_conv1d_fwd_cpu`; not traced further.
Releases: 0.32 (run); 0.33 not known.
No script: it needs an engine.
Workaround: None, since it has nothing to do with drafts.
Remedy: a draft, with either scheme, or a longer prompt.
Can go when: The prompt is answered.
"""
