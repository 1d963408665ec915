"""Pictures of chained attention: what they show, and that matplotlib draws them where it is installed."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.latent import drawing

latent = ta.latent
ROW = ([0, 1, 2], [1, 2, 0], 0, 2)


@pytest.fixture
def model():
    """Each symbol chooses itself as a key, so that 0 leads to 1 and 1 to 2."""
    return latent.ChainedAttentionDistribution(np.eye(3)[[[0, 1, 2]] * 2], np.eye(3) * 0.97 + 0.01)


def test_panels_of_an_observation_show_its_attention_and_path(model):
    first, second = drawing.attention_panels(model, ROW, symbols="abc")
    np.testing.assert_array_equal(first.values, [model.attention(ROW).first])
    np.testing.assert_array_equal(second.values, model.attention(ROW).later[0])
    assert (first.title, first.rows, first.columns) == ("hop 1", ("a",), ("a→b", "b→c", "c→a"))
    assert second.rows == second.columns == first.columns
    assert first.marked == (0, 0)
    assert second.marked == (0, 1)


def test_panels_of_key_tables_are_shares(model):
    panels = drawing.key_panels(model)
    assert [panel.title for panel in panels] == ["hop 1", "hop 2"]
    for panel in panels:
        np.testing.assert_allclose(panel.values.sum(axis=1), 1)
        np.testing.assert_array_equal(panel.values.argmax(axis=1), [0, 1, 2])
        assert panel.rows == panel.columns == ("0", "1", "2")


@pytest.mark.parametrize("draw", ["draw_attention", "draw_keys"])
def test_matplotlib_draws_or_is_asked_for(model, draw, tmp_path):
    call = getattr(latent, draw)
    arguments = (model, ROW, "abc") if draw == "draw_attention" else (model, "abc")
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(ImportError, match=re.escape("pip install 'tensorattn[plot]'")):
            call(*arguments)
        return
    figure = call(*arguments)
    axes = figure.axes[:2]
    assert [axis.get_title(loc="left") for axis in axes] == ["hop 1", "hop 2"]
    panels = drawing.attention_panels(*arguments) if draw == "draw_attention" else drawing.key_panels(*arguments)
    for axis, panel in zip(axes, panels, strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), panel.values)
        assert [label.get_text() for label in axis.get_xticklabels()] == list(panel.columns)
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
