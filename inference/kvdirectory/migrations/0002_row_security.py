from django.db import migrations

from inference.database import row_security


class Migration(migrations.Migration):
    dependencies = [("kvdirectory", "0001_initial")]
    operations = [
        row_security("kv_handoff"),
    ]
