"""python -m tests.unit.replay.compiled fp32|bf16: compiles vLLM's kernel and ours for a GPU, without
one, for states of that type. Compares what decides over rounding: the layouts of tiles and sums, and the
number of each kind of floating point instruction. With fp32 also what the model of their times reads
from the machine code. A process of its own: it needs a Triton that compiles.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from benchmarks.kernel_model.case import Case
from benchmarks.kernel_model.compiling import compile_launch, machine_code
from benchmarks.kernel_model.launches import launches
from benchmarks.kernel_model.sass import Flow, parse

CAPABILITY = 90
COUNTED = ("fma", "add", "sub", "ex2", "rsqrt", "shfl")  # what vLLM's dead factors of 1.0 leave alone


# Registers, and of the loop over rows instructions, shuffles and barriers, as counted by hand.
IN_THE_LOOP = {
    "_verify": (80, 554, 94, 10),
    "_apply_states": (96, 322, 47, 4),
    "fused_sigmoid_gating_delta_rule_update_kernel": (72, 581, 94, 10),
}


def sums(assembly: dict[str, str]) -> list[str]:
    """The tile of each sum of a kernel, in order: its shape, type, and layout spelt out."""
    text = assembly["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)$", text, re.M))
    tiles = re.findall(r"^\s+\}\) : \(tensor<(\w+), (#\w+)>\)", text, re.M)
    return [f"{tile} {layouts[layout]}" for tile, layout in tiles]


def arithmetic(assembly: dict[str, str]) -> Counter[str]:
    found = re.findall(
        rf"^\s+(?:@%p\d+ )?({'|'.join(COUNTED)})\.[\w.]*(?:f32|b32)\b", assembly["ptx"], re.M
    )
    return Counter(found)


def compare(case: Case) -> None:
    (stock,) = launches("per_token", case)
    own = {launch.name: launch for launch in launches("sequential", case)}
    theirs, mine, second = (
        compile_launch(launch, CAPABILITY).asm
        for launch in (stock, own["_verify"], own["_apply_states"])
    )
    assert len(sums(theirs)) == 4, sums(theirs)
    assert sums(mine) == sums(theirs), (sums(mine), sums(theirs))
    assert arithmetic(mine) == arithmetic(theirs), (arithmetic(mine), arithmetic(theirs))
    # A commit lacks the sums over the query: its length and the output.
    assert sums(second) == sums(theirs)[1:3], (sums(second), sums(theirs))
    print(case, dict(arithmetic(theirs)))
    # Control: a commit that knew less of its state blocks would sum in another order.
    unaware = compile_launch(own["_apply_states"], CAPABILITY, STATE_BYTES=4).asm
    assert sums(unaware) != sums(theirs)[1:3]


def read(case: Case) -> None:
    """Another release of the compiler may choose a few other instructions."""
    for launch in (*launches("sequential", case), *launches("per_token", case)):
        if launch.name in IN_THE_LOOP:
            code = machine_code(compile_launch(launch, CAPABILITY))
            (loop,) = Flow(parse(code.text)).loops
            counts = loop.counts()
            found = code.registers, loop.instructions, counts["shuffle"], counts["barrier"]
            assert found == pytest.approx(IN_THE_LOOP[launch.name], rel=0.05), (launch.name, found)
            assert code.local == 0
            print(launch.name, found)


if __name__ == "__main__":
    shape = Case(key_heads=16, value_heads=48, state=sys.argv[1], rows=16)
    compare(shape)
    if shape.state == "fp32":
        read(shape)
