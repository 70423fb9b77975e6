# SPDX-License-Identifier: Apache-2.0
"""What the model classes of `families/` share: strict weights, modules of the draft's own, gates.

vLLM imports a class when a draft of the family is served; loops, attention and sampling are its own.
"""
