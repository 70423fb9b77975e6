# SPDX-License-Identifier: Apache-2.0
"""The operation in three steps: `verify` reads committed states and records its rows, `plan` says what
is committed, `Commit` writes it. One interface, `types.ReplayKernels`, and four implementations:
`reference` (plain PyTorch), `cpu` (vLLM's C++ operators), `triton` and `triton_chunked`.
"""
