"""The chunked kernels against fp64, with the error of vLLM's own kernel as the measure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.unit.replay.cases import PADDING, Case, Shape, case
from tests.unit.replay.interpreted import exactness
from tests.unit.replay.interpreted.exactness import FACTOR, compare, compare_chain
from vllm_eagle_ext.replay.ops import triton as sequential
from vllm_eagle_ext.replay.ops import triton_chunked as chunked
from vllm_eagle_ext.replay.ops.types import Gating

FULL = pytest.mark.full
SMALL = {"H": 1, "HV": 2, "DK": 32, "DV": 16}
# Key and value heads of a rank: 27B, 35B-A3B and 397B-A17B under TP 1, 2, 4, 8.
SPLITS = [(16 // tp, ratio * 16 // tp) for ratio in (3, 2, 4) for tp in (1, 2, 4, 8)]


def check(
    shape: Shape, counts: list[int], lengths: list[int], change=lambda step: None, seeds: int = 3
) -> None:
    compare(shape, counts, lengths, seeds, change).check(shape)


@pytest.mark.parametrize(
    "T", [1, 2, 8, pytest.param(16, marks=FULL), pytest.param(17, marks=pytest.mark.long)]
)
def test_every_accept_length(T):
    """A request for each, with rows of its own."""
    check(Shape(T=T, **SMALL), [T] * T, list(range(1, T + 1)), seeds=1 if T > 4 else 4)


@pytest.mark.long
@pytest.mark.parametrize("T", range(1, 34))
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_every_accept_length_of_every_width(T, state):
    check(Shape(T=T, state=state, **SMALL), [T] * T, list(range(1, T + 1)), seeds=1 + 8 // T)


def step(shape: Shape, counts: list[int], lengths: list[int], seeds: int = 3, *, full: bool = False):
    return pytest.param(shape, counts, lengths, seeds, marks=[FULL] if full else [], id=str(shape))


@pytest.mark.parametrize(
    ("shape", "counts", "lengths", "seeds"),
    [
        *(  # published widths
            step(Shape(T=T, H=1, HV=2, DK=128, DV=128), [T], [T - 1], 1, full=T > 16)
            for T in (8, 16, 33)
        ),
        *(  # other widths
            step(Shape(T=5, H=1, HV=2, DK=DK, DV=DV), [5, 2], [4, 2], 2, full=DK > 16)
            for DK, DV in [(16, 16), (48, 80)]
        ),
        *(
            step(
                Shape(T=16, model=model, state=state, **SMALL), [16, 7], [13, 7],
                full=torch.float16 in (model, state),
            )
            for model in (torch.bfloat16, torch.float16)
            for state in (torch.float32, torch.bfloat16, torch.float16)
        ),
        step(Shape(T=16, **SMALL), [1, PADDING, 16, 0, 5, PADDING], [1, 0, 9, 0, 5, 0]),
        *(step(Shape(T=4, gap=gap), [4, 2], [3, 1]) for gap in (0, 4, 8, 1040)),
    ],
)  # fmt: skip
def test_a_step(shape, counts, lengths, seeds):
    check(shape, counts, lengths, seeds=seeds)


def split_marks(HV: int) -> list[pytest.MarkDecorator]:
    """Of all splits that models have, `make test` takes the small ones."""
    return [pytest.mark.long] if HV > 8 else [FULL] if HV > 4 else []


@pytest.mark.parametrize(
    ("H", "HV"),
    [pytest.param(*split, marks=split_marks(split[1])) for split in sorted(set(SPLITS))],
)
def test_head_splits(H, HV):
    check(Shape(T=4, H=H, HV=HV, DK=16, DV=16), [4], [3], seeds=1 + 16 // HV)


def test_many_requests_take_wider_tiles(monkeypatch):
    monkeypatch.setattr(chunked, "FEW_HEADS", 4)
    requests = 3
    assert chunked._sizes_for(case(Shape(DV=128), [1]).cache, requests)["BV"] == 128
    check(Shape(T=2, H=1, HV=2, DV=48), [2] * requests, [1, 2] * (requests // 2) + [1], seeds=1)


@pytest.mark.full
@pytest.mark.parametrize(("a", "b"), [(60.0, 60.0), (60.0, -60.0), (-60.0, 60.0), (-60.0, -60.0)])
@pytest.mark.parametrize("A_log", [[8.0, -20.0], [80.0, -80.0]], ids=str)
def test_extreme_gates(a, b, A_log):
    """In every head, one of which forgets at once, one of which never does."""

    def change(step: Case) -> None:
        step.rows.a[:], step.rows.b[:] = a, b
        step.gating.A_log.copy_(torch.tensor(A_log))

    check(Shape(T=16), [16, 3], [12, 3], change)


@pytest.mark.full
def test_gates_that_change_from_row_to_row():
    """What lies behind a row that forgets nearly all decays slowly: no difference of large sums."""

    def change(step: Case) -> None:
        step.rows.a[:], step.rows.b[:] = -4.0, 3.0
        step.rows.a[::5] = 60.0
        step.gating.A_log.copy_(torch.tensor([0.0, 8.0]))

    check(Shape(T=16, DK=32), [16, 16], [14, 16], change)


@pytest.mark.parametrize("T", [pytest.param(16, marks=FULL), 33])
def test_equal_keys_of_full_weight(T):
    """Powers of their matrix would cancel: binomial coefficients as large as 10^3 and 10^9."""

    def change(step: Case) -> None:
        step.rows.key[:] = step.rows.key[0]
        step.rows.b[:], step.rows.a[:] = 12.0, -12.0

    check(Shape(T=T, **SMALL), [T], [T - 1], change)
    assert error_of_powers(T) > 100 * 2**-24


def error_of_powers(T: int) -> float:
    """How far (1 - A)(1 + A^2)(1 + A^4).. is from the inverse, in fp32: what the kernels avoid."""
    strict = torch.ones(T, T).triu(1) * 0.999
    eye, product, power = torch.eye(T), torch.eye(T) - strict, strict @ strict
    for _ in range(5):
        product, power = product @ (eye + power), power @ power
    exact = torch.linalg.inv((eye + strict).double())
    return float((product - exact).abs().max())


@pytest.mark.parametrize("norm", [0.0, 1e-20, 1e-4, 1e18])
def test_keys_of_any_length(norm):
    def change(step: Case) -> None:
        step.rows.key[1:3] *= norm
        step.rows.query[2] *= norm
        step.rows.value[0] *= -0.0

    check(Shape(T=4, DK=32), [4], [3], change)


def test_large_and_small_states():
    def change(step: Case) -> None:
        step.cache.state[:, :, ::2] *= 1e6
        step.cache.state[:, :, 1::4] *= 1e-6

    check(Shape(T=16, DK=32), [16], [9], change)


def test_a_chain_of_steps():
    shape = Shape(T=16, **SMALL)
    errors, seen = compare_chain(shape, requests=1, steps=12)
    errors.check(shape)
    assert len(seen) > 5


@pytest.mark.long
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T", [8, 16, 17, 33])
@pytest.mark.parametrize("A_log", [None, -6.0], ids=["random gates", "long memory"])
def test_a_chain_of_256_steps(T, state, A_log):
    shape = Shape(T=T, H=1, HV=2, DK=64, DV=16, state=state)
    gating = Gating(torch.full((2,), A_log), torch.zeros(2).bfloat16()) if A_log else None
    errors, _ = compare_chain(shape, requests=1, steps=256, gating=gating)
    print(f"\n{errors}")
    errors.check(shape)


@pytest.mark.parametrize(
    ("verify", "commit"), [pytest.param(sequential, chunked, marks=FULL), (chunked, sequential)]
)
def test_either_commits_what_the_other_verified(monkeypatch, verify, commit):
    parts = {"verify": verify.verify, "plan": chunked.plan, "Commit": commit.Commit}
    monkeypatch.setattr(exactness, "ops", SimpleNamespace(**parts))
    check(Shape(T=16, H=2, HV=4), [16, PADDING, 3], [7, 0, 2])


class TestControls:
    """The comparison must see each of these."""

    SHAPE = Shape(T=16, **SMALL)

    def errors(self, monkeypatch, **changed):
        parts = {name: getattr(chunked, name) for name in ("verify", "plan", "Commit")}
        monkeypatch.setattr(exactness, "ops", SimpleNamespace(**parts | changed))
        return compare(self.SHAPE, [16], [9], 3)

    def test_a_commit_one_row_short(self, monkeypatch):
        def plan(*args):
            chunked.plan(*args)
            args[-1].rows_to_commit.sub_(1)

        errors = self.errors(monkeypatch, plan=plan)
        assert errors.ratio("states", torch.float32) > 1e3
        assert errors.ratio("outputs", torch.bfloat16) <= FACTOR

    def test_a_state_of_two_bf16_parts(self, monkeypatch):
        """As if the third part of the state were missing from the products."""

        def verify(rows, gating, cache, batch, out):
            chunked.verify(rows, gating, cache, batch, out)
            bits = cache.state.view(torch.int32)
            bits.bitwise_and_(-(1 << 8))

        errors = self.errors(monkeypatch, verify=verify)
        assert errors.ratio("states", torch.float32) > FACTOR

    def test_outputs_of_another_gate(self, monkeypatch):
        def verify(rows, gating, cache, batch, out):
            gating.A_log.add_(0.2)
            chunked.verify(rows, gating, cache, batch, out)
            gating.A_log.sub_(0.2)

        errors = self.errors(monkeypatch, verify=verify)
        assert errors.ratio("outputs", torch.bfloat16) > FACTOR
