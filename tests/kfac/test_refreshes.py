"""In which steps there are new moments and inverses, beside a model of what is said of it."""

import chainer
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.kfac.refreshes import INVERSES, MOMENTS, PLAIN, Refreshes
from tests.cases import tries

LATER = 8


def expected(moments_every, inverses_every, events):
    """Returns the kind of each step, from the whole history anew at each.

    Args:
        moments_every, inverses_every: as of :class:`Refreshes`.
        events: list of what happens: whether a step was skipped, or ``None`` for a restart.
    """
    kinds, history, restarted = [], [], 0  # (kind, skipped) of each step; steps since a restart are known of
    made_up = set()  # numbers of skipped steps whose like was had again
    for event in events:
        now = len(history)
        if event is None:
            restarted = now
            continue
        seen = range(restarted, max(now - LATER + 1, restarted))
        is_known = any(history[step][0] != PLAIN and not history[step][1] for step in seen)
        lost = {step for step in range(max(now - LATER + 1, 0)) if history[step][0] != PLAIN and history[step][1]}
        kinds_lost = [history[step][0] for step in lost - made_up if step in seen]
        if not is_known or now % inverses_every == 0:
            kind = INVERSES
        else:
            kind = max([PLAIN if now % moments_every else MOMENTS, *kinds_lost])
        if kind != PLAIN:
            made_up |= lost
        kinds.append(kind)
        history.append((kind, event))
    return kinds


def observed(refreshes, events):
    kinds = []
    for event in events:
        if event is None:
            refreshes.restart()
        else:
            kinds.append(refreshes.kind)
            refreshes.over(event)
    return kinds


periods = st.tuples(st.integers(1, 5), st.integers(1, 4)).map(lambda pair: (pair[0], pair[0] * pair[1]))
outcomes = [False, False, False, True, np.bool_(True), np.array(False)]
histories = st.lists(st.sampled_from(outcomes), max_size=50)


@settings(max_examples=tries(300))
@given(every=periods, events=st.lists(st.sampled_from([*outcomes, *outcomes, None]), max_size=60))
def test_kinds_of_steps(every, events):
    assert observed(Refreshes(*every), events) == expected(*every, events)


@settings(max_examples=tries(100))
@given(every=periods, before=histories, after=histories)
def test_a_file_in_the_middle_changes_nothing(every, before, after):
    refreshes, loaded = Refreshes(*every), Refreshes(*every)
    observed(refreshes, before)
    observed(loaded, [False] * 3)
    saved = chainer.serializers.DictionarySerializer()
    refreshes.serialize(saved, False)
    deserializer = chainer.serializers.NpzDeserializer(
        {name: np.asarray(value) for name, value in saved.target.items()}
    )
    loaded.serialize(deserializer, True)
    assert observed(loaded, after) == observed(refreshes, after)


def test_what_was_skipped_is_read_as_it_was():
    """An array may be written to after the step."""
    refreshes, skipped = Refreshes(2, 4), np.array(True)
    refreshes.over(skipped)
    skipped.fill(False)
    for _ in range(20):
        assert refreshes.kind == INVERSES
        refreshes.over(True)
