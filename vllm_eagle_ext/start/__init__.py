# SPDX-License-Identifier: Apache-2.0
"""From `speculative_config` and a draft checkpoint to what vLLM's runners read.

The preflight runs in the front end, between the command line and vLLM's SpeculativeConfig; its result
travels to every worker with the engine's config. It refuses before any weight is loaded.

A start enters at `build`, which reads, inspects, builds and applies. `vllm-eagle check` enters at
`check`, which applies the rules of drafts without vLLM or torch; `dry` then lets vLLM make its config in
a process of its own, through the same two steps.
"""
