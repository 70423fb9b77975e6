# SPDX-License-Identifier: Apache-2.0
"""Runs the preflight of a start that is only asked about, which needs neither vLLM nor torch."""
