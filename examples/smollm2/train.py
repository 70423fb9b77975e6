"""`python -m examples.smollm2.train ROWS`: a post-norm EAGLE-3 draft of five layers for SmolLM2-135M.

The draft and its maths are those of the tiny pairs (examples/tiny/train/draft.py). A real target adds
chats, of which only the answers count in the loss, and a vocabulary of 49,152 tokens, of which the draft
keeps 8,192. Its states are computed once and kept on the disk for later passes, 7 kB a token. A run that
was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file

from examples.dtype import cpu_multiplies_bf16
from examples.smollm2.fetch import FOLDER, fetch
from examples.tiny.train.draft import DraftModel, DraftShape
from examples.tiny.train.draft_training import most_frequent_ids, shares_of_accepted
from examples.tiny.train.export import bf16_tensors, draft_config, vocabulary_map
from examples.tiny.train.optim import build_optimizers, update
from vllm_eagle_ext.measure.engine.machine import processor

LAYERS = (2, 9, 16, 23, 28)  # inputs of these target layers, of 30
NATIVE_LAYERS = (2, 15, 27)  # those that engines read where a draft names none
DRAFT_VOCABULARY = 8192
LONGEST, TOKENS_A_BATCH = 384, 1792
UNROLL, STEP_DECAY = 4, 0.85  # chain steps, and the weight of each against the one before
HELD_OUT = 48  # greedy rows that are not trained on
PEAKS = {"matrices": 0.02, "tables": 1e-3, "norms": 3e-3}
FAST_BF16 = cpu_multiplies_bf16()
DTYPE = torch.bfloat16 if FAST_BF16 else torch.float32


@dataclass(frozen=True)
class Row:
    ids: list[int]
    answer: int  # where the answer begins
    greedy: bool


@dataclass(frozen=True)
class Batch:
    index: list[int]
    ids: torch.Tensor  # [B, S]
    begin: torch.Tensor  # [B], where the answer begins
    end: torch.Tensor  # [B], length of the row


def read_rows(path: Path) -> list[Row]:
    """Read rows whose answers are long enough to draft in, cut at LONGEST tokens."""
    rows = []
    for line in path.open():
        read = json.loads(line)
        ids, answer = (read["prompt"] + read["answer"])[:LONGEST], len(read["prompt"])
        if len(ids) - answer >= 12:
            rows.append(Row(ids, answer, read["temperature"] == 0))
    return rows


def held_out_apart(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows to train on, and the last greedy ones, which are held out."""
    held_out = [row for row in rows if row.greedy][-HELD_OUT:]
    apart = {id(row) for row in held_out}
    return [row for row in rows if id(row) not in apart], held_out


def batches(rows: Sequence[Row], rng: random.Random) -> Iterator[list[int]]:
    """Put rows of like length together, in random order."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids) + rng.random() * 12)
    cut: list[list[int]] = [[]]
    for i in order:
        if len(rows[i].ids) * (len(cut[-1]) + 1) > TOKENS_A_BATCH:
            cut.append([])
        cut[-1].append(i)
    rng.shuffle(cut)
    yield from cut


def collate(rows: Sequence[Row], index: list[int]) -> Batch:
    chosen = [rows[i] for i in index]
    ids = torch.full((len(chosen), max(len(row.ids) for row in chosen)), 2)
    for place, row in zip(ids, chosen, strict=True):
        place[: len(row.ids)] = torch.tensor(row.ids)
    begin, end = (torch.tensor(x) for x in ([r.answer for r in chosen], [len(r.ids) for r in chosen]))
    return Batch(index, ids, begin, end)


class TargetStates:
    """Aux states and last hidden states of the target, computed once per row and kept in a file."""

    def __init__(self, target: Any, layers: Sequence[int], rows: Sequence[Row], path: Path) -> None:
        self.target, self.layers, self.seen = target, layers, set[int]()
        self.base = np.cumsum([0, *(len(row.ids) for row in rows)])
        shape = (int(self.base[-1]), len(layers) + 1, target.config.hidden_size)
        self.file = np.memmap(path, dtype=np.int16, mode="w+", shape=shape)  # the bits of bfloat16

    @torch.no_grad()
    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the states of a batch, bfloat16 [B, S, layers + 1, H], zero after a row."""
        if not self.seen.issuperset(batch.index):
            states = observe(self.target, self.layers, batch.ids)
            for i, length, row in zip(batch.index, batch.end.tolist(), states, strict=True):
                self._of(i, length)[:] = row[:length].view(torch.int16).numpy()
                self.seen.add(i)
        shape = (*batch.ids.shape, *self.file.shape[1:])
        states = torch.zeros(shape, dtype=torch.bfloat16)
        for i, length, row in zip(batch.index, batch.end.tolist(), states, strict=True):
            row[:length] = torch.from_numpy(np.array(self._of(i, length))).view(torch.bfloat16)
        return states

    def _of(self, row: int, length: int) -> np.ndarray:
        return self.file[self.base[row] : self.base[row] + length]


