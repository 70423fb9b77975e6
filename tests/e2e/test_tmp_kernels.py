import pytest
from tests.e2e.test_hybrid_v2 import *
from tests.e2e.test_hybrid_v2 import started, accepted, largest_difference
from tests.support.hybrid import HybridRun, ngram


def test_it(prompts):
    lengths = (1 + K, 24, CHUNK + 12, CHUNK + 16)
    chunked = {
        "prompts": [prompts[i][:n] for i, n in enumerate(lengths)],
        "max_tokens": 24,
        "logprobs": 5,
    }
    plain = started([HybridRun("p", **chunked)], "v1")
    few = chunked | {
        "speculative": ngram(K),
        "follow": plain["p"]["texts"],
        "engine_args": {"long_prefill_token_threshold": CHUNK},
    }
    v2 = started([HybridRun(f"{k} kernels", state="replay", kernels=k, **few) for k in KERNELS], "v2")
    test_chunked_kernels_accept_and_say_what_sequential_ones_do(v2)
