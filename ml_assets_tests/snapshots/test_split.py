"""Splits: disjoint, complete, by key, whatever the window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.snapshots.spec import Split, SplitRefused, split_by_time

KEYS = st.lists(st.dates().map(str), unique=True, max_size=60).map(sorted)
SIZES = st.integers(1, 12)


@given(keys=KEYS, train=SIZES, validation=SIZES, holdout=SIZES)
def test_a_split_by_time_is_disjoint_complete_and_in_order(
    keys: list[str], train: int, validation: int, holdout: int
) -> None:
    needed = train + validation + holdout
    if len(keys) < needed:
        with pytest.raises(SplitRefused, match=f"need {needed} partitions; the window has {len(keys)}"):
            split_by_time(keys, train=train, validation=validation, holdout=holdout)
        return
    split = split_by_time(keys, train=train, validation=validation, holdout=holdout)
    assert list(split.keys) == keys[-needed:]  # complete, and each key once: `keys` are unique
    assert [len(split.train), len(split.validation), len(split.holdout)] == [train, validation, holdout]
    assert max(split.train) < min(split.validation)
    assert max(split.validation) < min(split.holdout)
    assert split.split_of == {
        **dict.fromkeys(split.train, "train"),
        **dict.fromkeys(split.validation, "validation"),
        **dict.fromkeys(split.holdout, "holdout"),
    }


@given(keys=st.lists(st.dates().map(str), unique=True, min_size=4, max_size=12), data=st.data())
def test_moving_one_key_changes_the_hash_and_naming_it_twice_is_refused(
    keys: list[str], data: st.DataObject
) -> None:
    split = Split(train=tuple(keys[:-2]), validation=(keys[-2],), holdout=(keys[-1],))
    same = Split(train=tuple(keys[:-2]), validation=(keys[-2],), holdout=(keys[-1],))
    moved = data.draw(st.sampled_from(keys[:-2]))
    rest = tuple(key for key in split.train if key != moved)
    other = Split(train=rest, validation=(*split.validation, moved), holdout=split.holdout)
    assert split.config_hash == same.config_hash != other.config_hash
    with pytest.raises(SplitRefused, match="listed twice"):
        Split(train=split.train, validation=(*split.validation, moved), holdout=split.holdout)


def test_a_split_without_partitions_is_refused() -> None:
    with pytest.raises(SplitRefused, match=r"validation .*0 partitions"):
        split_by_time(["2024-01-01", "2024-01-02"], train=1, validation=0, holdout=1)
    with pytest.raises(SplitRefused, match=r"holdout .*no partition"):
        Split(train=("2024-01-01",), validation=("2024-01-02",), holdout=())
