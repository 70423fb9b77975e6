# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle bench`: no draft, stock vLLM and this package, measured in turns."""