@torch.no_grad()
def observe(target: Any, layers: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Return aux states and, last, what the head reads: bfloat16 [B, S, layers + 1, H]."""
    output = target.model(ids, use_cache=False, output_hidden_states=True)
    aux = [output.hidden_states[layer] for layer in layers]
    return torch.stack([*aux, output.last_hidden_state], 2).bfloat16()


def unroll(
    draft: DraftModel, states: torch.Tensor, embeddings: torch.Tensor, rows: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Unroll as `DraftModel.unroll`, with the head on the rows `rows[step]` [B, n] only.

    Most rows are prompt or padding, and the head is the largest product.
    """
    n = rows[0].shape[1]
    hidden = draft.fuse([states[:, :n, i].float() for i in range(len(draft.shape.layer_ids))])
    cache: list[tuple[torch.Tensor, torch.Tensor]] = []
    logits = []
    layer = draft.midlayer
    for step, wanted in enumerate(rows):
        token = layer.input_layernorm(embeddings[:, step + 1 : step + 1 + n])
        x = torch.cat([token, layer.hidden_norm(hidden)], dim=-1)
        hidden = hidden + layer.self_attn(x, torch.arange(n) + step, cache)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        normed = draft.norm(hidden)
        logits.append(draft.lm_head(normed[wanted]))
        hidden = normed if draft.shape.post_norm else hidden
    return logits


def loss_of(
    draft: DraftModel, target: Any, kept: torch.Tensor, batch: Batch, states: torch.Tensor, steps: int
) -> torch.Tensor:
    """Return the cross-entropy against the target's distribution over the kept ids, along the chain.

    Half of the weight stands on the target's first choice; places where that is not kept do not count.
    """
    places = torch.arange(batch.ids.shape[1])[None]
    begin, end = batch.begin[:, None], batch.end[:, None]
    n = batch.ids.shape[1] - steps - 1
    rows = [(places[:, :n] >= begin - 1) & (places[:, :n] + j + 2 < end) for j in range(steps)]
    embeddings = target.model.embed_tokens(batch.ids).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=FAST_BF16):
        logits = unroll(draft, states, embeddings, rows)
    # What the target says after each answer token, once for all steps; `at` is a place's row in it.
    with torch.no_grad():
        answers = (places >= begin) & (places + 1 < end)
        at = answers.flatten().cumsum(0).view_as(answers) - 1
        whole = states[:, :, -1][answers].to(DTYPE) @ target.lm_head.weight.T
        inside = whole[:, kept].float()
        covered = inside.amax(-1) >= whole.amax(-1).float()
        first, soft = inside.argmax(-1), inside.softmax(-1)
    total = torch.zeros(())
    for step, (row, wanted) in enumerate(zip(logits, rows, strict=True)):
        of = at[:, step + 1 : step + 1 + n][wanted]
        log_probs = row.float().log_softmax(-1)
        loss = -(soft[of] * log_probs).sum(-1) - log_probs.gather(-1, first[of][:, None])[:, 0]
        total = total + STEP_DECAY**step * loss[covered[of]].mean() / 2
    return total / sum(STEP_DECAY**step for step in range(steps))


