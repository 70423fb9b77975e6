"""V2 asks for aux states that a draft does not read.

Kind: refused beforehand.
Met by: EAGLE-3 drafts with `use_aux_hidden_state: false`, on the V2 runner.
Symptom: The draft fails or drafts at random. It gets concatenated aux states instead of the target's
  last state.
Cause: `v1/worker/gpu/model_runner.py`, `GPUModelRunner.__init__` sets `use_aux_hidden_state_outputs`
  for every EAGLE-3 draft.
Releases: 0.32 (by reading); fixed in 0.33 (by reading: `requires_aux_hidden_states`).
No script: it needs an engine on the V2 runner.
Workaround: Refused on 0.32's V2 runner, which is the V1 runner's work (`runner_serves_it`).
Remedy: `VLLM_USE_V2_MODEL_RUNNER=0`.
Can go when: 0.32 is no longer supported.
"""
