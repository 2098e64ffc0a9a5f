from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0001_initial")]

    operations = [
        migrations.RunSQL(
            sql=[
                "GRANT SELECT, INSERT, UPDATE, DELETE ON catalog_model, catalog_tier TO brigade_system",
                "REVOKE ALL ON catalog_model, catalog_tier FROM brigade_app",
                "GRANT SELECT ON catalog_model, catalog_tier TO brigade_app",
            ],
            reverse_sql=migrations.RunSQL.noop,
        )
    ]
