"""Alembic's entry: runs migrations on the connection that `profiles_db.migrations` hands over."""

from alembic import context

from profiles_db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
