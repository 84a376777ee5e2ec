"""Change or delete rows with one statement, and hear how many they were."""

from sqlalchemy import CursorResult, Delete, Update
from sqlalchemy.orm import Session


def num_changed(session: Session, statement: Update | Delete) -> int:
    """Run a statement; rows that the session holds already are not brought up to date."""
    done = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(done, CursorResult)
    return done.rowcount
