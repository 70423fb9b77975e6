"""M-RoPE is refused in text drafts.

Kind: worked around.
Met by: parallel drafts (P-EAGLE, DFlash) with mrope_section, on the V1 runner.
Symptom: A draft with `mrope_section` does not start: `does not support M-RoPE yet`.
Cause: `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer._raise_if_mrope` goes by the
  draft's config. V1 drafts from text, where all sections have the same position.
Releases: 0.32 and 0.33 (run).
Workaround: `start/apply.py`, `_drop_rope_sections` takes the sections out of such a draft's rope.
Can go when: V1's `_raise_if_mrope` goes, or the V1 runner goes.
"""

from types import SimpleNamespace

from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

draft = SimpleNamespace(draft_model_config=SimpleNamespace(uses_mrope=True))
try:
    SpecDecodeBaseProposer._raise_if_mrope(draft)
except NotImplementedError as error:
    print(f"fault present: {error}")
else:
    print("fault gone: M-RoPE is taken")
    raise SystemExit(1)
