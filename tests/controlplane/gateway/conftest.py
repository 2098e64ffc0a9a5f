from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_django
from django.core.management import call_command
from django.db import connection


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """As everywhere, but emptied once at the module's end: a flush takes longer than most tests here."""
    with django_db_blocker.unblock():
        yield
        assert str(connection.settings_dict["NAME"]).startswith("test_")
        call_command("flush", interactive=False, verbosity=0)
        connection.close()
