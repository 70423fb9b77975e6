"""A prompt of three tokens ends the worker.

Kind: explains an observation.
Met by: CPUs with AMX.
Symptom: As a first prompt it ends in an illegal instruction.
Cause: In the compiled kernel that is called by `_custom_ops.py`, `cpu_attention_with_kv_cache`; not
  traced further.
Releases: 0.32 (seen on an Intel Xeon with AMX); 0.33 not known.
No script: it needs an engine on such a CPU, as the first request of `vllm serve MODEL` with a prompt of
  three tokens.
Workaround: None, since it has nothing to do with drafts.
Remedy: begin with a longer prompt.
Can go when: The first prompt of three tokens is answered.
"""
