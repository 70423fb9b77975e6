# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle check`: what a draft is and whether it will be served rightly, without starting vLLM."""
