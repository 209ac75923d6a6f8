"""The sites of the lake that the outputs of projections are, by component.

pico-train captures what modules put out and pico-analyze names modules; the importer files such
activations under these sites, and the analysis finds them there.
"""

from __future__ import annotations

OUTPUT_SITES = {"q": "q", "k": "k", "v": "v", "o": "attn.out", "down": "mlp.out"}
"""Component of a projection: the site that its output is; other modules have `<module>.out`."""
