"""Creates the first schema: secrets, accounts, audit log, devices, labels, gateways."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SORTED = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Create all tables of the first schema."""
    _create_secret_table()
    _create_account_tables()
    _create_audit_table()
    _create_device_tables()
    _create_label_tables()
    _create_gateway_table()
    _create_name_index()


def _create_secret_table() -> None:
    op.create_table(
        "secret",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_secret")),
    )


def _create_account_tables() -> None:
    op.create_table(
        "account",
        sa.Column("username", _SORTED, nullable=False),
        sa.Column("password", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_login_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("username", name=op.f("pk_account")),
    )
    op.create_table(
        "session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("username", _SORTED, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["username"], ["account.username"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
    )
    op.create_index(op.f("ix_session_expires_at"), "session", ["expires_at"])
    op.create_index(op.f("ix_session_username"), "session", ["username"])
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", _SORTED, nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("hash"),
        sa.UniqueConstraint("name"),
    )


def _create_audit_table() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_actor_id"), "audit", ["actor", "id"])
    op.create_index(op.f("ix_audit_target_id"), "audit", ["target", "id"])


def _create_device_tables() -> None:
    op.create_table(
        "device",
        sa.Column("id", _KEY, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_key", _SORTED, nullable=False),
        sa.Column("named", sa.Boolean(), nullable=False),
        sa.Column("model", sa.Integer(), nullable=False),
        sa.Column("variant", sa.SmallInteger(), nullable=False),
        sa.Column("firmware", _SORTED, nullable=False),
        sa.Column("beta", sa.SmallInteger(), nullable=False),
        sa.Column("hardware", _SORTED, nullable=False),
        sa.Column("imei", sa.Text(), nullable=True),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("connected_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
    )
    op.create_index(
        "ix_device_by_connectivity",
        "device",
        ["connected", "connected_at", "id", "model", "firmware", "hardware"],
    )
    op.create_index(
        "ix_device_by_name", "device", ["name_key", "id", "model", "firmware", "hardware", "connected"]
    )
    op.create_index(op.f("ix_device_connected_id"), "device", ["connected", "id"])
    op.create_index(op.f("ix_device_firmware_hardware_id"), "device", ["firmware", "hardware", "id"])
    op.create_index(op.f("ix_device_firmware_id"), "device", ["firmware", "id"])
    op.create_index(op.f("ix_device_gateway_id"), "device", ["gateway", "id"])
    op.create_index(op.f("ix_device_hardware_id"), "device", ["hardware", "id"])
    op.create_index(op.f("ix_device_model_firmware_id"), "device", ["model", "firmware", "id"])
    op.create_index(op.f("ix_device_model_hardware_id"), "device", ["model", "hardware", "id"])
    op.create_index(op.f("ix_device_model_id"), "device", ["model", "id"])
    op.create_table(
        "device_state",
        sa.Column("device", _KEY, autoincrement=False, nullable=False),
        sa.Column("reported_at", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("boot_mode", sa.Text(), nullable=True),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("rssi", sa.SmallInteger(), nullable=True),
        sa.Column("battery", sa.SmallInteger(), nullable=True),
        sa.ForeignKeyConstraint(["device"], ["device.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_state")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("ix_device_initial", "device", [sa.text("substr(name_key, 1, 1)"), "id"])
    op.create_index("ix_device_initials", "device", [sa.text("substr(name_key, 1, 2)"), "id"])


def _create_label_tables() -> None:
    op.create_table(
        "label",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("text", _SORTED, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_label")),
        sa.UniqueConstraint("text"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "device_label",
        sa.Column("label", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["device.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["label"], ["label.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("label", "device", name=op.f("pk_device_label")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_device_label_device_label"), "device_label", ["device", "label"])


def _create_gateway_table() -> None:
    op.create_table(
        "gateway",
        sa.Column("device", _KEY, autoincrement=False, nullable=False),
        sa.Column("password", sa.LargeBinary(), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=False),
        sa.Column("api_version", sa.Text(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["device"],
            ["device.id"],
        ),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_gateway")),
    )


def _create_name_index() -> None:
    """Create the trigram index for substring searches in device names, in the form of each database."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        op.execute("CREATE INDEX ix_device_name_trigrams ON device USING gin (name_key gin_trgm_ops)")
        return
    op.execute(
        "CREATE VIRTUAL TABLE device_name USING fts5("
        "name_key, content = 'device', content_rowid = 'id', columnsize = 0,"
        " tokenize = 'trigram case_sensitive 1')"
    )
