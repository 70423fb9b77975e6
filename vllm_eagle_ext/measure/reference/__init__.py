# SPDX-License-Identifier: Apache-2.0
"""The mathematics, unfused, in plain torch and fp32: what engines and modules are compared with."""
