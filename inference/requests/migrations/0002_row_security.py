from django.db import migrations

from inference.database import privileges, row_security


class Migration(migrations.Migration):
    dependencies = [("requests", "0001_initial")]
    operations = [
        row_security("inference_request"),
        row_security("inference_request_body"),
        row_security("inference_request_event"),
        privileges("inference_request", app="SELECT, INSERT, UPDATE"),
        privileges("inference_request_body", app="SELECT, INSERT"),
        privileges("inference_request_event", app="SELECT, INSERT"),
    ]
