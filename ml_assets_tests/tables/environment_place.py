"""An installation with the table of orders on main and in environments, for tests on any lake and ledger."""

from ml_assets.data.tables.environments import create_environment
from ml_assets_tests.tables.orders_table import OrdersTable, days
from resources.platform import Platform


class Place:
    """An installation with two days of orders on main, and the environments that a test enters."""

    def __init__(self, main: Platform) -> None:
        self.main = main
        self.orders = _table(self.main)
        self.orders.publish(days(2))

    def enter(self, name: str = "try_it") -> OrdersTable:
        """Create an environment and return its table."""
        create_environment(self.main, name, "ada")
        return self.table(name)

    def table(self, name: str = "try_it") -> OrdersTable:
        """Return the table as another process in the environment opens it."""
        return _table(self.main.inside(name))


def _table(platform: Platform) -> OrdersTable:
    platform.settings.own_home.mkdir(parents=True, exist_ok=True)
    orders = OrdersTable(platform.settings.own_home, platform.lake)
    orders.ledger = platform.ledger
    return orders
