# SPDX-License-Identifier: Apache-2.0
"""Compares the kernels of replay with vLLM's own on this device, on made-up rows of the model's shapes.

`check.run` compares, `start.settle` decides for a worker what follows.
"""
