"""pytest plugin, loaded before Django's settings: without DATABASE_URL or REDIS_URL a test run gets servers of its own.

They start at the first test that needs them, in a temporary data folder, and die with the test run, whatever ends it.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path

from controlplane.embedded.folders import remove_folder
from controlplane.embedded.paths import DataFolder

OWN_DATABASE = not (os.environ.get("DATABASE_URL") or os.environ.get("DATABASE_URL_FILE"))
OWN_REDIS = not (os.environ.get("REDIS_URL") or os.environ.get("REDIS_URL_FILE"))

os.environ["BRIGADE_DATABASE_ROLE"] = "owner"  # makes the test database; a test takes another role with `as_role`
if "BRIGADE_DATA" not in os.environ:
    folder = tempfile.mkdtemp(prefix="brigade-tests-")
    os.environ["BRIGADE_DATA"] = folder
    atexit.register(remove_folder, Path(folder))
    atexit.register(remove_folder, DataFolder(Path(folder)).sockets)

DATA = DataFolder(Path(os.environ["BRIGADE_DATA"]).absolute())
