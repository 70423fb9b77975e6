# SPDX-License-Identifier: Apache-2.0
"""What a step's layers and its commit need to know, built once a step and KV-cache group.

vLLM's builder classifies the rows. Its metadata is then cut in two: the verify rows become a `Step`, and
what stays describes prompts and plain decodes alone, as if no row were speculative.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder
from vllm.v1.attention.backends.recoverssm_metadata import (
    RecoverSSMMetadata,
    RecoverSSMPostprocessMetadata,
)
from vllm.v1.kv_cache_interface import MambaSpec

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.replay.group_commit import GroupCommit
from vllm_eagle_ext.replay.ops.types import Align, Batch
from vllm_eagle_ext.replay.platform_ops import replay_ops
from vllm_eagle_ext.replay.protocol import Step
from vllm_eagle_ext.replay.start_line import log_start_line


@dataclass
class ReplayMetadata(GDNAttentionMetadata, RecoverSSMMetadata):
    step: Step | None = None
    group_commit: GroupCommit | None = None  # there wherever `step` is

    def commit_recoverssm_state(
        self, num_accepted_tokens: torch.Tensor
    ) -> RecoverSSMPostprocessMetadata | None:
        """vLLM's V2 hook, called after sampling.

        Args:
            num_accepted_tokens: [requests] int32, as vLLM names it: the tokens sampled.
        """
        step, num_sampled = self.step, num_accepted_tokens
        if step is None or self.group_commit is None:
            return None
        self.group_commit(step, num_sampled)
        if step.align is None:
            return None
        # Padded by a full graph, where what was sampled is not.
        computed = step.align.num_computed[: len(num_sampled)]
        return RecoverSSMPostprocessMetadata(
            num_spec_decodes=step.num_requests,
            request_indices=step.rows_of,
            block_table=step.align.block_tables[0],
            # vLLM counts what was sampled; of the commit's rows there is at least one.
            num_computed_tokens=computed + (num_sampled == 0).int(),
            block_size=step.align.block_size,
        )


class ReplayMetadataBuilder(GDNAttentionMetadataBuilder):
    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # The parent stages 1 + K state blocks per request for its graphs; here there is one and scratch.
        self.spec_state_indices_tensor: torch.Tensor = self.spec_state_indices_tensor.new_empty(
            (self.decode_cudagraph_max_bs, 1 + kv_cache_spec.num_speculative_blocks)
        )
        self.ones = torch.ones(
            max(self.decode_cudagraph_max_bs, vllm_config.scheduler_config.max_num_seqs),
            dtype=torch.int32,
            device=device,
        )
        self.ops = replay_ops()
        self.group_commit = GroupCommit(layer_names, vllm_config)
        self.pending: Step | None = None  # until `commit_on_v1` takes it
        _require_runner(kv_cache_spec, vllm_config)
        log_start_line(vllm_config)

    def build(self, *args: Any, **kwargs: Any) -> GDNAttentionMetadata:
        metadata = super().build(*args, **kwargs)
        self.pending = None
        if metadata.spec_sequence_masks is None:
            return metadata
        common = kwargs.get("common_attn_metadata", args[1] if len(args) > 1 else None)
        self.pending = self._verify_step(metadata, common)
        return _without_verify_rows(metadata, step=self.pending, group_commit=self.group_commit)

    def _verify_step(self, metadata: GDNAttentionMetadata, common: CommonAttentionMetadata) -> Step:
        blocks, starts = metadata.spec_state_indices_tensor, metadata.spec_query_start_loc
        assert blocks is not None
        assert starts is not None
        assert metadata.non_spec_token_indx is not None
        is_mixed, rows_of = metadata.num_prefills > 0, None
        if is_mixed:
            assert metadata.spec_sequence_masks_cpu is not None
            rows_of = metadata.spec_sequence_masks_cpu.nonzero().flatten().to(torch.int32)
            rows_of = async_tensor_h2d(rows_of, device=starts.device)
        align = None
        if self.kv_cache_spec.mamba_cache_mode == "align":
            align = Align.of(
                [common.block_table_tensor],
                common.compute_num_computed_tokens(),
                self.kv_cache_spec.block_size,
            )
        scratch = blocks[:, 1] if blocks.shape[1] > 1 else None
        batch = Batch(blocks[:, 0], starts, scratch)
        return Step(
            batch=self.ops.prepare(batch, self.num_spec + 1),
            num_rows=metadata.num_spec_decode_tokens if is_mixed else metadata.num_actual_tokens,
            num_requests=metadata.num_spec_decodes,
            rows=metadata.spec_token_indx if is_mixed else None,
            other_rows=metadata.non_spec_token_indx,
            rows_of=rows_of,
            align=align,
            ones=self.ones[: len(blocks)],
        )


def _without_verify_rows(
    metadata: GDNAttentionMetadata, step: Step, group_commit: GroupCommit
) -> ReplayMetadata:
    cut = replace(
        metadata,
        num_spec_decodes=0,
        num_spec_decode_tokens=0,
        num_actual_tokens=metadata.num_prefill_tokens + metadata.num_decode_tokens,
        spec_query_start_loc=None,
        spec_state_indices_tensor=None,
        spec_sequence_masks=None,
        spec_sequence_masks_cpu=None,
        spec_token_indx=None,
        non_spec_token_indx=None,
        num_accepted_tokens=None,
    )
    return ReplayMetadata(
        **{field.name: getattr(cut, field.name) for field in fields(cut)},
        step=step,
        group_commit=group_commit,
    )


def _require_runner(kv_cache_spec: MambaSpec, vllm_config: VllmConfig) -> None:
    """The preflight foresees the runner; vLLM may choose otherwise for a reason of its own.

    Raises:
        HybridStateError: prefix caching on the V1 runner, whose states at block boundaries no commit
            would write.
    """
    if kv_cache_spec.mamba_cache_mode == "align" and not vllm_config.use_v2_model_runner:
        raise HybridStateError(
            field="enable_prefix_caching",
            value=True,
            allowed="false, with states kept by replay on vLLM's V1 runner",
            remedy='--no-enable-prefix-caching, or {"eagle_ext": {"hybrid_state": "per_token"}}',
        )
