"""Each line of a log once, whatever a new connection tells again."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from resources.launcher.kubernetes.logs import OVERLAP_SECONDS, Lines

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def stamped(seconds: float, text: str) -> str:
    return f"{(START + timedelta(seconds=seconds)).strftime('%Y-%m-%dT%H:%M:%S.%f')}123Z {text}"


def read(lines: Lines, log: list[str]) -> list[str]:
    return [text for line in log if (text := lines.new(line)) is not None]


@given(
    gaps=st.lists(st.floats(min_value=-0.01, max_value=8), min_size=1, max_size=60),
    cuts=st.lists(st.integers(min_value=0, max_value=60), max_size=6),
)
def test_a_log_read_in_pieces_is_the_log(gaps: list[float], cuts: list[int]) -> None:
    """Two streams of one container may write their stamps a little out of order: gaps below zero."""
    moments = [sum(gaps[: end + 1]) for end in range(len(gaps))]
    log = [stamped(moment, f"line {number}") for number, moment in enumerate(moments)]
    lines, told, at = Lines(), [], 0
    for cut in [*sorted(cuts), len(log)]:
        reached = START + timedelta(seconds=max(moments[:cut], default=0))
        since = lines.since_seconds(reached)
        begin = timedelta.min if since is None else reached - START - timedelta(seconds=since)
        told += read(
            lines,
            [
                line
                for line, moment in zip(log[:cut], moments, strict=False)
                if timedelta(seconds=moment) >= begin
            ],
        )
        at = cut
    assert at == len(log)
    assert told == [f"line {number}" for number in range(len(log))]


def test_equal_texts_at_different_moments_are_different_lines() -> None:
    lines = Lines()
    assert read(lines, [stamped(1, "same"), stamped(1.5, "same"), stamped(1, "same")]) == ["same", "same"]


def test_a_new_connection_begins_before_what_was_read_last() -> None:
    lines = Lines()
    assert lines.since_seconds(START) is None
    read(lines, [stamped(0, "a")])
    assert lines.since_seconds(START + timedelta(seconds=3)) == 3 + OVERLAP_SECONDS


def test_what_the_kubelet_says_about_the_log_is_no_line_of_it() -> None:
    assert Lines().new("unable to retrieve container logs for containerd://f79f") is None
