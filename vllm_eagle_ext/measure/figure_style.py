# SPDX-License-Identifier: Apache-2.0
"""How the pictures of the commands look."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito: told apart by colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"  # no draft
_LETTERS = 10  # of a title, per inch
STYLE: Any = {  # of rcParams
    "axes.grid": True, "grid.color": "#E4E4E4", "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "font.size": 10, "axes.titlesize": 11, "legend.frameon": False,
    "legend.fontsize": 9, "figure.dpi": 110,
}  # fmt: skip


def new_figure(title: str, device: str, *, width: float, height: float) -> Figure:
    """Make a figure that needs no display; `device` goes below the title. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}\n{textwrap.fill(device, int(_LETTERS * width))}", fontsize=12)
    return figure
