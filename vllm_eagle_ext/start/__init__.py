# SPDX-License-Identifier: Apache-2.0
"""From `speculative_config` and a draft checkpoint to what vLLM's runners read.

A start enters at `build`, in the front end; its result travels to every worker with the engine's config.
`vllm-eagle check` enters at `check`, which reads files without vLLM or torch; `dry` then lets vLLM make
its config in a process of its own, through the same two steps as a start.
"""
