"""The model of the kernels' times: its reading of machine code, its rules, and what is written from it.

What it finds in real machine code: tests/unit/replay/compiled.py.
"""

from __future__ import annotations

import pytest

from benchmarks.kernel_model import page, short_table
from benchmarks.kernel_model.case import TARGETS, cases, share
from benchmarks.kernel_model.facts import facts_of
from benchmarks.kernel_model.latency import warp_clocks
from benchmarks.kernel_model.machine import ARCHS, DEVICES, occupancy
from benchmarks.kernel_model.profile import Profile, memory_clocks, mma_clocks
from benchmarks.kernel_model.results import read_results
from benchmarks.kernel_model.sass import Flow, kind, parse
from benchmarks.kernel_model.times import kernel_time

# A loop of four instructions in one of nine, one of which some iterations skip; then a far jump back.
NESTED = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @!P0 EXIT ;
.L_x_0:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   FADD R8, R4, R5 ;
        /*0040*/              @!P1 BRA `(.L_x_1) ;
        /*0050*/                   STG.E [R2.64], R8 ;
.L_x_1:
        /*0060*/                   SHFL.BFLY PT, R9, R8, 0x10, 0x1f ;
.L_x_2:
        /*0070*/                   HMMA.16816.F32.BF16 R8, R12, R16, R8 ;
        /*0080*/                   FFMA R9, R9, R9, R9 ;
        /*0090*/                   FFMA R9, R9, R9, R9 ;
        /*00a0*/                   FFMA R9, R9, R9, R9 ;
        /*00b0*/                   FFMA R9, R9, R9, R9 ;
        /*00c0*/                   FFMA R9, R9, R9, R9 ;
        /*00d0*/                   FFMA R9, R9, R9, R9 ;
        /*00e0*/                   FFMA R9, R9, R9, R9 ;
        /*00f0*/               @P2 BRA `(.L_x_2) ;
        /*0100*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0110*/               @P3 CALL.REL.NOINC `(.L_x_3) ;
        /*0120*/                   BRA `(.L_x_0) ;
.L_x_3:
        /*0130*/                   EXIT ;
.L_x_4:
        /*0140*/                   BRA `(.L_x_4);
"""


@pytest.fixture(scope="module")
def data():
    return read_results()


@pytest.fixture
def nested():
    return Flow(parse(NESTED))


def test_loops_are_found(nested):
    assert [(loop.header, loop.instructions, loop.inner) for loop in nested.loops] == [
        (0x20, 17, 1),
        (0x70, 9, 0),
    ]
    assert 0x140 not in {block.start for block in nested.blocks}, "nothing leads there"


def test_blocks_count_as_often_as_their_loops_run(nested):
    weights = nested.weights((16, 4))
    assert (weights[0], weights[0x20], weights[0x70], weights[0x130]) == (1, 16, 64, 1)
    assert weights[0x50] == 16
    assert nested.weights((16, 4), conditional=0)[0x50] == 0
    assert nested.weights(lambda loop: 1 if loop.inner else 4)[0x70] == 4


def test_a_wrong_number_of_trip_counts_is_refused(nested):
    with pytest.raises(ValueError, match="1 trip counts for 2 loops"):
        nested.weights((16,))


def test_a_loop_that_waits_runs_once():
    waiting = ".L_x_0:\n/*0010*/ SYNCS.PHASECHK P0, [UR4] ;\n/*0020*/ @!P0 BRA `(.L_x_0) ;\n"
    flow = Flow(parse(f"/*0000*/ MOV R0, R1 ;\n{waiting}/*0030*/ EXIT ;"))
    assert flow.trip_counts(16) == [1.0]


def test_one_warp_waits_for_what_it_reads(nested):
    """The load, the sum, the shuffle and eight sums that follow one another, in every iteration."""
    once, twice = (warp_clocks(nested, (trips, 1)) for trips in (1, 2))
    assert 280 + 4 + 24 + 7 * 4 < twice - once < 280 + 4 + 24 + 8 * 4 + 25 + 12
    assert warp_clocks(nested, (16, 1)) == pytest.approx(once + 15 * (twice - once))


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("HMMA.16816.F32.BF16", "mma"), ("HGMMA.64x16x16.F32.BF16", "mma"), ("UTCHMMA", "mma"),
        ("MUFU.EX2", "special"), ("SHFL.BFLY", "shuffle"), ("LDS.128", "shared"), ("LDL", "local"),
        ("UIADD3", "uniform"), ("FFMA2", "fp32"), ("HFMA2.MMA", "fp32"), ("LOP3.LUT", "alu"),
    ],
)  # fmt: skip
def test_kinds(opcode, expected):
    assert kind(opcode) == expected


