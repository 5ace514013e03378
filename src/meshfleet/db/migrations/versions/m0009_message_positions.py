"""Changes the key of queued MQTT messages from the packet id to the position in the queue.

With this key, more than 65,535 messages can be queued: the packet id is position % 65535 + 1. Existing rows
keep their order and their packet ids. Packet ids were counted up and started again at 1 after 65,535.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

REWRITTEN_TABLE = "broker_message"

_COPY = """
INSERT INTO broker_message (session, position, topic, payload, retain, until)
SELECT session, packet_id - 1 + 65535 * SUM(begins_again) OVER (PARTITION BY session ORDER BY place),
    topic, payload, retain, until
FROM (
    SELECT *, CASE WHEN packet_id <= LAG(packet_id, 1, 0) OVER (PARTITION BY session ORDER BY place)
        THEN 1 ELSE 0 END AS begins_again
    FROM broker_message_by_id
) AS numbered
"""


def upgrade() -> None:
    """Create the table of queued messages with the new key, and copy the rows of the old table."""
    op.rename_table("broker_message", "broker_message_by_id")
    if (
        op.get_bind().dialect.name == "postgresql"
    ):  # the names of its constraints must be free for the new table
        for name in ("pk_broker_message", "broker_message_session_fkey"):
            op.drop_constraint(name, "broker_message_by_id")
    op.create_table(
        "broker_message",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("retain", sa.Boolean(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["session"], ["broker_session.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session", "position", name=op.f("pk_broker_message")),
    )
    op.execute(_COPY)
    op.drop_table("broker_message_by_id")
