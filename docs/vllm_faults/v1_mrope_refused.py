"""V1 refuses M-RoPE in drafts that make all tokens in one pass, though it drafts from text alone."""

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
