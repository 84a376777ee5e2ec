import pytest

from profiles_db import migrations
from profiles_db.engine import Database


@pytest.fixture
def database(database_url: str):
    database = Database(database_url)
    migrations.upgrade(database)
    yield database
    database.close()
