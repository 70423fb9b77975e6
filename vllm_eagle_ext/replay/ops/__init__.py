# SPDX-License-Identifier: Apache-2.0
"""The operation: `verify` reads checkpoint states and records its rows, `commit` applies the accepted
ones. One signature, three implementations: `reference`, `cpu` (vLLM's C++ ops), `triton`.
"""
