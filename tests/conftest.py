import os

os.environ.setdefault("BRIGADE_DATABASE_ROLE", "owner")
