"""Fixtures of the tests of kept metrics: those of the SQL tests."""

from tests.sql.conftest import new_lake

__all__ = ["new_lake"]
