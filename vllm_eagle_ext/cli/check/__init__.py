# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle check` says what a draft is and whether it will be served rightly; no vLLM starts."""
