# SPDX-License-Identifier: Apache-2.0
"""What a step's layers and its commit need to know, built once a step for all KV-cache groups.

vLLM's builder classifies the rows. Its metadata is then cut in two: the verify rows become a `Step`, and
what stays describes only prompts and plain decodes, as if no row were speculative.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.replay.built_caches import log_start_line
from vllm_eagle_ext.replay.cache_groups import CacheGroups, GroupsCommit
from vllm_eagle_ext.replay.on_platform import replay_ops
from vllm_eagle_ext.replay.ops.types import Batch, BlockPlaces, Step


@dataclass
class ReplayMetadata(GDNAttentionMetadata, RecoverSSMMetadata):
    step: Step | None = None
    groups: CacheGroups | None = None  # there wherever `step` is
    groups_commit: GroupsCommit | None = None  # of the step: the metadata of group 0 has it
    seq_lens: torch.Tensor | None = None  # V2 on a CPU (tests), nothing verified

    def commit_recoverssm_state(
        self, num_accepted_tokens: torch.Tensor
    ) -> RecoverSSMPostprocessMetadata | None:
        """Commit a step. This is vLLM's V2 hook, called after sampling on the metadata of each group.

        Args:
            num_accepted_tokens: [requests] int32, as vLLM names it: the tokens sampled.
        """
        step, num_sampled = self.step, num_accepted_tokens
        if step is None or self.groups is None or self.groups_commit is None:
            return None
        self.groups_commit(step, num_sampled)
        align = self.groups.align(step)
        if align is None:
            return None
        # Padded by a full graph, where what was sampled is not.
        computed = align.num_computed[: len(num_sampled)]
        return RecoverSSMPostprocessMetadata(
            num_spec_decodes=step.num_requests,
            request_indices=step.places.indices,
            block_table=align.tables.tensors[0],
            # vLLM adds num_sampled to this; where it is 0, one row was committed all the same.
            num_computed_tokens=computed + (num_sampled == 0).int(),
            block_size=align.block_size,
        )


class ReplayMetadataBuilder(GDNAttentionMetadataBuilder):
    """Differences from the parent: verify rows become a `Step`, and each group gets a copy with its own
    `batch`. The parent leaves subclasses out of what vLLM shares among groups; this one takes part."""

    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # The parent says no on V1, which captures graphs group by group; here V1 runs on CPUs only.
        self.supports_update_block_table = True
        if device.type == "cuda":
            self.mamba_aligned_state_indices: torch.Tensor | None = None  # V2 asks if it exists
        # The parent stages 1 + K state blocks per request for its graphs; here there is one and scratch.
        self.spec_state_indices_tensor: torch.Tensor = self.spec_state_indices_tensor.new_empty(
            (self.decode_cudagraph_max_bs, 1 + kv_cache_spec.num_speculative_blocks)
        )
        most = max(self.decode_cudagraph_max_bs, vllm_config.scheduler_config.max_num_seqs)
        self.ones = torch.ones(most, dtype=torch.int32, device=device)
        self.ops = replay_ops()
        self.decodes_in_place = self._decodes_in_place()
        self.pending: Step | None = None  # until `commit_on_v1` takes it
        self.group_numbers: dict[CacheGroups, int] = {}  # what `join` returned for this builder's group
        self.led_groups: CacheGroups | None = None  # where vLLM builds this group before the others
        self.groups_commit: GroupsCommit | None = None  # of the led groups
        # `hybrid_state` was chosen for the runner that vLLM was expected to take. On V1 no commit would
        # write the states at block boundaries.
        if kv_cache_spec.mamba_cache_mode == "align" and not vllm_config.use_v2_model_runner:
            raise HybridStateError(
                field="enable_prefix_caching", value=True,
                allowed="false, with states kept by replay on vLLM's V1 runner",
                remedy='--no-enable-prefix-caching, or {"eagle_ext": {"hybrid_state": "per_token"}}',
            )  # fmt: skip
        if self._recurrent_layers()[0] in layer_names:  # one of the groups speaks for all
            log_start_line(vllm_config)

    @classmethod
    def get_varlen_cudagraph_max_query_len(
        cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec
    ) -> int | None:
        """Return all 1 + K rows: a launch depends only on the number of requests and T, whatever rows a
        batch had that was captured; kernels read each request's rows from the device."""
        return 1 + vllm_config.num_speculative_tokens

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: torch.Tensor | None = None,
        num_decode_draft_tokens_cpu: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> GDNAttentionMetadata:
        self.pending, common = None, common_attn_metadata
        drafts = num_decode_draft_tokens_cpu
        if drafts is not None and self.decodes_in_place and not bool((drafts > 0).any()):
            drafts = None
        metadata = super().build(
            common_prefix_len,
            common,
            num_accepted_tokens,
            num_decode_draft_tokens_cpu=drafts,
            **kwargs,
        )
        if metadata.spec_sequence_masks is None:
            # Aligned state blocks V2 gathers ahead, for all groups, only on CUDA.
            is_ahead = hasattr(self, "mamba_aligned_state_indices")
            if is_ahead or self.kv_cache_spec.mamba_cache_mode != "align":
                return metadata
            return _copied(metadata, **NO_STEP | {"seq_lens": common.seq_lens})
        groups = self.led_groups or self._lead_groups()
        step = self._verify_step(metadata, common)
        self.pending = step = groups.step_for_first_group(common.block_table_tensor, step)
        return _without_verify_rows(metadata, step, groups, self.groups_commit)

    def update_block_table(
        self, metadata: GDNAttentionMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> GDNAttentionMetadata:
        """Return the metadata of this builder's group in a step whose first group has `metadata`.

        Args:
            metadata: what another builder of this class made of the same batch.
            blk_table: [requests, blocks] int32.
            slot_mapping: of attention's tokens, which recurrent states have none of.
        """
        self.pending = None
        if not isinstance(metadata, ReplayMetadata) or metadata.step is None or metadata.groups is None:
            return self._without_step(metadata, blk_table, slot_mapping)
        groups, step = metadata.groups, metadata.step
        group = self.group_numbers.get(groups)
        if group is None:
            group = self.group_numbers[groups] = groups.join(self.layer_names)
        mine = _copied(metadata, groups_commit=None, step=groups.step_for_group(group, blk_table, step))
        if step.other_places is not None:
            blocks = groups.other_blocks(group, step)
            mine.non_spec_state_indices_tensor = mine.prefill_state_indices = blocks
            if metadata.checkpoint is not None:
                mine.checkpoint = metadata.checkpoint.regather_state_indices(blk_table)
        return mine

    def _without_step(
        self, metadata: GDNAttentionMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> GDNAttentionMetadata:
        """Return the parent's own metadata where no row is verified."""
        if not isinstance(metadata, ReplayMetadata) or metadata.seq_lens is None:
            return super().update_block_table(metadata, blk_table, slot_mapping)
        self.mamba_aligned_state_indices = mamba_get_block_table_tensor(
            blk_table, metadata.seq_lens, self.kv_cache_spec, self.kv_cache_spec.mamba_cache_mode
        )
        try:
            return super().update_block_table(metadata, blk_table, slot_mapping)
        finally:
            del self.mamba_aligned_state_indices

    def _lead_groups(self) -> CacheGroups:
        """Begin a set of groups with this builder's: vLLM builds it before those that share its step."""
        most_groups = len(self._recurrent_layers())
        self.led_groups = CacheGroups(most_groups, len(self.ones), self.ones.device, self.ops)
        self.group_numbers[self.led_groups] = self.led_groups.join(self.layer_names)
        self.groups_commit = GroupsCommit(self.led_groups, self.vllm_config)
        return self.led_groups

    def _decodes_in_place(self) -> bool:
        """Say whether a batch in which no request has a draft runs as plain decodes. vLLM verifies its
        rows for the offset of accepted ones, which a committed state has not. Only with a K of 0 in
        vLLM's schedule: else no graph holds the kernels, and the first such batch waits for them. With
        prefix caching only the commit moves states on at a block's end; and a graph that is captured
        for rows of any number is captured without drafts."""
        config = self.speculative_config
        schedule = getattr(config, "num_speculative_tokens_per_batch_size", None) or ()
        is_aligned = self.kv_cache_spec.mamba_cache_mode == "align"
        has_any_widths = bool(getattr(config, "enable_adaptive_verification", False))
        has_none = any(k == 0 for *_, k in schedule)
        return has_none and not is_aligned and not has_any_widths and self.ops.can_decode_in_place

    def _recurrent_layers(self) -> list[str]:
        """Return the names of all layers of this kind, in the model's order."""
        layers = self.vllm_config.compilation_config.static_forward_context
        kind = type(layers[self.layer_names[0]])
        return [name for name, layer in layers.items() if type(layer) is kind]

    def _verify_step(self, metadata: GDNAttentionMetadata, common: CommonAttentionMetadata) -> Step:
        """Return the step before its state blocks are gathered."""
        starts, masks = metadata.spec_query_start_loc, metadata.spec_sequence_masks_cpu
        assert starts is not None
        assert masks is not None
        assert metadata.non_spec_token_indx is not None
        # Where the verifying requests stand in vLLM's tables of blocks.
        is_mixed = metadata.num_prefills > 0  # next to verify rows vLLM counts decodes as prefills
        is_aligned = self.kv_cache_spec.mamba_cache_mode == "align"
        count, indices = metadata.num_spec_decodes, None
        places = BlockPlaces(
            count, None, common.seq_lens if is_aligned else None, self.kv_cache_spec.block_size
        )
        # In a mixed batch they are sorted to the front, before the others.
        other_places = None
        if is_mixed:
            order = torch.argsort(masks, stable=True, descending=True).to(torch.int32)
            indices = async_tensor_h2d(order, device=starts.device)
            other_places = places._replace(requests=len(order) - count, indices=indices[count:])
            places = places._replace(indices=indices[:count])
        return Step(
            batch=Batch(starts, starts),  # `step_for_first_group` puts in the state blocks
            num_rows=metadata.num_spec_decode_tokens if is_mixed else metadata.num_actual_tokens,
            num_requests=count,
            rows_per_request=self.num_spec + 1,
            rows=metadata.spec_token_indx if is_mixed else None,
            other_rows=metadata.non_spec_token_indx,
            places=places,
            other_places=other_places,
            num_computed=common.compute_num_computed_tokens() if is_aligned else None,
            ones=self.ones[: starts.shape[0] - 1],
            built={},
        )


NO_STEP = {name: None for name in ("step", "groups", "groups_commit", "seq_lens")}


def _copied(metadata: GDNAttentionMetadata, **changes: Any) -> ReplayMetadata:
    """Do what `dataclasses.replace` does, at a fraction of its time: a step makes one for each group."""
    made = ReplayMetadata.__new__(ReplayMetadata)
    made.__dict__.update(metadata.__dict__, **changes)
    return made


def _without_verify_rows(
    metadata: GDNAttentionMetadata, step: Step, groups: CacheGroups, groups_commit: GroupsCommit | None
) -> ReplayMetadata:
    return _copied(
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
        step=step,
        groups=groups,
        groups_commit=groups_commit,
        seq_lens=None,
    )
