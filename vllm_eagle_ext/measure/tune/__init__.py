# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle tune`: which K pays at which load, and the config that serves it."""
