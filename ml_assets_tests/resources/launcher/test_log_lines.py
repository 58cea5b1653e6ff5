"""Each line of a log appears once, even if a new connection repeats it; of many pods, only some logs are read."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ml_assets_tests.resources.launcher.pod_documents import ended, pod, unscheduled
from resources.launcher.kubernetes.output import FAILED, FOLLOWED, OVERLAP_SECONDS, Lines, worth_reading
from resources.launcher.kubernetes.pod_state import Pod

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
    said = "unable to retrieve container logs for containerd://f79f"
    assert Lines().new(said) is None


def test_of_a_thousand_pods_the_first_are_read_and_some_that_failed() -> None:
    runs = [Pod.of(pod(index, state={"running": {}})) for index in range(1000)]
    first = worth_reading(runs, ())
    assert [one.index for one in first] == list(range(FOLLOWED))
    read = {one.uid for one in first}
    assert worth_reading(runs, read) == []

    two = [*runs[:998], *(Pod.of(ended(index, 1)) for index in (998, 999))]
    assert [one.index for one in worth_reading(two, read)] == [998, 999]
    read |= {two[998].uid, two[999].uid}
    all_ended = [Pod.of(ended(index, 1)) for index in range(1000)]
    more = worth_reading(all_ended, read)
    assert len(more) == FAILED - 2
    assert not {one.uid for one in more} & read


def test_a_pod_that_has_not_begun_has_no_log() -> None:
    assert worth_reading([Pod.of(unscheduled("0/2 nodes are available"))], ()) == []
