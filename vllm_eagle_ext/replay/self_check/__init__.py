# SPDX-License-Identifier: Apache-2.0
"""Compares the kernels of replay with vLLM's own on this device, on made-up rows of the model's shapes.

`compared.run` compares, `at_start.resolve_kernels` decides for a worker what follows.
"""
