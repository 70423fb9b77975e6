"""A text draft's image token is looked for.

Kind: refused beforehand.
Met by: targets with images that V1 does not know by name.
Symptom: After loading it ends with `object has no attribute 'image_token_index'`.
Cause: `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer.load_model` asks for the token of
  every multimodal target, also where it has just said that the draft reads only text;
  `image_token_id`, transformers' name of it, is known of some classes only.
Releases: 0.32 and 0.33 (run).
Workaround: Refused before weights are loaded, with the classes that V1 knows and, where the config
  states an `image_token_id`, the `--hf-overrides` that names it `image_token_index`
  (`start/rules/target.py`).
Remedy: set `image_token_index` to `image_token_id` by `--hf-overrides`.
Can go when: `load_model` asks only for drafts that read images, or reads `image_token_id`, or the V1
  runner goes.
"""

from types import SimpleNamespace

from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer


class LlavaOnevisionForConditionalGeneration:
    """Stands for a target whose config has `image_token_id`, as transformers names it today."""

    supports_multimodal = True
    config = SimpleNamespace(image_token_id=3)

    def get_language_model(self) -> None:
        raise StopIteration  # after the place


proposer = SimpleNamespace(
    vllm_config=SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={})),
    _get_model=lambda: SimpleNamespace(config=SimpleNamespace()),
    get_model_name=lambda model: type(model).__name__,
    supports_mm_inputs=False,  # of the draft
)
try:
    SpecDecodeBaseProposer.load_model(proposer, LlavaOnevisionForConditionalGeneration())
except AttributeError as error:
    print(f"fault present: {error}")
except StopIteration:
    print("fault gone: the target is taken")
    raise SystemExit(1) from None
