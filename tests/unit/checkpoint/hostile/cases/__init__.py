"""Every way to break a good draft; a module registers its own when it is imported."""

from tests.unit.checkpoint.hostile.breaks import REFUSED, SERVED
from tests.unit.checkpoint.hostile.cases import bounded, config, headers, index, lengths, links, ranges

__all__ = ["REFUSED", "SERVED", "bounded", "config", "headers", "index", "lengths", "links", "ranges"]
