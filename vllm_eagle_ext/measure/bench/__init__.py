# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle bench`: engines in turns over the same prompts, and what follows from them."""
