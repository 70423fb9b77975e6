# SPDX-License-Identifier: Apache-2.0
"""The intake: from `speculative_config` and a draft checkpoint to what vLLM's runners read.

Runs in the front end, between the command line and vLLM's SpeculativeConfig; the result travels to
every worker with the engine's config. Our refusal comes before any weight is loaded.
"""

from __future__ import annotations

from vllm_eagle_ext.intake.build import build_on_untested_vllm, build_speculative_config

__all__ = ["build_on_untested_vllm", "build_speculative_config"]
