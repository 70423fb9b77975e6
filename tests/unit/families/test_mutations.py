"""Broken drafts, derived from valid ones: each is refused, warned of, or drafts what it should.

What a checker lets pass without a word is loaded into vLLM's own layers and must draft what the
reference drafts from the *unbroken* file. `-s` prints the matrix of rules, operators and families.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError

from tests.support.drafting import (
    bound_of,
    difference,
    load,
    make_probe,
    module_logits,
    reference_logits,
    resolve_draft,
)
from tests.support.drafts import FAMILIES, VLLMS, valid_draft, write
from tests.support.mutations import OPERATORS, Mutant, fresh, mutants
from tests.support.triton_on_cpu import norm_each_layers_keys
from vllm_eagle_ext.draft import Inspection, TargetFacts, inspect_draft, read_draft_files
from vllm_eagle_ext.draft.rules import every_rule
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.errors import EagleExtError

# Values that are as valid as the ones they replace: nothing in the file tells them apart.
UNKNOWABLE = (
    ("flag", "norm_before_residual flipped"),
    ("flag", "norm_output set"),  # of speculators' format, where it says what is fed back
    ("number", "mask_token_id 0"),
    ("number", "dflash_config.mask_token_id 0"),
    ("number", "selector_top_k one more"),
    ("number", "selector_top_k twice"),
    ("flag", "sample_from_anchor flipped"),
    ("other keys", "sampled anchor"),  # of DSpark
)
# vLLM's own loaders take any value of a large tensor: `check --weights` is what refuses it.
READ_BY_CHECK_WEIGHTS = "spoil value"
# One of two valid values of a key that other families' drafters do not read.
UNKNOWABLE_OF_ONE = {("dflash2", "other keys", "logits rescaled")}
# What vLLM refuses by itself before it loads anything, and in which words.
REFUSED_BY_VLLM = {
    ("identity", "model_type no_such_type"): "model type `no_such_type`",
    ("drop key", "model_type"): "Should have a `model_type` key",
    ("null key", "model_type"): "model type `None`",
    ("other keys", "many candidates"): "dspark_draft_topk must be between 1 and",
}
# What is asked of the draft, and where it is served, changes nothing in the draft.
NOT_OF_THE_DRAFT = ("surroundings",)
# Of quantised drafts, which no family here has: rules/test_quantisation.py and, in this folder,
# test_quantised_second_heads.py.
OF_OTHER_FORMATS = {
    "gated_rows_can_be_moved", "gptq_settings_are_shared", "markov_candidates_are_plain", "qweights_fit"
}  # fmt: skip
# Of the types in a quantisation's config: rules/cases/quantisation.py.
OF_QUANTISATIONS = {"quantisation_is_well_formed"}
# Of what is asked of a draft or of the target beside it, not of its file: rules/cases/target.py.
OF_THE_REQUEST = {
    "depth_is_the_drafts_own", "draft_is_no_plain_model", "gate_layout_has_a_gate", "k_can_pay",
    "rope_table_is_bounded", "target_is_the_drafts_own", "rope_table_holds_drafted_texts",
    "k_leaves_room_in_the_context", "trainer_rotates_the_same_part",
    "vocabulary_is_widened", "draft_window_is_computed",
    "narrow_vocabulary_is_padded",
    "draft_window_holds_a_step", "draft_window_is_used", "embedding_scale_is_stated",
    "draft_vocabulary_has_a_drafter",
}  # fmt: skip


def inspect(mutant: Mutant, folder: Path) -> Inspection:
    folder.mkdir()
    path = write(mutant.draft, folder / "draft")
    if mutant.as_bin:
        (path / "model.safetensors").rename(path / "pytorch_model.bin")
    for place, files in ((path, mutant.files), (folder, mutant.target_files)):
        for name, text in files.items():
            (place / name).write_text(text)
    engine = DraftRequest(
        method=mutant.draft.method,
        k=mutant.draft.k,
        max_model_len=mutant.max_model_len,
        runner=mutant.runner,  # type: ignore[arg-type]
        parallel_drafting=mutant.parallel_drafting,
    )
    return inspect_draft(
        read_draft_files(str(path)), TargetFacts.from_config(mutant.target, folder), engine
    )


def weights_errors(mutant: Mutant, folder: Path) -> set[str]:
    """Rules that refuse the draft once every value is read."""
    files = read_draft_files(str(write(mutant.draft, folder)), all_values=True)
    engine = DraftRequest(
        method=mutant.draft.method, k=mutant.draft.k, max_model_len=mutant.max_model_len
    )
    inspection = inspect_draft(files, TargetFacts.from_config(mutant.target), engine)
    return {finding.rule for finding in inspection.errors}


class Tally:
    def __init__(self, root: Path, step: int) -> None:
        self.cells: Counter[tuple[str, str, str]] = Counter()  # rule, operator, family
        self.verdicts: Counter[str] = Counter()
        self.can_run: dict[str, Mutant] = {}  # per rule, one that breaks it alone
        self.silent: list[Mutant] = []
        for family in FAMILIES:
            known = {str(f.problem) for f in inspect(fresh(family), root / family).findings}
            for index, mutant in enumerate(islice(mutants(family), 0, None, step)):
                self.add(mutant, inspect(mutant, root / f"{family}-{index}"), known)

    def add(self, mutant: Mutant, inspection: Inspection, known: set[str]) -> None:
        new = [finding for finding in inspection.findings if str(finding.problem) not in known]
        for finding in new:
            self.cells[finding.rule, mutant.operator, mutant.family] += 1
        rules = {finding.rule for finding in inspection.errors}
        if len(rules) == 1 and inspection.errors[0].can_run:
            self.can_run.setdefault(*rules, mutant)
        if inspection.errors:
            verdict = "refused"
        elif any(f.severity == "warning" and f.rule != "weights_can_be_checked" for f in new):
            verdict = "warned of"
        else:
            verdict = "let pass"
            self.silent.append(mutant)
        self.verdicts[verdict] += 1
        self.verdicts["in all"] += 1
        self.verdicts["that differ in more than a name"] += not mutant.differs_in_a_name_only

    def lines(self) -> list[str]:
        width = max(len(rule) for rule, _, _ in self.cells)
        head = " ".join(f"{family[:8]:>8}" for family in FAMILIES)
        lines = [", ".join(f"{n} {v}" for v, n in self.verdicts.items()), f"{'':{width}} {head}"]
        for rule, operator in sorted({(rule, operator) for rule, operator, _ in self.cells}):
            counts = [self.cells[rule, operator, family] for family in FAMILIES]
            row = " ".join(f"{count or '.':>8}" for count in counts)
            lines.append(f"{rule:{width}} {row}  {operator}")
        return lines


@pytest.fixture(scope="module", params=[pytest.param(1, id="all", marks=pytest.mark.long)])
def tally(request, tmp_path_factory) -> Tally:
    """Of every mutant, or of every so-manieth."""
    return Tally(tmp_path_factory.mktemp("mutants"), request.param)


A_TENTH = pytest.mark.parametrize(
    "tally",
    [pytest.param(10, id="a tenth"), pytest.param(1, id="all", marks=pytest.mark.long)],
    indirect=True,
)


def test_every_rule_is_broken_by_a_mutant(tally):
    print("\n" + "\n".join(tally.lines()))
    elsewhere = OF_OTHER_FORMATS | OF_QUANTISATIONS | OF_THE_REQUEST
    broken = {rule for rule, _, _ in tally.cells}
    assert {rule.name for rule in every_rule()} - elsewhere - broken == set()
    assert tally.verdicts["that differ in more than a name"] >= 150


def test_every_operator_of_every_family_is_tried(tally):
    assert {operator for _, operator, _ in tally.cells} | {"alias tensor"} == set(OPERATORS)


@pytest.mark.promise(
    "DFlash2 and DSpark: broken files are refused, warned of, or draft the same in vLLM's own classes"
)
@A_TENTH
def test_what_passes_drafts_what_the_unbroken_file_drafts(tally, tmp_path, monkeypatch):
    norm_each_layers_keys(monkeypatch.setattr)
    probe, wrong, outcome = make_probe(), [], Counter()
    expected = {}
    for family in FAMILIES:
        try:
            _, layer_ids, path, _ = load(tmp_path / family, valid_draft(family))
        except pytest.skip.Exception as reason:
            print(f"{family} is left out: {reason}")
            continue
        expected[family] = reference_logits(path, family, layer_ids, probe)
    for index, mutant in enumerate(tally.silent):
        if mutant.family not in expected:
            outcome["without a kernel on this CPU"] += 1
            continue
        label = (mutant.operator, mutant.label)
        unknowable = _ends_with(label, UNKNOWABLE) or (mutant.family, *label) in UNKNOWABLE_OF_ONE
        if mutant.operator in NOT_OF_THE_DRAFT or unknowable:
            continue
        if mutant.family in VLLMS and mutant.operator == READ_BY_CHECK_WEIGHTS:
            outcome["refused by check --weights"] += 1
            if weights_errors(mutant, tmp_path / str(index)) != {"weights_are_finite"}:
                wrong.append((mutant.family, *label))
            continue
        if said := REFUSED_BY_VLLM.get(label):
            with pytest.raises(ValueError, match=said):
                resolve_draft(tmp_path / str(index), mutant.draft)
            outcome["refused by vLLM"] += 1
            continue
        try:
            drafter, layer_ids, *_ = load(tmp_path / str(index), mutant.draft)
        except EagleExtError:
            outcome["refused while loading"] += 1
            continue
        except StrictDataclassError:  # types are for transformers' classes to refuse
            outcome["refused by its config class"] += 1
            continue
        except (AssertionError, RuntimeError):
            # Of quantised modules vLLM alone knows every scheme's shapes, and says so while it loads.
            if mutant.family != "quantised":
                raise
            outcome["refused by vLLM while loading"] += 1
            continue
        except Exception as error:  # noqa: BLE001 - a crash of the host's is our miss: all are listed
            wrong.append((mutant.family, *label, f"{type(error).__name__}: {error}"[:200]))
            continue
        mine = module_logits(drafter, mutant.family, layer_ids, probe)
        outcome["drafts the same"] += 1
        if not difference(mine, expected[mutant.family]) < bound_of(mutant.family):
            wrong.append((mutant.family, *label))
    print(f"\nof {len(tally.silent)} that no rule speaks of: {dict(outcome)}")
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("family", VLLMS)
def test_a_draft_of_other_weights_is_told_apart(family, tmp_path, monkeypatch):
    """Negative control of the comparison."""
    norm_each_layers_keys(monkeypatch.setattr)
    _, layer_ids, path, probe = load(tmp_path / "valid", valid_draft(family))
    drafter, *_ = load(tmp_path / "other", valid_draft(family, seed=1))
    mine = module_logits(drafter, family, layer_ids, probe)
    assert difference(mine, reference_logits(path, family, layer_ids, probe)) > 10 * bound_of(family)


def test_what_is_said_to_run_does(tally, tmp_path):
    """`strict: false` promises it. Files beside the draft are no matter of the loader's."""
    promised = {
        rule.name for rule in every_rule() if rule.severity == "error" and rule.can_run
    } - OF_THE_REQUEST
    assert set(tally.can_run) == promised
    for rule, mutant in tally.can_run.items():
        try:
            drafter, layer_ids, *_ = load(tmp_path / rule, mutant.draft, strict=False)
        except pytest.skip.Exception as reason:
            print(f"{rule} is left out: {reason}")
            continue
        logits = module_logits(drafter, mutant.family, layer_ids, make_probe())
        assert logits.isfinite().any(), rule


def _ends_with(label: tuple[str, str], known: tuple[tuple[str, str], ...]) -> bool:
    return any(label[0] == operator and label[1].endswith(text) for operator, text in known)
