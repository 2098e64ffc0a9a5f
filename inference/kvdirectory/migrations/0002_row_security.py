from django.db import migrations

from inference.database import privileges, row_security


class Migration(migrations.Migration):
    dependencies = [("kvdirectory", "0001_initial")]
    operations = [
        row_security("kv_handoff"),
        privileges("kv_handoff", app="SELECT, UPDATE"),
        privileges("kv_extent", app=""),
    ]
