from alembic import context

from eval_pipeline.store.database import VERSION_TABLE
from eval_pipeline.store.schema import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
)
context.run_migrations()
