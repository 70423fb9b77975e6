# SPDX-License-Identifier: Apache-2.0
"""Checks replay's kernels on the machine at hand, longer than a worker's start can, and times them."""
