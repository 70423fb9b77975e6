"""V1 looks for an image token of every multimodal target, also for a draft that reads text alone."""

from types import SimpleNamespace

from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer


class LlavaOnevisionForConditionalGeneration:
    """Stands for a target whose config has `image_token_id`, as transformers names it today."""

    supports_multimodal = True
    config = SimpleNamespace(image_token_id=3)

    def get_language_model(self) -> None:
        raise StopIteration  # behind the place


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
