# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify`: whether a draft, as served here, is the draft that was published."""