@torch.no_grad()
def acceptance(
    draft: DraftModel, target: Any, kept: torch.Tensor, rows: Sequence[Row], k: int
) -> list[float]:
    """Return the share of drafts whose first i tokens a greedy target accepts, i = 1..k."""
    lengths = []
    for i in range(0, len(rows), 8):
        batch = collate(rows, list(range(i, min(i + 8, len(rows)))))
        n = batch.ids.shape[1] - k - 1
        everywhere = [torch.ones(len(batch.index), n, dtype=torch.bool)] * k
        embeddings = target.model.embed_tokens(batch.ids).float()
        with torch.autocast("cpu", torch.bfloat16, enabled=FAST_BF16):
            states = observe(target, draft.shape.layer_ids, batch.ids)
            logits = unroll(draft, states, embeddings, everywhere)
        guesses = torch.stack([kept[row.argmax(-1)].view(-1, n) for row in logits], -1)
        wanted = torch.stack([batch.ids[:, j + 2 : j + 2 + n] for j in range(k)], -1)
        right = (guesses == wanted).int().cumprod(-1).sum(-1)
        spans = zip(right, batch.begin.tolist(), batch.end.tolist(), strict=True)
        lengths += [row[begin - 1 : end - k - 2] for row, begin, end in spans]
    return shares_of_accepted([row.tolist() for row in lengths], k)


def new_draft(target: Any, kept: torch.Tensor, native: bool = False) -> DraftModel:
    """Begin with the target's last aux state and head, so that the first step is no guess."""
    config = target.config
    shape = DraftShape(
        vocab_size=config.vocab_size, draft_vocab_size=len(kept), hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size, num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
        layer_ids=NATIVE_LAYERS if native else LAYERS, post_norm=not native,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
    )  # fmt: skip
    draft = DraftModel(shape).train()
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head.weight[kept].float())
        draft.norm.weight.copy_(target.model.norm.weight.float())
        draft.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size)
        for norm in draft.fc_norm if draft.shape.post_norm else ():
            norm.weight.fill_(1.0)
    return draft


def orthogonal(gradient: torch.Tensor, coefficients: Any, steps: int, eps: float) -> torch.Tensor:
    """Orthogonalise as torch.optim.Muon (Newton-Schulz, quintic), but in float32, not bfloat16."""
    a, b, c = coefficients
    is_tall = gradient.shape[0] > gradient.shape[1]
    x = (gradient.T if is_tall else gradient) / gradient.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def save(draft: DraftModel, kept: torch.Tensor, out: Path) -> None:
    """Write the draft in its published format: two shards below 16 MiB, the head and the rest."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = bf16_tensors(draft) | vocabulary_map(kept, draft.shape.vocab_size)
    of_head = {name for name in tensors if name.startswith("lm_head") or name in ("d2t", "t2d")}
    index = {}
    for number, names in enumerate((of_head, tensors.keys() - of_head), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        index |= dict.fromkeys(sorted(names), file)
        save_file({name: tensors[name] for name in sorted(names)}, out / file, metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    written = {"metadata": {"total_size": size}, "weight_map": index}
    (out / "model.safetensors.index.json").write_text(json.dumps(written, indent=2) + "\n")
    config = draft_config(draft.shape, 2048) | {"bos_token_id": 1, "eos_token_id": 2}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(draft: DraftModel, folder: Path) -> torch.Tensor:
    """Read what `save` wrote, but `fc` of other layers; return the ids of the draft's vocabulary."""
    tensors = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
    weights = {name: t.float() for name, t in tensors.items() if name not in ("d2t", "t2d")}
    if weights["fc.weight"].shape != draft.fc.weight.shape:
        weights = {name: t for name, t in weights.items() if not name.startswith("fc")}
        weights["fc.weight"] = draft.fc.weight.detach()
    draft.load_state_dict(weights)
    kept: torch.Tensor = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    return kept


