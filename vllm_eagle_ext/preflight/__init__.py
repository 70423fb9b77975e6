# SPDX-License-Identifier: Apache-2.0
"""The intake: from `speculative_config` and a draft checkpoint to what vLLM's runners read.

Runs in the front end, between the command line and vLLM's SpeculativeConfig; the result travels to
every worker with the engine's config. Our refusal comes before any weight is loaded.

`build` is where a start enters. What `vllm-eagle check` shares with it imports neither vLLM nor torch:
`capture`, `multimodal`, `parallel` and `untested`.
"""