def test_what_pipes_need():
    wide, narrow, product, many = parse(
        "/*0000*/ LDS.128 R0, [R4] ;\n/*0010*/ SHFL.BFLY PT, R9, R8, 0x10, 0x1f ;\n"
        "/*0020*/ HMMA.16816.F32.BF16 R8, R12, R16, R8 ;\n"
        "/*0030*/ HGMMA.64x16x16.F32.BF16 R32, R104, gdesc[UR12], R32 ;"
    )
    assert (memory_clocks(wide), memory_clocks(narrow), memory_clocks(product)) == (4, 1, 0)
    assert mma_clocks(product, ARCHS[80], warps=4) == 2
    assert mma_clocks(many, ARCHS[90], warps=4) == 8  # as for 64 columns: 32 clocks for four warps


@pytest.mark.parametrize(
    ("capability", "registers", "shared", "fits"),
    [(90, 80, 512, (6, "registers")), (90, 96, 512, (5, "registers")), (90, 72, 512, (7, "registers")),
     (90, 32, 0, (16, "registers")), (120, 24, 0, (12, "warps")),
     (120, 148, 51200, (1, "shared memory"))],
)  # fmt: skip
def test_occupancy(capability, registers, shared, fits):
    found = occupancy(ARCHS[capability], registers=registers, shared=shared, warps=4)
    assert (found.ctas, found.limit) == fits


def test_a_kernel_takes_what_its_scarcest_resource_needs():
    """The figures of verify on an H100, 32 requests: 768 warps of 16 rows of 554 instructions each."""
    device, case = DEVICES[1], share(TARGETS[0], 1, "fp32", 16)
    profile = Profile(
        registers=80, local=0, shared=512, warps=4, ctas=192 * 32, code=816, loops=(), counts={},
        clocks={"issue": 16 * 554 / 4}, one_warp=23_000,
    )  # fmt: skip
    found = kernel_time(facts_of("sequential", "_verify"), profile, case, device, requests=32, layers=48)
    assert found.binds == "issue"
    assert found.seconds / 32 == pytest.approx(7.05e-6, rel=0.02)
    assert found.likely == pytest.approx(found.seconds / 0.75)
    assert found.parts["bytes"] / 32 == pytest.approx((2**20 * 3 + 16 * 3 * 16_576) / 3.35e12, rel=0.05)


def test_a_kernel_without_facts_is_named():
    with pytest.raises(KeyError, match="_surprise of chunked: add its row"):
        facts_of("chunked", "_surprise")


def test_every_shape_was_modelled(data):
    found = {(row["device"], row["target"], row["tp"], row["state"], row["k"]) for row in data["times"]}
    assert found == {
        (device.name, target.name, ranks, case.state, case.rows - 1)
        for device in DEVICES
        for target, ranks, case in cases()
    }


def test_what_of_ours_spills(data):
    own = [row for row in data["kernels"] if row["scheme"] in ("sequential", "chunked")]
    assert {row["arch"] for row in own} == {arch.name for arch in ARCHS.values()}
    spilled = {
        (row["scheme"], row["kernel"], row["arch"], row["state"]): row["local"]
        for row in own
        if row["local"]
    }
    assert spilled == {("sequential", "_apply_states", "sm_100", "bf16"): 16}


def test_the_page_is_written_from_the_results(data):
    for name, text in page.parts(data):
        assert page.written(name) == text, "python -m benchmarks.kernel_model --write"


def test_the_short_table_is_written_from_the_results(data):
    assert short_table.MODULE.read_text(encoding="utf-8") == short_table.module_text(data)


def test_the_page_says_what_is_assumed_of_the_second_level_cache(data):
    prose = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    assumed = prose.partition("an assumption, without a source: ")[2].partition(". It bounds")[0]
    for device in DEVICES:
        assert f"{device.name} {device.cache / 1e12:g}" in assumed
    assert "It bounds no time on this page" in prose
    assert not any("second-level cache" in text for _, text in page.parts(data))


def test_the_evidence_says_what_the_results_say(data):
    """Another page repeats a few of these times: it must not keep those of older results."""
    row = next(
        line
        for line in (page.ROOT / "docs/dev/evidence.md").read_text(encoding="utf-8").splitlines()
        if "benchmarks.kernel_model --target 27B" in line
    )
    shares = {name: [] for name in page.schemes(data)}
    for device in ("H100", "H200"):
        (found,) = page.rows_of(
            data, target=TARGETS[0].name, tp=1, state="fp32", k=page.MOST_K, device=device
        )
        for name, times in found["schemes"].items():
            shares[name].append(f"{times[page.MANY]['us'] / found['floors']['2R+1W']:.2f}")
    for name in ("chunked", "sequential"):
        assert f"{name} {', '.join(shares[name])};" in row
    assert {f"vLLM's {share} |" in row for share in shares["per_token"]} == {True}
