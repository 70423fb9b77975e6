# SPDX-License-Identifier: Apache-2.0
"""What a target and a draft take of memory, without vLLM or torch."""
