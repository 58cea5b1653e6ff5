"""Offsets in the lake against the topic as it is now: what another topic, lost messages and another declaration say."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ml_assets.data.sources.protocol import SourceRefused
from ml_assets.extras.streams.kafka_log import (
    LandingRules,
    PartitionProgress,
    StreamState,
    require_same_topic,
)
from ml_assets.extras.streams.kafka_topic import MessagesLost, TopicFacts, TopicRecreated

RULES = LandingRules(
    topic="sales", generation=2, lateness=timedelta(hours=1), reopened=timedelta(days=7), future=None
)
STATE = StreamState(topic="sales", topic_id="a", generation=2, partitions={0: PartitionProgress(5, 5)})
TOPIC = TopicFacts("a", {0: (0, 9)})


@pytest.mark.parametrize(
    ("state", "topic"),
    [
        pytest.param(None, TOPIC, id="nothing was read"),
        pytest.param(STATE, TOPIC, id="more came"),
        pytest.param(STATE, TopicFacts("a", {0: (5, 5)}), id="all that was read is deleted"),
        pytest.param(STATE, TopicFacts("a", {0: (0, 9), 1: (0, 9)}), id="a partition was added"),
        pytest.param(STATE, replace(TOPIC, id=""), id="the broker does not tell the identity"),
        pytest.param(
            replace(STATE, generation=1), TopicFacts("b", {0: (7, 7)}), id="another generation begins"
        ),
    ],
)
def test_reading_goes_on_where_the_offsets_fit(state: StreamState | None, topic: TopicFacts) -> None:
    require_same_topic("datasets/sales", RULES, state, topic)


@pytest.mark.parametrize(
    ("rules", "topic", "error", "said"),
    [
        (RULES, replace(TOPIC, id="b"), TopicRecreated, "deleted and made again: set source.generation: 3"),
        (RULES, TopicFacts("a", {0: (0, 4)}), TopicRecreated, "no longer reaches offset 5 of partition 0"),
        (RULES, TopicFacts("a", {1: (0, 9)}), TopicRecreated, "no longer reaches offset 5 of partition 0"),
        (RULES, TopicFacts("a", {0: (7, 9)}), MessagesLost, "deleted the offsets 5 to 6 of partition 0"),
        (
            replace(RULES, topic="orders"),
            TOPIC,
            TopicRecreated,
            "topic sales, not of orders: to go on with the other topic, set source.generation: 3",
        ),
        (replace(RULES, generation=1), TOPIC, SourceRefused, "write source.generation: 2"),
    ],
)
def test_offsets_of_another_topic_name_the_remedy(
    rules: LandingRules, topic: TopicFacts, error: type[SourceRefused], said: str
) -> None:
    with pytest.raises(error, match=said):
        require_same_topic("datasets/sales", rules, STATE, topic)
