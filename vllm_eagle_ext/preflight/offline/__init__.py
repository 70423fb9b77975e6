# SPDX-License-Identifier: Apache-2.0
"""The preflight of a start that is only asked about: neither vLLM nor torch is needed."""
