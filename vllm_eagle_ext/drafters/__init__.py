# SPDX-License-Identifier: Apache-2.0
"""Drafter classes and what is written into their configs, one folder per family group.

vLLM imports a class when a draft of the family is served; loops, attention and sampling are its own.
"""
