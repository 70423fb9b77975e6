# SPDX-License-Identifier: Apache-2.0
"""The version of this package, read by `setup.py` too."""

__version__ = "0.1.0"
