# SPDX-License-Identifier: Apache-2.0
"""One record per drafter family, from which registration, checks, documents and tests derive.

`record.py` says what a record holds, `registry.py` looks records up, every other module holds the
families that share a folder of `drafters/`.
"""
