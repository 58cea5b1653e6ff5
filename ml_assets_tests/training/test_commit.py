"""Choice of the checkpoints that stay."""

from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.training.checkpoint.checkpoints import kept

BEST_STEPS = st.dictionaries(st.integers(1, 99), st.integers(0, 99), max_size=20).map(
    lambda there: {step: best if best in there and best <= step else 0 for step, best in there.items()}
)


@given(best_steps=BEST_STEPS, keep=st.integers(2, 5), began_from=st.integers(0, 99))
def test_the_newest_checkpoints_stay_with_the_best_that_they_name(
    best_steps: dict[int, int], keep: int, began_from: int
) -> None:
    """The checkpoint that the attempt began from stays too."""
    stay = kept(best_steps, keep, began_from)
    newest = sorted(best_steps)[-keep:]
    assert set(newest) <= stay <= best_steps.keys()
    assert all(best_steps[step] in stay for step in newest if best_steps[step])
    assert (began_from in stay) >= (began_from in best_steps)
    assert len(stay) <= 2 * keep + 1  # a training that goes on for ever fills no disk
