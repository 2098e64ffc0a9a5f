from django.db import migrations

from inference.database import privileges


class Migration(migrations.Migration):
    dependencies = [("coordination", "0001_initial")]
    operations = [
        privileges("coordination_worker", app="SELECT"),
        privileges("coordination_heartbeat", app="SELECT"),
        privileges("coordination_config", app="SELECT"),
        privileges("coordination_lease", app=""),
    ]
