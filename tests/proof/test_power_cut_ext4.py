"""Proof: on a real file system, a power cut takes nothing that was acknowledged."""

from __future__ import annotations

import pytest

from tests.proof.mounts import needs_mounts, run_privately


@pytest.mark.proof
@needs_mounts
def test_a_power_cut_on_ext4_loses_nothing_that_was_acknowledged() -> None:
    """An image copied under a stopped writer, mounted and recovered, has every acked entry."""
    run_privately("tests.proof.ext4_power_cuts")
