# SPDX-License-Identifier: Apache-2.0
"""Drafter classes, one folder per family; imported by vLLM when a draft of the family is served."""
