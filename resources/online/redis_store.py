"""Online store on a Redis server, version 6 or newer.

A row is a hash with the fields `event`, `known` and `content`. A Lua script compares and writes: Redis runs it as one
step, so of two writers the newer row stays. A script has one key, so a cluster of Redis can run it, too. A restarted
server has forgotten the script; then the client sends it again.

Import this late: the extra `redis` brings the client.
"""

# pyright: reportUnknownMemberType=false
# (arguments of `from_url` have no types)

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import redis
from redis import exceptions
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from resources.addresses import Address
from resources.online import (
    OnlineRow,
    OnlineStoreError,
    OnlineStoreRefused,
    OnlineStoreUnavailable,
    require_moments,
)

Answer = TypeVar("Answer")

_ROWS_AT_ONCE = 1_000
"""Rows that are sent at once."""
_FIELDS = ("event", "known", "content")
_WRITE = """
local held = redis.call('HMGET', KEYS[1], 'event', 'known')
if held[1] then
  local event, known = tonumber(held[1]), tonumber(held[2])
  local new = tonumber(ARGV[1])
  if event > new or (event == new and known > tonumber(ARGV[2])) then return 0 end
end
redis.call('HSET', KEYS[1], 'event', ARGV[1], 'known', ARGV[2], 'content', ARGV[3])
if ARGV[4] == '' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIREAT', KEYS[1], ARGV[4]) end
return 1
"""


class RedisOnlineStore:
    """Online store on the server at an address `redis://…` or `rediss://…`."""

    def __init__(self, address: Address, *, environment: str, patience_seconds: float = 2.0) -> None:
        """Use the server at `address` at the first call. A call waits `patience_seconds` for an answer, three times."""
        self._address = address
        self._environment = environment
        self._patience = patience_seconds

    @property
    def place(self) -> str:
        """The address, without credentials."""
        return str(self._address)

    def write(self, table: str, rows: Iterable[OnlineRow], ttl_us: int | None) -> int:
        """Store each row whose entity has no newer one. See `OnlineStore.write`."""
        rest, written = iter(rows), 0
        while chunk := list(islice(rest, _ROWS_AT_ONCE)):
            for row in chunk:
                require_moments(row)
            written += self._call(lambda chunk=chunk: self._write(table, chunk, ttl_us))
        return written

    def read(self, table: str, entities: Sequence[str]) -> list[OnlineRow | None]:
        """Return the row of each entity. See `OnlineStore.read`."""
        return self._call(lambda: self._read(table, entities))

    def _write(self, table: str, rows: Sequence[OnlineRow], ttl_us: int | None) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for row in rows:
            expires: int | str = "" if ttl_us is None else (row.event_us + ttl_us) // 1_000
            values = [row.event_us, row.known_us, row.content, expires]
            self._script(keys=[self._key(table, row.entity)], args=values, client=pipeline)
        return sum(pipeline.execute())

    def _read(self, table: str, entities: Sequence[str]) -> list[OnlineRow | None]:
        keys = [self._key(table, entity) for entity in entities]
        answers: list[list[bytes | None]]
        if len(keys) == 1:
            answers = [self._client.hmget(keys[0], _FIELDS)]
        else:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(key, _FIELDS)
            answers = pipeline.execute()
        return [
            None
            if event is None or known is None or content is None
            else OnlineRow(entity=entity, event_us=int(event), known_us=int(known), content=content)
            for entity, (event, known, content) in zip(entities, answers, strict=True)
        ]

    def _key(self, table: str, entity: str) -> str:
        return f"ml_assets:{self._environment}:{table}:{entity}"

    def _call(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except OnlineStoreError:
            raise
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise self._refused(error) from error
        except (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            exceptions.ReadOnlyError,
            OSError,
        ) as error:
            raise OnlineStoreUnavailable(
                f"the online store {self._address} does not answer: {self._address.hide_in(str(error))}. Check that "
                "Redis runs there (redis-cli ping) and ML_ASSETS_ONLINE_URL; then repeat the command"
            ) from error
        except (exceptions.RedisError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> OnlineStoreRefused:
        return OnlineStoreRefused(
            f"the online store {self._address} refuses the call: {self._address.hide_in(str(error))}. Check the user, "
            "the rights and the memory limit of the server, and ML_ASSETS_ONLINE_URL"
        )

    @cached_property
    def _client(self) -> Any:
        return redis.Redis.from_url(
            self._address.reveal(),
            socket_timeout=self._patience,
            socket_connect_timeout=self._patience,
            health_check_interval=30,
            retry=Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.5), 2),
        )

    @cached_property
    def _script(self) -> Any:
        return self._client.register_script(_WRITE)
