"""What the rules of DFlash2 and DSpark say of vLLM's classes for them."""

from __future__ import annotations

from tests.contract.name import Name

_MODELS = "vllm.model_executor.models"
_DSPARK = f"{_MODELS}.qwen3_dspark"
_DFLASH2 = f"{_MODELS}.qwen3_dflash2"

SECOND_HEADS = (
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig.__post_init__",
        "which DSpark drafts are those of Qwen3, and which a part of the target",
        contains=("'DSparkDraftModel'", "hf_config.model_type == 'qwen3'", "'Qwen3DSparkModel'"),
    ),
    Name(
        _DSPARK,
        "Qwen3DSparkModel.__init__",
        "sizes of the heads, which the preflight writes at top level",
        contains=("config.markov_rank", "'enable_confidence_head'", "'confidence_head_with_markov'"),
    ),
    Name(
        _DSPARK,
        "Qwen3DSparkForCausalLM.load_weights",
        "names without a prefix; a confidence head may be missing; wider embeddings",
        contains=("'model.' + name", "uses_expanded_input_vocab", "self.model.confidence_head = None"),
    ),
    Name(
        _DSPARK,
        "Qwen3DSparkForCausalLM.map_draft_to_target",
        "d2t holds offsets",
        contains=("draft_ids + self.draft_id_to_target_id[draft_ids]",),
    ),
    Name(
        "vllm.v1.worker.gpu.spec_decode.dspark.speculator",
        "DSparkSpeculator.__init__",
        "whether the first position of a block is drafted",
        contains=("'sample_from_anchor', True", "self.num_speculative_steps"),
    ),
    Name(
        _DFLASH2,
        "DFlash2Qwen3DecoderLayer.__init__",
        "sizes of the convolution, which the preflight writes into dflash_config",
        contains=("config.dflash_config", "'conv_kernel_size'", "'conv_group_size'"),
    ),
    Name(
        _DFLASH2,
        "DFlash2Qwen3Model.__init__",
        "sizes of the selector, and the factor of the embeddings",
        contains=("'selector_rank'", "'selector_top_k'", "'input_embedding_scale', 1.0"),
    ),
    Name(
        _DFLASH2,
        "DFlash2Qwen3ForCausalLM.compute_candidates",
        "candidates are taken for target ids",
        contains=("get_top_k_tokens",),
    ),
)
