# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle plan` says what speculation will cost a target in memory, before serving it."""