def main(
    rows: Annotated[Path, typer.Argument(help="Training rows, as examples.smollm2.rows writes them.")],
    out: Annotated[Path, typer.Option(help="Where the draft goes.")] = FOLDER / "draft",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the rows.")] = 3,
    start: Annotated[Path | None, typer.Option(help="A draft of this recipe to begin with.")] = None,
    stop: Annotated[int, typer.Option(help="Train so many steps of the passes only.")] = 10**9,
    native: Annotated[bool, typer.Option("--native", help="Three layers, no norm before fc.")] = False,
    seed: int = 0,
) -> None:
    """Train the draft; the same command goes on with a run that was stopped."""
    from transformers import AutoModelForCausalLM

    if not FAST_BF16:
        torch.optim._muon._zeropower_via_newtonschulz = orthogonal  # type: ignore[attr-defined]
    # Rows.
    torch.manual_seed(seed)
    trained, held_out = held_out_apart(read_rows(rows))
    answers = torch.cat([torch.tensor(row.ids[row.answer :]) for row in trained])
    # Target and draft.
    target = AutoModelForCausalLM.from_pretrained(fetch(FOLDER), dtype=DTYPE).eval()
    kept = most_frequent_ids(answers, target.config.vocab_size, DRAFT_VOCABULARY)
    draft = new_draft(target, kept, native)
    if start is not None:
        kept = load(draft, start)
    covered = torch.isin(answers, kept).float().mean().item()
    print(f"{len(trained)} rows, {len(answers)} answer tokens, of which the draft can say {covered:.1%}")
    optimizers = build_optimizers(draft, norm_learning_rate=PEAKS["norms"])
    optimizers[1].param_groups[0]["peak"] = PEAKS["tables"]  # the head begins as the target's
    out.mkdir(parents=True, exist_ok=True)
    states = TargetStates(target, draft.shape.layer_ids, trained, out / "states.bin")
    run = Run(out / "checkpoint.pt", draft, optimizers)
    plan = [
        index for epoch in range(epochs) for index in batches(trained, random.Random(f"{seed} {epoch}"))
    ]
    begun, shares = time.monotonic() - run.seconds, list[float]()
    # Steps: one chain step first, then two, then all.
    end = min(stop, len(plan))
    for step in range(run.step, end):
        progress = step / end
        steps = 1 if progress < 0.1 else 2 if progress < 0.3 else UNROLL
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group["peak"] * min(1.0, (step + 1) / 40) * max(0.02, 1 - progress)
        batch = collate(trained, plan[step])
        loss = loss_of(draft, target, kept, batch, states(batch), steps)
        update(draft, loss, optimizers)
        if (step + 1) % 100 == 0 or step + 1 == end:
            run.save(step + 1, time.monotonic() - begun)
            save(draft, kept, out)
            shares = acceptance(draft, target, kept, held_out, k=3)
            print(f"{run.seconds:.0f} s, step {step + 1} of {end}, loss {loss.item():.3f}, "
                  f"held out: {shares}, length {1 + sum(shares):.2f}", flush=True)  # fmt: skip
    # What is left with the draft: its report.
    report = {
        "rows": len(trained), "answer_tokens": len(answers),
        "covered_by_draft_vocabulary": round(covered, 4),
        "epochs": round(run.step / len(plan) * epochs, 2), "steps": run.step,
        "seconds": round(run.seconds), "processor": processor(),
        "threads": torch.get_num_threads(), "dtype": str(DTYPE).removeprefix("torch."),
        "held_out_acceptance": shares, "held_out_length": round(1 + sum(shares), 3),
    }  # fmt: skip
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")


class Run:
    """A training run that can be stopped: parameters, optimizers, and the step that comes next."""

    def __init__(
        self, path: Path, draft: DraftModel, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.path, self.draft, self.optimizers = path, draft, optimizers
        self.step, self.seconds = 0, 0.0
        if path.exists():
            read = torch.load(path)
            draft.load_state_dict(read["draft"])
            for optimizer, state in zip(optimizers, read["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.step, self.seconds = read["step"], read["seconds"]

    def save(self, step: int, seconds: float) -> None:
        """Write a checkpoint, whole or not at all."""
        self.step, self.seconds = step, seconds
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        written = {
            "draft": self.draft.state_dict(),
            "optimizers": states,
            "step": step,
            "seconds": seconds,
        }
        begun = self.path.with_suffix(".part")
        torch.save(written, begun)
        begun.rename(self.path)


if __name__ == "__main__":
    typer.run(main)
