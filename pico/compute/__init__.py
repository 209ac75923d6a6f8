"""Metrics of stored tensors, computed once and kept in the table `metrics`.

`materialize.compute` is the way in. `asked` reads what is asked for; `stored` and `missing` find
what the lake lacks, from keys and hashes alone (`equals`: the same tensor elsewhere, `covers`: what
the log says was done, `pairs`: what is compared with what); `tasks` cuts the work for any engine;
`stale` drops rows whose tensors are gone; `summary` tells. Nothing here imports torch or knows SQL.
"""

from pico.compute.materialize import compute
from pico.compute.summary import Summary

__all__ = ["Summary", "compute"]
