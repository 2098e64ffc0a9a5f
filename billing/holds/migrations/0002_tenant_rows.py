from django.db import migrations

from billing.database import tenant_reads
from inference.database import privileges, row_security


class Migration(migrations.Migration):
    dependencies = [("holds", "0001_initial")]

    operations = [
        row_security("holds_account"),
        row_security("holds_hold"),
        tenant_reads("holds_relief"),
        # The gateway places and releases holds; it can neither open an account nor move a limit or the settled use.
        privileges("holds_account", app="SELECT, UPDATE (held_nano_usd)"),
        privileges("holds_hold", app="SELECT, INSERT, UPDATE (state, ended_at)"),
        privileges("holds_relief", system="SELECT, INSERT"),
    ]
