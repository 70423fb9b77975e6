# SPDX-License-Identifier: Apache-2.0
"""Chooses K for each step by measured step times and acceptance: `draft_length: "auto"`.

Everything but `scheduler` is plain Python.
"""
