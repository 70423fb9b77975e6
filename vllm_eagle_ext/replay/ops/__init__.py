# SPDX-License-Identifier: Apache-2.0
"""The operation in three steps: `verify` reads committed states and records its rows, `plan` says what
is committed, `ApplyPlan` writes it. One interface, `types.Recurrence`, and three implementations:
`reference` (plain PyTorch), `cpu` (vLLM's C++ operators), `triton`.
"""
