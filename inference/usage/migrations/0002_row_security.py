from django.db import migrations

from inference.database import privileges, row_security


class Migration(migrations.Migration):
    dependencies = [("usage", "0001_initial")]
    operations = [
        row_security("inference_usage"),
        row_security("inference_usage_pending"),
        privileges("inference_usage", app="SELECT, INSERT"),
        privileges("inference_usage_pending", app="SELECT, INSERT"),
    ]
