"""Where checkpoints for tests are: the embedded one, and the small trained one that may be beside the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
TINY = ROOT / "src/moesaic/models/data/tiny"
SMALL = ROOT.parent / "shared/models/small"
