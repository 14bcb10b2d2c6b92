"""Deliberate faults: each breaks one promise, and the tests named with it must fail.

`tests.proof.mutation` describes how a fault is written; `tests/proof/test_mutants.py` runs them.
"""

from __future__ import annotations

from hashlib import sha256

from tests.proof.mutants import admission, chain, engine, hostile, http, lake, serve, wal
from tests.proof.mutation import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *wal.MUTANTS,
    *engine.MUTANTS,
    *chain.MUTANTS,
    *lake.MUTANTS,
    *serve.MUTANTS,
    *admission.MUTANTS,
    *hostile.MUTANTS,
    *http.MUTANTS,
)

AFFORDABLE_SECONDS = 15
"""What the tests of a mutant may take to be part of the rotation."""


def affordable() -> list[Mutant]:
    """Return the mutants whose tests take a short time, in an order that mixes subjects."""
    short = [mutant for mutant in MUTANTS if mutant.seconds <= AFFORDABLE_SECONDS]
    return sorted(short, key=lambda mutant: sha256(mutant.name.encode()).digest())


def choose(seed: int, count: int) -> list[Mutant]:
    """Return the affordable mutants of a seed; consecutive seeds visit all of them in turn."""
    order = affordable()
    first = seed * count % len(order)
    return [*order[first:], *order[:first]][:count]
