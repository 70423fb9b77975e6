# SPDX-License-Identifier: Apache-2.0
"""Computes what a target and a draft take of memory, without vLLM or torch.

`geometry` reads the shapes, `footprint` turns them into bytes, `state_blocks` counts blocks and chooses
between replay and vLLM's own scheme, and `plan` does all of it for a target that is not served yet.
"""
