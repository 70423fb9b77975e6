# SPDX-License-Identifier: Apache-2.0
"""Drafts that are DFlash with a second head: DFlash2 and DSpark. vLLM's own classes serve them."""
