# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine in a process of its own, for the commands that measure one and for the tests."""
