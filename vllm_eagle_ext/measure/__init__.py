# SPDX-License-Identifier: Apache-2.0
"""What measures a draft: engines, the plain PyTorch reference, `bench` and `verify`."""
