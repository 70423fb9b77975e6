# SPDX-License-Identifier: Apache-2.0
"""Targets and drafts in the shapes of published ones, with random weights."""
