"""Assertions of the checks that tests share tell what they compared."""

import pytest

pytest.register_assert_rewrite("support.real.api_checks")
