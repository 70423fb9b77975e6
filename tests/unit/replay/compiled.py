"""python -m tests.unit.replay.compiled fp32|bf16: compiles vLLM's kernel and ours for a GPU, without
one, for states of that type. Compares what decides over rounding: the layouts of tiles and sums, and the
number of each kind of floating point instruction. A process of its own: it needs a Triton that compiles.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import (
    fused_sigmoid_gating_delta_rule_update_kernel,
)

from vllm_eagle_ext.memory.recorded_inputs import record_width
from vllm_eagle_ext.replay.ops import triton as ops

TARGET = GPUTarget("cuda", 90, 32)
ROWS = 17
COUNTED = ("fma", "add", "sub", "ex2", "rsqrt", "shfl")  # what vLLM's dead factors of 1.0 leave alone
PLAN = ["state_blocks", "rows_to_commit", "final", "block_end", "block_end_lengths"]
INPUTS = ("query", "key", "value", "a", "b")
FLAGS = (
    "USE_INITIAL_STATE INPLACE_FINAL_STATE USE_QK_L2NORM_IN_KERNEL IS_VARLEN IS_CONTINUOUS_BATCHING "
    "IS_SPEC_DECODING"
)


def compile_for(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> dict[str, str]:
    """types: Triton's, of the arguments that are no constants; pointers and strides divide by 16."""
    names = kernel.arg_names
    aligned = [name for name, kind in types.items() if kind.startswith("*") or kind == "i32"]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=TARGET, options=dict(ops.LAUNCH)).asm


def stock(state: str, block: int, H: int, HV: int, DK: int, DV: int, BK: int, BV: int) -> dict[str, str]:
    types = dict.fromkeys("abqkvo", "*bf16") | dict.fromkeys(["h0", "ht"], f"*{state}")
    types |= {"A_log": "*fp32", "dt_bias": "*bf16", "N": "i64", "T": "i64"}
    types |= dict.fromkeys(["cu_seqlens", "ssm_state_indices", "num_accepted_tokens"], "*i32")
    types |= dict.fromkeys(["beta", "threshold", "scale"], "fp32")
    constants = {"B": 1, "H": H, "HV": HV, "K": DK, "V": DV, "BK": BK, "BV": BV, "IS_KDA": False}
    constants |= {"stride_init_state_token": block, "stride_final_state_token": block}
    constants |= {"stride_indices_seq": ROWS, "stride_indices_tok": 1}
    constants |= dict.fromkeys(FLAGS.split(), True)
    return compile_for(fused_sigmoid_gating_delta_rule_update_kernel.fn, types, constants)


def verify(state: str, block: int, **sizes: int) -> dict[str, str]:
    types = dict.fromkeys([*INPUTS, "dt_bias", "records", "out"], "*bf16")
    types |= {
        "A_log": "*fp32",
        "state": f"*{state}",
        "state_blocks": "*i32",
        "starts": "*i32",
        "scale": "fp32",
    }
    types |= dict.fromkeys([f"{name}_row" for name in (*INPUTS, "out")], "i32")
    constants = {"STATE_STRIDE": block, "RECORD_STRIDE": block, "RECORD_ROWS": ROWS, "blocks_step": 1}
    return compile_for(ops._verify, types, constants | sizes)


def commit(state: str, state_bytes: int = ops.VECTOR_BYTES, **sizes: int) -> dict[str, str]:
    types = dict.fromkeys(PLAN, "*i32")
    types |= {"table": "*i64", "state_like": f"*{state}", "A_log_like": "*fp32"}
    types |= dict.fromkeys(["record_like", "dt_bias_like"], "*bf16")
    types |= {"blocks_group_step": "i32", "group_step": "i32"}
    constants = {"RECORD_ROWS": ROWS, "STATE_BYTES": state_bytes, "blocks_step": 1}
    return compile_for(ops._apply_states, types, constants | sizes)


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


def compare(state: str, H: int, HV: int, DK: int, DV: int) -> None:
    BK, BV = triton.next_power_of_2(DK), min(triton.next_power_of_2(DV), 32)
    sizes = {"H": H, "HV": HV, "DK": DK, "DV": DV, "BK": BK, "BV": BV}
    block = HV * DV * DK + ROWS * record_width(H, DK, HV, DV)
    block += -block % 16
    theirs, mine, second = (
        stock(state, block, **sizes),
        verify(state, block, **sizes),
        commit(state, **sizes),
    )
    assert len(sums(theirs)) == 4, sums(theirs)
    assert sums(mine) == sums(theirs), (sums(mine), sums(theirs))
    assert arithmetic(mine) == arithmetic(theirs), (arithmetic(mine), arithmetic(theirs))
    # A commit lacks the sums over the query: its length and the output.
    assert sums(second) == sums(theirs)[1:3], (sums(second), sums(theirs))
    print(state, sizes, dict(arithmetic(theirs)))
    # Control: a commit that knew less of its state blocks would sum in another order.
    assert sums(commit(state, state_bytes=4, **sizes)) != sums(theirs)[1:3]


if __name__ == "__main__":
    compare(sys.argv[1], H=16, HV=48, DK=128, DV=128)
