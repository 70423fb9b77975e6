"""python -m tests.unit.replay.compiled fp32|bf16: compiles vLLM's kernel and ours for a GPU, without
one, for states of that type. Compares what decides over rounding: the layouts of tiles and sums, and the
number of each kind of floating point instruction. A process of its own: it needs a Triton that compiles.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

from benchmarks.compiled_kernels import Layer, compile_launch

CAPABILITY = 90
COUNTED = ("fma", "add", "sub", "ex2", "rsqrt", "shfl")  # what vLLM's dead factors of 1.0 leave alone


def sums(assembly: dict[str, str]) -> list[str]:
    """The tile of each sum of a kernel, in order: its shape, type, and layout spelt out."""
    text = assembly["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)$", text, re.M))
    tiles = re.findall(r"^\s+\}\) : \(tensor<(\w+), (#\w+)>\)", text, re.M)
    return [f"{tile} {layouts[layout]}" for tile, layout in tiles]


def arithmetic(assembly: dict[str, str]) -> Counter[str]:
    kinds = re.findall(
        rf"^\s+(?:@%p\d+ )?({'|'.join(COUNTED)})\.[\w.]*(?:f32|b32)\b", assembly["ptx"], re.M
    )
    return Counter(kinds)


def compare(layer: Layer) -> None:
    (stock,) = layer.per_token()
    own = {launch.name: launch for launch in layer.replay()}
    theirs, mine, second = (
        compile_launch(launch, CAPABILITY).asm
        for launch in (stock, own["_verify"], own["_apply_states"])
    )
    assert len(sums(theirs)) == 4, sums(theirs)
    assert sums(mine) == sums(theirs), (sums(mine), sums(theirs))
    assert arithmetic(mine) == arithmetic(theirs), (arithmetic(mine), arithmetic(theirs))
    # A commit lacks the sums over the query: its length and the output.
    assert sums(second) == sums(theirs)[1:3], (sums(second), sums(theirs))
    print(dict(arithmetic(theirs)))
    # Control: a commit that knew less of its state blocks would sum in another order.
    unaware = compile_launch(own["_apply_states"], CAPABILITY, STATE_ALIGNMENT=4).asm
    assert sums(unaware) != sums(theirs)[1:3]


if __name__ == "__main__":
    compare(Layer(key_heads=16, value_heads=48, state=sys.argv[1], rows=16))
