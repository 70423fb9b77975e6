"""Two Ray nodes on one machine, one rank on each: the drafts and texts of one engine on one node.

    python -m tests.support.two_nodes

The nodes are two raylets on two loopback addresses: vLLM wants an address of its own for each node. What
is not shown is a network between them: vLLM's CPU workers exchange tensors through the machine's memory.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.engine import TINY, engine_environment
from tests.support.hybrid import HybridRun, run_all
from tests.support.ray_cluster import Node, RayCluster, ray_path

ADDRESSES = ("127.0.0.2", "127.0.0.3")


def serve_on_two_nodes(prompts: list[list[int]]) -> dict[str, Any]:
    """Results of `run_all`: "one" and "two"."""
    common = {
        "prompts": prompts,
        "max_tokens": 40,
        "record": True,
        "target": TINY / "target",
        "speculative": {
            "method": "eagle3",
            "model": str(TINY / "postnorm"),
            "num_speculative_tokens": 4,
        },
    }
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    runs = [
        HybridRun("one", engine_args={"dtype": "float32"}, **common),
        HybridRun("two", engine_args={"dtype": "float32"} | two, **common),
    ]
    environment = ray_path(engine_environment("v1")) | {"GLOO_SOCKET_IFNAME": "lo"}
    nodes = [Node(gpus=1, address=address) for address in ADDRESSES]
    with RayCluster(environment, nodes) as cluster:
        names = ("PYTHONPATH", "GLOO_SOCKET_IFNAME")
        results, log = run_all(
            runs, **{name: environment[name] for name in names}, **cluster.environment
        )
    if failed := [result["trace"] for result in results.values() if "error" in result]:
        raise RuntimeError(f"{failed[0]}\n{log[-4000:]}")
    return results


def main() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    lines = (TINY / "prompts.jsonl").read_text().splitlines()[:8]
    prompts = [tokenizer(json.loads(line)["text"])["input_ids"][:64] for line in lines]
    results = serve_on_two_nodes(prompts)
    one, two = results["one"], results["two"]
    for worker in two["workers"]:
        print(f"rank on {worker['host']}: {worker['drafter']}, pid {worker['pid']}")
    print(f"drafts equal: {one['drafts'] == two['drafts']}; texts: {one['tokens'] == two['tokens']}")


if __name__ == "__main__":
    main()
