"""The columns of docs/quantised_drafts.md that say how many bits a weight has and what a format saves,
of published drafts by their headers.

python -m tests.quantised_page           prints the tables
python -m tests.quantised_page --write   writes them into the page
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator

from tests.support.engine import ROOT
from tests.support.published import BYTES, Published, published

PAGE = ROOT / "docs/quantised_drafts.md"
_MIB = 2**20
_GROUP, _MX, _NV = 128, 32, 16  # columns that share a scale
Size = Callable[[int, int], float]  # rows and columns of a weight -> bytes of all that stands for it


def _whole(rows: int, columns: int) -> float:
    return 2 * rows * columns


def _per_tensor(rows: int, columns: int) -> float:
    """Scales of the weight and of its input."""
    return rows * columns + 8


def _per_row(bytes_: int) -> Size:
    return lambda rows, columns: rows * (columns + bytes_)


def _four_bits(of_a_group: float, of_a_column: int = 0) -> Size:
    """Scales have two bytes, zero points half a one."""
    return lambda rows, columns: (
        rows * (columns / 2 + of_a_group * math.ceil(columns / _GROUP)) + of_a_column * columns
    )


def _nvfp4(rows: int, columns: int) -> float:
    return rows * columns * (1 / 2 + 1 / _NV) + 8


# As the page's first column names them; rows of several formats are written by hand.
SIZES: dict[str, Size] = {
    "compressed-tensors W8A8 (int8)": _per_row(2),
    "compressed-tensors W4A16, symmetric, groups of 128": _four_bits(2),
    "compressed-tensors W4A16 with zero points": _four_bits(2.5),
    "compressed-tensors FP8, static or dynamic": _per_row(2),
    "compressed-tensors MXFP8": lambda rows, columns: rows * columns * (1 + 1 / _MX),
    "compressed-tensors NVFP4": _nvfp4,
    "compressed-tensors NVFP4A16": _nvfp4,
    "`fp8` of vLLM, static or dynamic": _per_tensor,
    "ModelOpt FP8": _per_tensor,
    "ModelOpt NVFP4": _nvfp4,
    "AWQ": _four_bits(2.5),
    "GPTQ": _four_bits(2.5, of_a_column=4),
    'online `"fp8_per_channel"` of a bf16 draft': _per_row(4),
    'online `"fp8_per_block"`': lambda rows, columns: rows * columns * (1 + 4 / _GROUP**2),
    'online `"int8_per_channel_weight_only"`, `"nvfp4_per_token"`': _whole,
}
# Of the second table, one for each number of bits.
SHOWN = {
    "W8A8, FP8": "compressed-tensors W8A8 (int8)",
    "MXFP8": "compressed-tensors MXFP8",
    "NVFP4": "compressed-tensors NVFP4",
    "AWQ, GPTQ": "AWQ",
    "W4A16": "compressed-tensors W4A16, symmetric, groups of 128",
}
FIRST = "redhat_qwen3_8b"  # of the first table
DRAFTS = {
    FIRST: "EAGLE-3", "torchspec_qwen3_8b_llama_gated": "gated EAGLE-3",
    "kimi_k2_5_mla": "EAGLE-3 with latent attention", "zlab_qwen3_6_27b": "DFlash",
    "zlab_qwen3_8_27b_dflash2": "DFlash2", "radixark_qwen3_8_27b_dspark": "DSpark",
}  # fmt: skip


def draft(slug: str) -> Published:
    return next(file for file in published() if file.slug == slug)


def projections(file: Published, *more: str) -> list[tuple[int, int]]:
    """Shapes of the weights that quantisers take: the linear ones inside layers, and modules of these
    names."""
    return [
        (shape[0], shape[1])
        for name, (_, shape) in file.tensors.items()
        if name.endswith(".weight")
        and len(shape) == 2
        and (re.search(r"layers?\.", name) or name.split(".")[-2] in more)
    ]


def plain(file: Published) -> dict[str, float]:
    """Part of the file that stays as it is -> bytes."""
    sizes: dict[str, float] = {}
    for name, (dtype, shape) in file.tensors.items():
        if len(shape) == 2 and re.search(r"layers?\.", name) and name.endswith(".weight"):
            continue
        parts = ("embed_tokens", "lm_head", "fc", "candidate_selector", "markov_head")
        part = next((part for part in parts if part in name.split(".")), "norms and the rest")
        sizes[part] = sizes.get(part, 0) + math.prod(shape) * BYTES[dtype]
    return sizes


def saved(file: Published, name: str) -> float:
    """By a format of `SIZES`; vLLM quantises fc as well while it loads a draft."""
    shapes = projections(file, *(["fc"] if name.startswith("online") else []))
    return sum(_whole(*shape) - SIZES[name](*shape) for shape in shapes)


def whole(file: Published) -> float:
    return sum(math.prod(shape) * BYTES[dtype] for dtype, shape in file.tensors.values())


def _bits(file: Published, size: Size) -> str:
    weights = sum(rows * columns for rows, columns in projections(file))
    bits = 8 * sum(size(*shape) for shape in projections(file)) / weights
    return f"{bits + 1e-6:.1f}".removesuffix(".0")  # 8.25 is 8.3


def first_table(text: str) -> list[str]:
    """Its rows, the last two columns computed where the first names a format of `SIZES`."""
    file = draft(FIRST)
    rows = []
    for row in text.splitlines():
        *kept, _, _ = cells = [cell.strip() for cell in row.strip("|").split("|")]
        if size := SIZES.get(cells[0]):
            cells = [*kept, _bits(file, size), _mib(saved(file, cells[0]))]
        rows.append(f"|{'|'.join(cells)}|" if set(cells[0]) != {"-"} else row)
    return rows


def second_table() -> Iterator[str]:
    heads = ["draft", "file", *SHOWN, "stays as it is"]
    yield f"|{'|'.join(heads)}|"
    yield f"|{'---|' * len(heads)}"
    for slug, kind in DRAFTS.items():
        file = draft(slug)
        savings = [_mib(saved(file, name)) for name in SHOWN.values()]
        rest = ", ".join(
            f"{_named(part)} {_mib(size)}" for part, size in plain(file).items() if size > _MIB
        )
        yield f"|{kind}, `{file.checkpoint}`|{_mib(whole(file))}|{'|'.join(savings)}|{rest}|"


def _named(part: str) -> str:
    return part if " " in part else f"`{part}`"


def _mib(size: float) -> str:
    return f"{size / _MIB:,.0f}"


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)


def block(name: str, text: str) -> str:
    match = _between(name).search(text)
    assert match, name
    return match[0]


def page(text: str) -> str:
    """With its two tables as they are computed."""
    first, second = first_table(block("formats", text)), second_table()
    for name, rows in (("formats", first), ("savings", second)):
        written = "\n".join(rows) + "\n"
        text = _between(name).sub(lambda _, new=written: new, text)  # type: ignore[misc]
    return text


def main() -> None:
    text = page(PAGE.read_text(encoding="utf-8"))
    print(block("formats", text), block("savings", text), sep="\n", end="")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
