# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/draft_lengths.md: `draft_length: "auto"` beside no draft and beside each K."""
