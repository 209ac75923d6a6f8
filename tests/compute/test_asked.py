"""What can be asked for by name, and what is said of everything else."""

from __future__ import annotations

import pytest

from pico.compute.asked import Reference, choose
from pico.errors import MetricError
from pico.metrics import registry

LAST = Reference(None, "last")


def test_all_metrics_of_one_tensor_are_the_default() -> None:
    singles, pairs = choose(None, None)
    names = {asked.metric.name for asked in singles}
    wanted = {n for n in registry.names() if registry.get(n).kind != "pair"}
    assert names == {n for n in wanted if not registry.get(n).on_request}
    assert not pairs


def test_names_stand_alone_after_commas_and_with_arguments() -> None:
    singles, pairs = choose(["gini, per", "gini", "subspace_overlap(k=2),cka"], LAST)
    assert [asked.label[:2] for asked in singles] == [("gini", None), ("per", None)]
    assert [asked.label[:2] for asked in pairs] == [
        ("subspace_overlap", '{"k": 2}'),
        ("cka", None),
    ]
    assert choose("gini,per", None) == choose(["gini", "per"], None)


def test_an_argument_that_is_the_default_is_none() -> None:
    _, pairs = choose(["svcca(variance=0.99)", "cka_rbf(bandwidth=2)", "subspace_overlap()"], LAST)
    assert [asked.label[1] for asked in pairs] == [None, '{"bandwidth": 2.0}', None]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("ginni", "no metric 'ginni'. Did you mean 'gini'"),
        ("gini(", "'gini\\(' names no metric"),
        ("", "'' names no metric"),
        ("subspace_overlap(l=2)", "has no argument 'l'.*It has: k"),
        ("gini(k=2)", "'gini' has no argument 'k'. It has: none"),
        ("subspace_overlap(k=two)", "takes a number, not 'two'"),
        ("subspace_overlap(k=2.5)", "takes a whole number, not '2.5'"),
        ("subspace_overlap(k)", "takes a number, not ''"),
        ("gini,induction_score", "about attention heads, not about one tensor: pico probe RUN"),
        ("gini", "a reference is for metrics of two tensors; name some of: cka, "),
    ],
)
def test_what_cannot_be_asked_is_refused(names: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        choose(names, LAST)


def test_two_tensors_need_a_reference() -> None:
    with pytest.raises(MetricError, match=r"'cka' compares two tensors; .*--reference-step last"):
        choose("gini,cka", None)


def test_references() -> None:
    assert Reference.of(None, None) is None
    assert Reference.of(None, "12") == Reference.of(None, 12) == Reference(None, 12)
    assert Reference.of("first", None) == Reference("first", None)
    assert Reference.of("first", "last") == Reference("first", "last")
    for wrong in ("first", -1, "1.5", True):
        with pytest.raises(MetricError, match="a reference step is a number or last"):
            Reference.of(None, wrong)
