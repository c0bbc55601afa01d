from pathlib import Path

import pytest

from eval_pipeline.sandbox.local import hostlayer, layers
from eval_pipeline.sandbox.local.places import Places, prepare


@pytest.fixture
def places(state_dir: Path) -> Places:
    return prepare(state_dir)


def found(places: Places) -> Path | None:
    return layers.find(places.layers, hostlayer.key(places, None))


@pytest.mark.slow
def test_the_layer_is_built_ahead_by_another_process(places: Places, state_dir: Path) -> None:
    assert found(places) is None
    with hostlayer.built_ahead(state_dir):
        pass
    assert found(places) is not None


@pytest.mark.slow
def test_who_comes_before_it_is_whole_gets_the_same_layer(places: Places, state_dir: Path) -> None:
    with hostlayer.built_ahead(state_dir):
        built = hostlayer.build(places, None)
        node = built.stat().st_ino
    assert found(places) == built
    assert built.stat().st_ino == node
    with hostlayer.built_ahead(state_dir):  # nothing is left to do
        assert built.stat().st_ino == node
