"""A worker extension whose drafts are known texts, right for as many tokens as a test wants:
an oracle's where all of them are right, an adversary's where none is.

Rows of a verify step are uniform (K drafts for each request), so that stock vLLM can run beside: its
CPU kernels crash or misplace history when a request has fewer (0.32).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.recorder import Recorder

_SEEN = 6  # tokens that tell a text from the others


class OracleDrafts(Recorder):
    """Mixed into vLLM's worker by `worker_extension_cls`; reached through `collective_rpc`."""

    def set_oracle(self, texts: list[list[int]], right: str, k: int, vocab: int) -> None:
        """texts: prompt and continuation. right: "always", "never", "random" (a prefix), or "ragged"
        (a right prefix, and from no draft at all to K of them; V1 alone)."""
        self.texts = {tuple(text[:_SEEN]): text for text in texts}
        self.accepted: dict[str, list[int]] = {}
        runner = self.model_runner
        draft = drafter_of(right, k, vocab)
        if hasattr(runner, "speculator"):
            self._set_v2(runner, draft)
        elif hasattr(runner.drafter, "model"):
            self._set_drafter(runner, draft)
        else:
            self._set_v1(runner, draft)

    def take_steps(self) -> list[list[tuple[int, bool]]]:
        """On V2: per step, each request's rows and whether they are of a prompt."""
        return getattr(self, "steps", [])

    def state_blocks(self) -> dict[str, Any]:
        """Blocks of the recurrent groups per request that are held now, and the sizes of the cache."""
        return state_blocks(self.model_runner)

    def _set_v1(self, runner: Any, draft: Callable[[Sequence[int], int], list[int]]) -> None:
        def propose(k: int, sampled: Any, lengths: Any, tokens: Any, **_: Any) -> list[list[int]]:
            del k
            return [
                draft(self.texts.get(tuple(tokens[i, :_SEEN].tolist()), ()), int(lengths[i]))
                if row
                else []
                for i, row in enumerate(sampled)
            ]

        runner.drafter.propose = propose

    def _set_drafter(self, runner: Any, draft: Callable[[Sequence[int], int], list[int]]) -> None:
        """A draft model runs as ever; what it proposes is replaced."""
        if not hasattr(self, "own_propose"):
            self.own_propose = runner.propose_draft_token_ids
        emitted: dict[str, int] = {}

        def propose(scheduled: Any, sampled: Any, *args: Any, **kwargs: Any) -> Any:
            drafts = self.own_propose(scheduled, sampled, *args, **kwargs)
            for i, request in enumerate(runner.input_batch.req_ids):
                # Inside a prompt V1 samples, too, and discards the token later.
                taken = 0 if runner.discard_request_mask.np[i] else int((sampled[i] >= 0).sum())
                emitted[request] = emitted.get(request, 0) + taken
                prompt = runner.requests[request].prompt_token_ids
                text = self.texts.get(tuple(prompt[:_SEEN]), ())
                drafts[i] = drafts.new_tensor(draft(text, len(prompt) + emitted[request]))
            return drafts

        runner.propose_draft_token_ids = propose

    def _set_v2(self, runner: Any, draft: Callable[[Sequence[int], int], list[int]]) -> None:
        states = runner.req_states
        self.steps: list[list[tuple[int, bool]]] = []

        if hasattr(runner.speculator, "model") and not hasattr(self, "own_propose"):
            self.own_propose = runner.speculator.propose
        # Without a model: vLLM's own kernel for such drafts does not run under Triton's interpreter.
        own = getattr(self, "own_propose", None)

        def propose(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            if own is None:
                drafts = states.draft_tokens[input_batch.idx_mapping].clone()
            else:
                drafts = own(input_batch, *args, **kwargs).clone()
            if kwargs.get("dummy_run"):
                return drafts
            rows, of_prompts = input_batch.num_scheduled_tokens, input_batch.is_prefilling_np
            self.steps.append(list(zip(rows.tolist(), of_prompts.tolist(), strict=False)))
            num_sampled = args[4]
            for i, place in enumerate(input_batch.idx_mapping.tolist()):
                tokens = states.all_token_ids.gpu[place]
                length = int(states.total_len.gpu[place])
                text = self.texts.get(tuple(tokens[:_SEEN].tolist()), ())
                if int(num_sampled[i]):
                    drafts[i] = drafts.new_tensor(draft(text, length))
            return drafts

        runner.speculator.propose = propose


def drafter_of(right: str, k: int, vocab: int) -> Callable[[Sequence[int], int], list[int]]:
    """A function of a text and the tokens of it that are there -> draft tokens."""

    def draft(text: Sequence[int], length: int) -> list[int]:
        chance = random.Random(hash((len(text), sum(text), length)))
        good = {"always": k, "never": 0}.get(right, chance.randint(0, k))
        count = chance.choice([0, 0, k, chance.randint(1, k)]) if right == "ragged" else k
        known = list(text[length : length + k])
        known += [1] * (k - len(known))
        drafts = [token if i < good else (token + 1) % vocab for i, token in enumerate(known)]
        return drafts[:count]

    return draft


def state_blocks(runner: Any) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
    from vllm.v1.kv_cache_interface import MambaSpec

    config = runner.kv_cache_config
    sizes: dict[str, Any] = {"blocks": config.num_blocks, "groups": []}
    sizes["requests_fit"] = get_max_concurrency_for_kv_cache_config(runner.vllm_config, config)
    for group in runner.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        if isinstance(spec, MambaSpec):
            sizes["groups"].append(
                {
                    "layers": len(group.layer_names),
                    "block_bytes": spec.page_size_bytes,
                    "blocks_per_request": 1 + spec.num_speculative_blocks,
                    "shapes": [list(shape) for shape in spec.shapes],
                    "dtypes": [str(dtype) for dtype in spec.dtypes],
                }
            )
    return sizes
