from django.db import migrations

from inference.database import row_security


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [
        row_security("tenants_organisation", "id"),
        row_security("tenants_project", "organisation_id"),
        row_security("tenants_member", "organisation_id"),
        # The gateway reads tenants and never changes them. People are seen by the operator's console alone.
        migrations.RunSQL(
            sql=[
                "GRANT SELECT, INSERT, UPDATE, DELETE ON tenants_organisation, tenants_project, tenants_member, tenants_user,"
                " tenants_user_groups, tenants_user_user_permissions TO brigade_system",
                "REVOKE ALL ON tenants_organisation, tenants_project, tenants_member, tenants_user, tenants_user_groups,"
                " tenants_user_user_permissions FROM brigade_app",
                "GRANT SELECT ON tenants_organisation, tenants_project, tenants_member TO brigade_app",
            ],
            reverse_sql=migrations.RunSQL.noop,
        ),
    ]
