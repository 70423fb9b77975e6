# SPDX-License-Identifier: Apache-2.0
"""From `speculative_config` and a draft checkpoint to what vLLM's runners read.

The preflight runs in the front end, between the command line and vLLM's SpeculativeConfig; its result
travels to every worker with the engine's config. It refuses before any weight is loaded.

A start enters at `build`, which carries one `Launch` through its steps: read, inspect, build, apply.
`vllm-eagle check` enters at `offline.run` and applies the same rules without vLLM or torch.
"""
