# SPDX-License-Identifier: Apache-2.0
"""The plain PyTorch reference, in fp32: the mathematics that engines and modules are compared with."""
